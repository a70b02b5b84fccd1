/** What tests of retention share: a keeper that removes records by age, moments, and checkpoints. */

import { type Checkpoint, checkpointMac } from '../../../src/audit/chain/checkpoint.ts';
import { chainStore } from '../../../src/audit/chain/tables/chain-store.ts';
import { createRetention, type RetentionParts } from '../../../src/audit/upkeep/retention.ts';
import type { Database } from '../../../src/db/database.ts';
import { decision, KEY } from '../records.ts';

export const DAY = 24 * 60 * 60 * 1000;
export const NOW = 1_800_000_000_000;

/** A UUIDv7 of a moment. */
export function idAt(time: number): string {
  const hex = time.toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-${decision().id.slice(14)}`;
}

export function keeperOf(database: Database, over: Partial<RetentionParts> = {}) {
  const errors: { chains?: number; kept?: readonly { chain: string; seq: number | null; why: string }[] }[] = [];
  const kept: number[] = [];
  const log = { info: () => {}, warn: () => {}, error: (record: object) => void errors.push(record) };
  const parts = {
    database,
    key: KEY,
    previousKeys: [],
    days: 40,
    resume: async () => {},
    checkClock: async () => {},
    log,
    now: () => NOW,
  };
  const retention = createRetention({ ...parts, onKept: (chains) => void kept.push(chains), ...over });
  return { errors, kept, run: () => retention.run().finally(() => retention.stop()) };
}

export async function checkpointAt(database: Database, time: number): Promise<Checkpoint> {
  const heads = (await chainStore(database.knex).openHeads(KEY)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac] as const);
  const content = { time, revision: 1, heads };
  return { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
}
