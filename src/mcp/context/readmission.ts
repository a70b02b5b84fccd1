/** The caller by the state of this moment, for what is decided later than the request was admitted. */
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { fingerprintOf } from '../sessions/sessions.ts';
import type { Caller } from './context.ts';

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
