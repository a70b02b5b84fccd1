/**
 * Re-validates streams and calls in flight (law 4). A request is decided once, but its answer, or a standalone stream, may
 * last for hours. A token that is revoked meanwhile must end it, even if no message is delivered on it.
 */

import { isRefusal, type TokenClaims } from '../../auth/principal.ts';
import { hasExpired } from '../../auth/verify.ts';
import { laneOnce } from '../../base/turns/lane.ts';
import { type Admission, type Admit, isDecidedAlike } from '../../state/admission.ts';

export interface Revalidated {
  readonly claims: TokenClaims;
  /**
   * Whether a standalone stream may stay open in this state. null: a call; once allowed, it runs to its end if policies change.
   */
  readonly mayGoOn: ((admission: Admission) => boolean) | null;
  /** Called with each new state in which it may go on. */
  readonly changed?: ((admission: Admission) => void) | undefined;
  end(): void;
}

export type Revalidation = ReturnType<typeof createRevalidation>;

interface Entry {
  readonly watched: Revalidated;
  /** The admission at the last check. */
  admission: Admission | null;
  goodAt: number;
  /** Whether a judgement of `admission` waits for its turn. */
  waits: boolean;
}

/** The owner of judgements in the lane. */
const STREAMS = 'streams that are judged again';
/** If the state cannot be read for this long, standalone streams are ended: the gateway cannot tell who may still listen. */
const ADMISSION_TIMEOUT_MS = 5_000;

/** `now`: the clock by which tokens expire, in milliseconds. */
export function createRevalidation(admit: Admit, everyMs: number, now: () => number) {
  const entries = new Set<Entry>();
  let looking = false;

  async function examine(entry: Entry): Promise<void> {
    const { claims, mayGoOn, end } = entry.watched;
    if (mayGoOn !== null && hasExpired(claims, now())) return end();
    let admission: Awaited<ReturnType<Admit>>;
    try {
      admission = await admit(claims);
    } catch {
      if (mayGoOn !== null && performance.now() - entry.goodAt >= ADMISSION_TIMEOUT_MS) end();
      return;
    }
    entry.goodAt = performance.now();
    if (isRefusal(admission)) return end();
    if (entry.admission !== null && isAlike(entry.admission, admission)) return;
    entry.admission = admission;
    if (mayGoOn === null) return judge(entry);
    // A change of policies concerns all streams at once, and some of them need a decision about every target.
    if (entry.waits) return;
    entry.waits = true;
    void laneOnce(STREAMS, () => judge(entry), false);
  }

  function judge(entry: Entry): void {
    entry.waits = false;
    if (entry.admission !== null && entries.has(entry) && !goesOn(entry.watched, entry.admission)) entry.watched.end();
  }

  const timer = setInterval(() => {
    if (looking || entries.size === 0) return;
    looking = true;
    void Promise.all([...entries].map(examine)).finally(() => {
      looking = false;
    });
  }, everyMs).unref();

  /** A fault counts as a deny (law 6). */
  function goesOn({ mayGoOn, changed }: Revalidated, admission: Admission): boolean {
    try {
      if (mayGoOn?.(admission) === false) return false;
      changed?.(admission);
      return true;
    } catch {
      return false;
    }
  }

  return {
    /** Returns a function that ends the re-validation. */
    add(watched: Revalidated): () => void {
      const entry: Entry = { watched, admission: null, goodAt: performance.now(), waits: false };
      entries.add(entry);
      return () => void entries.delete(entry);
    },
    stop: (): void => clearInterval(timer),
  };
}

/** Whether nothing relevant here has changed: changes to other users also make a new snapshot. */
function isAlike(a: Admission, b: Admission): boolean {
  return isDecidedAlike(a, b) && a.snapshot.targets === b.snapshot.targets && a.snapshot.sessions === b.snapshot.sessions;
}

export type AdmissionChanges = ReturnType<typeof createAdmissionChanges>;

/** Reports each new state while the stream may stay open. `first`: the admission of the request. */
export function createAdmissionChanges(first: Admission) {
  let current: ((admission: Admission) => void) | null = null;
  /** A change that came while the stream was being opened. */
  let missed: Admission | null = null;
  let heard = first;
  const tell = (admission: Admission): void => {
    if (current === null) {
      missed = admission;
      return;
    }
    missed = null;
    heard = admission;
    current(admission);
  };
  return {
    /** Notes with which admission the stream is opened. */
    begin(admission: Admission): void {
      heard = admission;
    },
    /** The last admission that the listener has heard of; before that, the one with which the stream is opened. */
    heard: (): Admission => heard,
    /** Sets the only listener. Returns a function that unsubscribes. */
    listen(listener: (admission: Admission) => void): () => void {
      current = listener;
      if (missed !== null) tell(missed);
      return () => {
        if (current === listener) current = null;
      };
    },
    emit: tell,
  };
}
