/** Which targets a session with all of them is with, at this moment, and whether there is still such a session. */
import type { Admission } from '../../auth/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { type Answer, finalText } from '../answer.ts';
import { type Caller, type ExchangeDeps, REVOKED } from '../context.ts';
import { EVERYWHERE, type Link, type Session } from '../sessions.ts';

/** In the order of their names; the same for every request in the same state. */
export function usableTargets({ principal, snapshot }: Admission): RoutedTarget[] {
  return [...snapshot.targets.values()]
    .filter((target) => {
      try {
        return snapshot.engine.decideTarget(principal, target.id).effect === 'allow';
      } catch {
        return false;
      }
    })
    .sort((a, b) => (a.name < b.name ? -1 : 1));
}

/**
 * Whether nobody has ended the session. Its client's end is known from its row alone: unlike on a target's own endpoint, what
 * the gateway answers by itself does not meet a target that has forgotten the session.
 */
export async function isLive(deps: ExchangeDeps, { snapshot }: Admission, session: Session): Promise<boolean> {
  if (session.place !== EVERYWHERE || snapshot.sessions.ended.has(session.id)) return false;
  return (await deps.sessions.find(session.id)) !== null;
}

/** The targets that have a half of the session, whichever replica has opened it. */
export async function halvesOf(
  deps: ExchangeDeps,
  admission: Admission,
  session: Session,
): Promise<(readonly [RoutedTarget, Link])[]> {
  const open = deps.links.open(session);
  const found = usableTargets(admission).map(async (target) => {
    const access = target.accessOf(admission.principal);
    const link = open.get(target.id) ?? (await deps.links.newest({ session, target, access, admission }));
    return link === null ? [] : [[target, link] as const];
  });
  return (await Promise.all(found)).flat();
}

/** What one of several targets answers while the others can be kept waiting for it; null: nothing. */
export async function askAmong(
  deps: ExchangeDeps,
  caller: Caller,
  targetName: string,
  ask: (aimed: Caller) => Promise<Answer>,
): Promise<string | null> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(REVOKED), deps.limits.openMs);
  const waited = new Promise<null>((resolve) => {
    late.signal.addEventListener('abort', () => resolve(null), { once: true });
  });
  const gone = AbortSignal.any([caller.gone, late.signal]);
  try {
    return await Promise.race([ask({ ...caller, targetName, gone }).then(finalText), waited]);
  } catch {
    return null;
  } finally {
    clearTimeout(timer);
  }
}
