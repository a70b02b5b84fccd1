/** The caller by the state of this moment, for what is decided or sent later than the request was admitted. */
import { principalKey, type TokenClaims } from '../../auth/principal.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { restInLane } from '../../base/turns/lane.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { type Decide, decided } from '../../engine/estimate.ts';
import { type Admission, type Admit, decideListed, isDecidedAlike, mayUseTarget } from '../../state/admission.ts';
import type { Access, RoutedTarget, StillAllowed } from '../../targets/target.ts';
import { fingerprintOf } from '../sessions/sessions.ts';
import type { Caller } from './context.ts';

/** null: the caller is refused now. Rejects if the state cannot be read. */
async function admitted(admit: Admit, claims: TokenClaims): Promise<Admission | null> {
  const admission = await admit(claims);
  return 'refused' in admission ? null : admission;
}

/** null: the caller is refused now, or the state cannot be read. */
export const readmit = ({ deps, claims }: Caller): Promise<Admission | null> => admitted(deps.admit, claims).catch(() => null);

/**
 * The caller of work that has waited for its turn. The user's own work can keep it waiting for minutes, and a change that was answered meanwhile
 * must count (law 4). null: as `readmit`.
 */
export async function readmitted(caller: Caller): Promise<Caller | null> {
  const admittedAt = performance.now();
  const admission = await readmit(caller);
  return admission && { ...caller, admission, admittedAt };
}

/**
 * The caller of a stream that stays open. Its admission is the last one that the listener of `changes` has heard of: an admission keeps its
 * policies in memory, several MB. So nothing that lives as long as the stream may refer to a different caller, also not a local of a generator.
 */
export function callerOfStream(caller: Caller, targetName = caller.targetName): Caller {
  const { deps, claims, arrivedAt, wholeAt, version, gone, revoked, changes, whenAnswered } = caller;
  changes.begin(caller.admission);
  return {
    deps,
    claims,
    get admission() {
      return changes.heard();
    },
    targetName,
    arrivedAt,
    wholeAt,
    // The re-validation finds a change up to a second late, so whatever is sent or shown needs a look at the state.
    admittedAt: Number.NEGATIVE_INFINITY,
    version,
    gone,
    revoked,
    changes,
    whenAnswered,
  };
}

/** The target under this name, if it is still the same one. null: it is not, or the caller may not use it. */
export function stillUsable(admission: Admission, name: string, target: RoutedTarget): RoutedTarget | null {
  const current = admission.snapshot.targets.get(name);
  if (current === undefined || fingerprintOf(current) !== fingerprintOf(target)) return null;
  return mayUseTarget(admission, current) ? current : null;
}

/**
 * For so long, in milliseconds, a message is sent by its decision, and an answer filtered by it. Most need a few, and so no second look at the
 * state.
 */
const HOLDS_MS = 100;
const MOST_LOOKS = 5;
const MOST_FILTERED = 3;

/**
 * The admission that decides what an answer may show: a target can take long, and a deny that was answered meanwhile must count. null: as
 * `readmit`.
 */
export function admissionNow(caller: Caller): Now<Admission | null> {
  return isFresh(caller) ? caller.admission : readmit(caller);
}

const isFresh = ({ admittedAt }: Caller): boolean => performance.now() - admittedAt < HOLDS_MS;

/** An answer names an object, and nothing can decide whether the caller may see it. */
export class UndecidedFault extends Error {}

/** Filters an answer. It may be called several times. */
type Filter<T> = (decide: Decide) => Now<T>;

/**
 * Filters an answer of this target by `admissionNow`. A late answer is first filtered without an admission: most name nothing, and need no
 * look at the state, which can be unreadable for seconds. Throws UndecidedFault, or rejects with it.
 */
export function filteredNow<T>(caller: Caller, targetId: string, filter: Filter<T>): Now<T> {
  return isFresh(caller) ? filteredBy(caller, targetId, filter) : filteredLate(caller, targetId, filter);
}

async function filteredLate<T>(caller: Caller, targetId: string, filter: Filter<T>): Promise<T> {
  try {
    return await filter((objects) => {
      if (objects.length > 0) throw new UndecidedFault('there is no admission');
      return [];
    });
  } catch (err) {
    if (!(err instanceof UndecidedFault)) throw err;
  }
  return await filteredBy(await readmittedToDecide(caller), targetId, filter);
}

async function readmittedToDecide(caller: Caller): Promise<Caller> {
  const now = await readmitted(caller);
  if (now === null) throw new UndecidedFault('there is no admission');
  return now;
}

/** Filters by the caller's own admission. A long answer waits for its turn in the lane, and a deny that was answered meanwhile must count. */
function filteredBy<T>(caller: Caller, targetId: string, filter: Filter<T>, turn = 1): Now<T> {
  const { admission, decidedBy } = caller;
  const decide = decideListed(admission, targetId);
  let hasDecided = false;
  const filtered = filter((objects) => {
    hasDecided ||= objects.length > 0;
    return decide(objects);
  });
  return whenThere(filtered, (done) => {
    if (!hasDecided) return done;
    decidedBy?.(admission);
    if (isFresh(caller) || turn === MOST_FILTERED) return done;
    return readmittedToDecide(caller).then((now) =>
      isDecidedAlike(admission, now.admission) ? done : filteredBy(now, targetId, filter, turn + 1),
    );
  });
}

/**
 * The access of the caller to the target, for messages about these objects. A message that is sent more than 100 ms after the caller was
 * admitted is sent only if the caller may still use the target and all of the objects, with the same credentials.
 */
export function accessFor(
  { deps, claims, admission, admittedAt }: Caller,
  target: RoutedTarget,
  named: readonly NamedObject[] = [],
): Access {
  // A session of the bridge keeps the access for hours. So the functions below refer to no admission: it would keep its policies in memory.
  const { admit } = deps;
  const access = target.accessOf(admission.principal);
  let goodAt = admittedAt;
  async function look(objects: readonly NamedObject[]): Promise<boolean> {
    // Long decisions wait for their turns. The next time, they are in the cache.
    for (let looks = 0; looks < MOST_LOOKS; looks++) {
      const at = performance.now();
      const now = await admitted(admit, claims);
      const knownAt = performance.now();
      const current = now && stillUsable(now, target.name, target);
      if (now === null || current === null || current.accessOf(now.principal).binding !== access.binding) return false;
      const allowed = await restInLane(principalKey(claims), decided(decideListed(now, current.id), objects));
      if (!allowed.every(Boolean)) return false;
      if (objects === named) goodAt = at;
      if (performance.now() - knownAt < HOLDS_MS) return true;
    }
    return false;
  }
  const stillAllowed: StillAllowed = (objects = named) =>
    (objects === named && performance.now() - goodAt < HOLDS_MS) || look(objects);
  return { ...access, stillAllowed };
}
