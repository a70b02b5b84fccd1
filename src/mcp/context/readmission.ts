/** The caller by the state of this moment, for what is decided or sent later than the request was admitted. */
import type { Now } from '../../base/promises.ts';
import type { Operation } from '../../protocol/operation.ts';
import { type Admission, decideListed, mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { bindingOf, fingerprintOf, type UpstreamSession } from '../sessions/sessions.ts';
import type { UpstreamFault } from '../upstream/upstream.ts';
import type { Caller } from './context.ts';
import type { SessionTarget } from './upstream-opening.ts';
import { isUpstreamSessionFailure, type UpstreamSessionFailure } from './upstream-sessions.ts';

/** null: the caller is refused now, or the state cannot be read. */
export async function readmit(caller: Caller): Promise<Admission | null> {
  try {
    const admission = await caller.deps.admit(caller.claims);
    return 'refused' in admission ? null : admission;
  } catch {
    return null;
  }
}

/**
 * The caller of work that has waited for its turn. The user's own work can keep it waiting for minutes, and a change that was answered meanwhile
 * must count (law 4). null: as `readmit`.
 */
export async function readmitted(caller: Caller): Promise<Caller | null> {
  const admission = await readmit(caller);
  return admission && { ...caller, admission };
}

/** The target under this name, if it is still the same one. null: it is not, or the caller may not use it. */
export function stillUsable(admission: Admission, name: string, target: RoutedTarget): RoutedTarget | null {
  const current = admission.snapshot.targets.get(name);
  if (current === undefined || fingerprintOf(current) !== fingerprintOf(target)) return null;
  return mayUseTarget(admission, current) ? current : null;
}

export const CHANGED: UpstreamFault = { fault: 'changed' };

/** Whether what was decided with the admission of the caller would still be allowed, with the same credentials. */
export async function isStillAllowed(caller: Caller, target: RoutedTarget, operation: Operation): Promise<boolean> {
  const now = await readmit(caller);
  const current = now && stillUsable(now, caller.targetName, target);
  if (now === null || current === null) return false;
  const bindingIn = ({ principal, snapshot }: Admission, at: RoutedTarget): string =>
    bindingOf(at.accessOf(principal), snapshot.sessions.epochOf(principal.sub, at.id));
  if (bindingIn(now, current) !== bindingIn(caller.admission, target)) return false;
  return operation.kind !== 'object' || decideListed(now, current.id)([operation.object])[0] === true;
}

/** What a message is decided as that names no object. */
export const USE: Operation = { kind: 'target' };

type Linked = UpstreamSession | UpstreamSessionFailure;

/**
 * The upstream session for a message that has been decided. A fault if the decision no longer holds after a session was opened: a target can take
 * seconds for that.
 */
export function linkFor(caller: Caller, sessionTarget: SessionTarget, operation: Operation): Now<Linked> {
  const link = caller.deps.links.current(sessionTarget);
  return link instanceof Promise ? openedFor(caller, sessionTarget, operation, link) : link;
}

/** The same for one that replaces a lost one. */
export async function openedFor(
  caller: Caller,
  { target }: SessionTarget,
  operation: Operation,
  opening: Promise<Linked>,
): Promise<Linked> {
  const link = await opening;
  return isUpstreamSessionFailure(link) || (await isStillAllowed(caller, target, operation)) ? link : CHANGED;
}
