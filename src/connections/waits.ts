/**
 * Waits until different replicas have renewed accounts. One query at a time looks at the connections that wait: if each of them had its own,
 * an authorization server that does not answer would make every replica read the database as fast as it can.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ConnectionStore, RenewalState } from '../targets/connection-store.ts';

export interface WaitParts {
  readonly states: ConnectionStore['renewalStates'];
  readonly now: () => number;
  /** Resolves after this many milliseconds. */
  readonly pause?: (ms: number) => Promise<unknown>;
}

/** Between two queries, and so between the first looks at a connection. */
const POLL_MS = 50;
/** The longest pause between two looks at a connection. */
const MAX_PAUSE_MS = 1_000;
/** The pause is a fifth of the time that the connection has waited, so a renewal seems to take at most that much longer. */
const PAUSE_PART = 5;
/** Connections in one query. Each whose wait is over is then read, so this also keeps those reads from coming all at once. */
const MOST_AT_ONCE = 100;

interface Wait {
  readonly row: RenewalState;
  readonly until: number;
  /** Rounds, because the clock may be set back. */
  readonly begunAt: number;
  dueAt: number;
  readonly end: () => void;
  readonly fail: (err: unknown) => void;
}

const isSame = (a: RenewalState, b: RenewalState): boolean =>
  a.version === b.version && a.problem === b.problem && a.renewing_until === b.renewing_until && a.ended_at === b.ended_at;

export function createWaits({ states, now, pause = sleep }: WaitParts) {
  /** The connection that was looked at last is at the end. */
  const waits = new Set<Wait>();
  let round = 0;
  let isRunning = false;

  async function run(): Promise<void> {
    isRunning = true;
    while (waits.size > 0) {
      await pause(POLL_MS);
      round += 1;
      await look();
    }
    isRunning = false;
  }

  async function look(): Promise<void> {
    const time = now();
    const due: Wait[] = [];
    for (const wait of waits) {
      if (time > wait.until) close(wait, wait.end);
      else if (wait.dueAt <= round && due.length < MOST_AT_ONCE) due.push(wait);
    }
    if (due.length === 0) return;
    try {
      const found = await states(due.map(({ row }) => row.id));
      for (const wait of due) {
        const { renewing_until } = wait.row;
        const state = found.get(wait.row.id);
        if (state === undefined || !isSame(state, wait.row) || (renewing_until ?? 0) <= now()) close(wait, wait.end);
        else postpone(wait);
      }
    } catch (err) {
      for (const wait of due) close(wait, () => wait.fail(err));
    }
  }

  function close(wait: Wait, end: () => void): void {
    waits.delete(wait);
    end();
  }

  function postpone(wait: Wait): void {
    const rounds = Math.floor((round - wait.begunAt) / PAUSE_PART);
    wait.dueAt = round + Math.min(MAX_PAUSE_MS / POLL_MS, Math.max(1, rounds));
    waits.delete(wait);
    waits.add(wait);
  }

  return {
    /**
     * Resolves when the connection is no longer as in this row, when the lock of its renewal has run out, and after `until`. Nothing is
     * known of the connection then: the caller must read it. Rejects if the database cannot be read.
     */
    over(row: RenewalState, until: number): Promise<void> {
      return new Promise<void>((end, fail) => {
        waits.add({ row, until, begunAt: round, dueAt: round + 1, end, fail });
        if (!isRunning) void run();
      });
    },
  };
}
