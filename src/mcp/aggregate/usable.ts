/** Which targets a session with all of them is with, at this moment. */
import type { Admission } from '../../auth/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';

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
