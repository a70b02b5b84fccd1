/** `portcullis log follow`: prints decisions as the gateway records them. */

import { setTimeout as sleep } from 'node:timers/promises';
import { timeOf } from '../../audit/chain/chain.ts';
import type { LogJson } from '../../audit/search/log-json.ts';
import type { Client, Page, Say } from '../client.ts';
import { CommandError, type Outcome } from '../command.ts';
import { tableText } from './table.ts';

const POLL_MS = 1_000;
const RETRY_MS = 2_000;
const PAGE = 1_000;
/**
 * A decision may be recorded later than one with a later time: a write takes 10 s at most, and the clocks of replicas differ. So each
 * poll reads this span again, and leaves out what it has shown.
 */
const OVERLAP_MS = 30_000;
const PASSING = new Set(['no_answer', 'no_gateway', 'unavailable', 'internal', 'too_many_requests']);

export interface Following {
  /** Returns the address of the log with these query parameters. */
  path(query: Readonly<Record<string, unknown>>): string;
  readonly columns: readonly string[];
  /** How many earlier decisions are shown first. */
  readonly earlier: number;
}

/** Writes each decision once, until `signal`. Continues when the gateway answers again after an outage. */
export async function follow(
  client: Client,
  { path, columns, earlier }: Following,
  say: Say,
  write: (outcome: Outcome) => void,
  signal: AbortSignal,
): Promise<void> {
  const show = (row: LogJson): void => write({ text: (view) => tableText([row], columns, view, WIDTHS), json: row });

  /** Returns the decisions since a time, and the time since which the next poll must read. */
  async function read(from: number): Promise<{ rows: readonly LogJson[]; next: number }> {
    const rows: LogJson[] = [];
    let next: number | null = null;
    for await (const { items, at } of client.pages<LogJson>(path({ from: new Date(from).toISOString(), limit: PAGE }))) {
      rows.push(...items);
      if (at < from) say('The clock of the gateway was set back: decisions of that time are shown again.');
      next ??= at - OVERLAP_MS;
    }
    return { rows, next: next ?? from };
  }

  const last = await newest(client, path({ limit: Math.max(1, earlier) }));
  let { rows, next } = await read(last.at - OVERLAP_MS);
  // What was recorded shortly before is not new, either.
  const before = inOrder([...last.items, ...rows]);
  const seen = new Set(before.map(({ id }) => id));
  if (earlier > 0) before.slice(-earlier).forEach(show);

  let isAway = false;
  for (;;) {
    await sleep(isAway ? RETRY_MS : POLL_MS, null, { signal }).catch(() => undefined);
    if (signal.aborted) return;
    try {
      const from = next;
      ({ rows, next } = await read(from));
      // The clock of the replica that answers next may be behind.
      for (const id of seen) if (timeOf(id) < from - OVERLAP_MS) seen.delete(id);
      for (const row of inOrder(rows).filter(({ id }) => !seen.has(id))) {
        seen.add(row.id);
        show(row);
      }
      if (isAway) say('the gateway answers again');
      isAway = false;
    } catch (error) {
      if (!(error instanceof CommandError) || !PASSING.has(error.code)) throw error;
      if (!isAway) say(`${error.message} This command continues when the gateway answers again.`);
      isAway = true;
    }
  }
}

const WIDTHS = [24, 5, 24, 14, 14, 0, 0];

async function newest(client: Client, path: string): Promise<Page<LogJson>> {
  for await (const page of client.pages<LogJson>(path)) return page;
  throw new CommandError('the gateway gave no page', 'no_answer');
}

/** The oldest first, each once. */
const inOrder = (rows: readonly LogJson[]): LogJson[] =>
  [...new Map(rows.map((row) => [row.id, row])).values()].sort((a, b) => (a.id < b.id ? -1 : 1));

/** Aborts when the person presses Ctrl-C, or when the reader of the output has ended. */
export function untilInterrupted(): { readonly signal: AbortSignal; end(): void } {
  const controller = new AbortController();
  const abort = (): void => controller.abort();
  for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, abort);
  process.stdout.once('error', abort);
  return {
    signal: controller.signal,
    end() {
      for (const name of ['SIGINT', 'SIGTERM'] as const) process.off(name, abort);
      process.stdout.off('error', abort);
    },
  };
}
