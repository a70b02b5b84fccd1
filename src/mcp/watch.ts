/**
 * What goes on after it was admitted, looked at again while it does (law 4). A request is decided once, but its answer, or a
 * standing stream, may last for hours; a token revoked meanwhile must end it even if nothing is delivered on it.
 */
import type { Admission, Admit } from '../auth/admission.ts';
import { isRefusal, type TokenClaims } from '../auth/principal.ts';

export interface Watched {
  readonly claims: TokenClaims;
  /** Of a standing stream: may it go on in this state? A call that was allowed ends as it was begun, whatever policy becomes. */
  readonly mayGoOn: ((admission: Admission) => boolean) | null;
  /** Told of each new state in which it may go on. */
  readonly changed?: ((admission: Admission) => void) | undefined;
  end(): void;
}

export interface Watch {
  /** Returns how to leave. */
  add(watched: Watched): () => void;
  stop(): void;
}

interface Entry {
  readonly watched: Watched;
  /** What it was last examined in. */
  admission: Admission | null;
  goodAt: number;
}

/** Without a readable state standing streams are ended, because nobody can tell who may still listen. */
const PATIENCE_MS = 5_000;

export function createWatch(admit: Admit, everyMs: number): Watch {
  const entries = new Set<Entry>();
  let looking = false;

  async function examine(entry: Entry): Promise<void> {
    const { claims, mayGoOn, end } = entry.watched;
    let admission: Awaited<ReturnType<Admit>>;
    try {
      admission = await admit(claims);
    } catch {
      if (mayGoOn !== null && performance.now() - entry.goodAt >= PATIENCE_MS) end();
      return;
    }
    entry.goodAt = performance.now();
    if (isRefusal(admission)) return end();
    if (entry.admission !== null && isAlike(entry.admission, admission)) return;
    entry.admission = admission;
    if (!goesOn(entry.watched, admission)) end();
  }

  const timer = setInterval(() => {
    if (looking || entries.size === 0) return;
    looking = true;
    void Promise.all([...entries].map(examine)).finally(() => {
      looking = false;
    });
  }, everyMs).unref();

  /** What cannot be decided is denied (law 6). */
  function goesOn({ mayGoOn, changed }: Watched, admission: Admission): boolean {
    try {
      if (mayGoOn?.(admission) === false) return false;
      changed?.(admission);
      return true;
    } catch {
      return false;
    }
  }

  return {
    add(watched) {
      const entry: Entry = { watched, admission: null, goodAt: performance.now() };
      entries.add(entry);
      return () => void entries.delete(entry);
    },
    stop: () => clearInterval(timer),
  };
}

/** Changes of other users make another snapshot, in which everything that matters here is the same. */
function isAlike(a: Admission, b: Admission): boolean {
  return (
    a.snapshot.engine === b.snapshot.engine &&
    a.snapshot.targets === b.snapshot.targets &&
    a.snapshot.sessions === b.snapshot.sessions &&
    a.principal.role === b.principal.role &&
    a.principal.groups === b.principal.groups
  );
}

/** Tells of each state that differs from the one before, while the stream may go on in it. */
export interface Changes {
  /** One listener; returns how to leave. */
  listen(listener: (admission: Admission) => void): () => void;
  emit(admission: Admission): void;
}

export function createChanges(): Changes {
  let current: ((admission: Admission) => void) | null = null;
  let last: Admission | null = null;
  return {
    listen(listener) {
      current = listener;
      // What came while the target was being asked for the stream.
      if (last !== null) listener(last);
      return () => {
        if (current === listener) current = null;
      };
    },
    emit(admission) {
      last = admission;
      current?.(admission);
    },
  };
}
