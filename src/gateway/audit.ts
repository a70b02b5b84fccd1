/** The audit log: what is recorded, chained, kept and erased. */

import { hostname } from 'node:os';
import { createChainKey } from '../audit/chain/chain.ts';
import { createDenials } from '../audit/denials.ts';
import type { AuditWriter, DecisionCause, DecisionRecord } from '../audit/records/records.ts';
import type { AuditEntry } from '../audit/search/entries.ts';
import { createCloseAbandoned } from '../audit/segments.ts';
import { createCounts } from '../audit/upkeep/counts.ts';
import { createErasure } from '../audit/upkeep/erasure.ts';
import { createHeads } from '../audit/upkeep/heads.ts';
import { createRetention } from '../audit/upkeep/retention.ts';
import { type Genuineness, genuinenessOf } from '../audit/verify/genuine.ts';
import { verificationStore } from '../audit/verify/verification-store.ts';
import { createAuditWriter } from '../audit/writer.ts';
import { principalKey } from '../auth/principal.ts';
import { createVault, type Vault } from '../auth/vault.ts';
import { createClockCheck } from '../db/clock.ts';
import type { Base } from './base.ts';

export type Audit = Awaited<ReturnType<typeof startAudit>>;

export async function startAudit({ config, log, vault, database, keys, metrics, now }: Base) {
  const chainKey = (from: Vault) => createChainKey(from.derive('audit chain'));
  const key = chainKey(vault);
  const previousKeys = config.previousMasterKeys.map((previous) => chainKey(createVault(previous)));
  const host = { replica: config.replicaUrl, hostname: hostname(), pid: process.pid };
  const writer = createAuditWriter({ database, key, host, log, now });
  await writer.start();
  const denials = createDenials({ limit: config.rateLimits.denials, log, now, onRefused: () => metrics.denialsRefused.inc() });
  const audit: AuditWriter = {
    ...writer,
    decision(record, cause) {
      const began = performance.now();
      const written = writer.decision(record);
      const over = (): void => metrics.auditCommit.observe(performance.now() - began);
      written.then(() => {
        over();
        count(record, cause);
      }, over);
      return written;
    },
  };
  function count(record: DecisionRecord, cause: DecisionCause | undefined): void {
    // Messages that a target sends on its own must not lock out the principal that receives them.
    const isOwn = record.effect === 'deny' && cause !== 'delivery';
    if (isOwn) denials.count(principalKey({ sub: record.user_id }));
    metrics.decisions.inc({ effect: record.effect, reason: record.reason });
  }
  const { retentionDays: days, checkpoints: file, checkpointMinutes } = config.audit;
  const heads = createHeads({ database, key, keys, writer, file, checkpointMs: checkpointMinutes * 60_000, log, now });
  database.whenConnected(() => writer.forget(null));
  const erasure = createErasure({ database, key, forget: writer.forget, now });
  const closeAbandoned = createCloseAbandoned(database, now);
  const retention = createRetention({
    ...{ database, key, previousKeys, days, log, now },
    resume: async () => {
      await erasure.resume();
      await closeAbandoned();
    },
    checkClock: createClockCheck(database, now),
    onKept: (chains) => metrics.retentionKept.set(chains),
  });
  const counts = createCounts({ database, log });
  const known = [key, ...previousKeys];
  const verifications = verificationStore(database.knex, known);
  const genuineness = (entry: AuditEntry): Promise<Genuineness> => genuinenessOf(database.knex, known, entry);
  return { audit, writer, denials, heads, erasure, retention, counts, verifications, genuineness };
}
