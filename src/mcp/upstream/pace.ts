/**
 * Decides how long a session that several targets serve waits for one of them. A target is late when a request takes much longer
 * than the last answer did. From then on sessions do not wait for the target until it answers again; its requests continue in the
 * background. Sessions with the same credentials share this knowledge: at worst a target joins a session a moment later than it
 * could. The circuit breaker (`health.ts`) decides whether to ask a target at all.
 */
import { entered } from '../../base/kept.ts';
import { type Asked, bindingKey } from './health.ts';

export type Pace = ReturnType<typeof createPace>;

/** One request in flight at the target. */
export interface Attempt {
  /** `answered` is false if the attempt ended in a fault. Later calls do nothing. */
  ended(answered: boolean): void;
  /**
   * Call this when the attempt has used up its time. Returns whether that is news. It is not news if the target has answered a
   * later request, or if a concurrent attempt of the principal was already counted.
   */
  overdue(): boolean;
  /** Whether the target has answered later requests, but not this one within the time limit. */
  isLost(): boolean;
  /** Stops the attempt's clock: the gateway has what the target sent, and its own work on that is not the target's delay. */
  pause(): void;
  /** Starts the clock again: the gateway waits for the target. `countedMs`: so much of the pause counts after all. */
  resume(countedMs?: number): void;
  /** How long the target has taken so far, in milliseconds. null: the clock is stopped, because the target is not being waited for. */
  waitedMs(): number | null;
}

export interface Clock {
  readonly now: () => number;
  /** Returns a function that cancels the timer. */
  readonly after: (ms: number, run: () => void) => () => void;
}

export const MONOTONIC: Clock = {
  now: () => performance.now(),
  after(ms, run) {
    // Answers that have already arrived are read first.
    const timer = setTimeout(() => setImmediate(run), ms).unref();
    return () => clearTimeout(timer);
  },
};

interface Track {
  /** How long the last answer took. Answers slower than `joinMs` are not recorded, because no session would wait that long. */
  tookMs: number | null;
  late: boolean;
  /** A session went on without the target. */
  missed: boolean;
  endedAt: number;
  /** The requests to the target since its last answer. */
  pending: Set<Attempt>;
  /** The pending attempts of each principal that are not overdue. */
  readonly young: Map<string, Set<Attempt>>;
  readonly waiting: Set<() => void>;
}

/** A target is late after this many times the duration of its last answer. */
const PATIENCE = 3;
const FORGOTTEN_MS = 600_000;
const KEPT = 10_000;

export function createPace({ lateMs, joinMs }: { readonly lateMs: number; readonly joinMs: number }, clock: Clock) {
  const tracks = new Map<string, Track>();
  const listeners = new Set<(targetId: string) => void>();

  function trackOf(asked: Asked, method: string): Track {
    const track = entered(tracks, JSON.stringify([bindingKey(asked), method]), newTrack, KEPT);
    if (track.pending.size === 0 && clock.now() - track.endedAt > FORGOTTEN_MS) track.late = false;
    return track;
  }

  /** A session that is the only one waiting keeps waiting, so that a slow target is in its first list. */
  function becomeLate(track: Track): void {
    if (track.late) return;
    track.late = true;
    if (track.waiting.size > 1) for (const release of [...track.waiting]) release();
  }

  function answered(track: Track, targetId: string, took: number): void {
    if (took <= joinMs) track.tookMs = took;
    track.late = false;
    track.pending = new Set();
    track.young.clear();
    if (!track.missed) return;
    track.missed = false;
    for (const listener of listeners) listener(targetId);
  }

  return {
    /**
     * Call this when the target is asked. Each `method` is timed separately, because methods take different times and can hang
     * separately.
     */
    begin(asked: Asked, method: string): Attempt {
      const { target, principal } = asked;
      const track = trackOf(asked, method);
      const began = clock.now();
      let over = false;
      let pausedAt: number | null = null;
      let pausedMs = 0;
      const tookMs = (): number => (pausedAt ?? clock.now()) - began - pausedMs;
      const attempt: Attempt = {
        ended(isAnswer) {
          if (over) return;
          over = true;
          stopWaiting();
          track.endedAt = clock.now();
          track.pending.delete(attempt);
          const own = track.young.get(principal);
          if (own?.delete(attempt) && own.size === 0) track.young.delete(principal);
          if (isAnswer) answered(track, target.id, tookMs());
        },
        overdue() {
          const isNews = track.young.get(principal)?.has(attempt) ?? false;
          if (isNews) track.young.delete(principal);
          return isNews;
        },
        isLost: () => !over && !track.pending.has(attempt) && tookMs() >= joinMs,
        pause() {
          if (over || pausedAt !== null) return;
          pausedAt = clock.now();
          stopWaiting();
        },
        resume(countedMs = 0) {
          if (over || pausedAt === null) return;
          pausedMs += clock.now() - pausedAt - countedMs;
          pausedAt = null;
          stopWaiting = clock.after(Math.max(0, patience - tookMs()), noticeLateness);
        },
        waitedMs: () => (over || pausedAt !== null ? null : tookMs()),
      };
      const patience = Math.min(joinMs, Math.max(lateMs, PATIENCE * (track.tookMs ?? 0)));
      const noticeLateness = (): void => {
        if (pausedAt === null && track.pending.has(attempt)) becomeLate(track);
      };
      let stopWaiting = clock.after(patience, noticeLateness);
      track.pending.add(attempt);
      entered(track.young, principal, () => new Set<Attempt>(), KEPT).add(attempt);
      return attempt;
    },
    /**
     * Returns the result of `work`, or null if the session should stop waiting for it. `work` continues in the background. `current`: the
     * attempt that `work` waits for now; while its clock is stopped, the session keeps waiting.
     */
    async wait<T>(asked: Asked, method: string, work: Promise<T>, current?: () => Attempt | null): Promise<T | null> {
      const track = trackOf(asked, method);
      const isPaused = (): boolean => current?.()?.waitedMs() === null;
      const released = new Promise<null>((resolve) => {
        const end = (): void => {
          track.waiting.delete(release);
          cancel();
          resolve(null);
        };
        const release = (): void => {
          if (!isPaused()) end();
        };
        const expire = (): void => {
          const left = current === undefined ? 0 : joinMs - (current()?.waitedMs() ?? 0);
          if (left > 0) cancel = clock.after(Math.max(left, 1), expire);
          else end();
        };
        let cancel = track.late ? () => undefined : clock.after(joinMs, expire);
        if (track.late) return end();
        track.waiting.add(release);
        work.then(end, end);
      });
      // `work` comes first in the race, so that a result that is already there wins.
      const done = await Promise.race([work, released]);
      if (done === null) track.missed = true;
      return done;
    },
    /**
     * Whether the target is late with this method and already has such a request of the principal. A further request would only
     * pile up.
     */
    isAsking(asked: Asked, method: string): boolean {
      const track = trackOf(asked, method);
      const asking = track.late && track.young.has(asked.principal);
      if (asking) track.missed = true;
      return asking;
    },
    /**
     * Calls the listener with the id of a target that answers again after a session did not wait for it. Returns how to
     * unsubscribe.
     */
    onRecovered(listener: (targetId: string) => void): () => void {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}

const newTrack = (): Track => ({
  tookMs: null,
  late: false,
  missed: false,
  endedAt: 0,
  pending: new Set(),
  young: new Map(),
  waiting: new Set(),
});
