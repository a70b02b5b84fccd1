/** The findings of the analysis in the form that people read: policies and targets by name. Pure. */
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Report } from '../analysis/analyse.ts';
import { ownerIn } from '../files/file.ts';
import { policyRef } from '../files/test-run.ts';
import type { InvariantFinding } from '../invariants/findings.ts';

export type LintReport = ReturnType<typeof lintJson>;

export function lintJson(
  { analysed, findings }: Report,
  policies: readonly StoredPolicy[],
  targetName: (id: string) => string | undefined,
) {
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  return {
    analysed,
    findings: findings.map(({ code, severity, message, policy_ids, witness }) => ({
      ...{ code, severity, message },
      /** The policy that the finding is about comes first. */
      policies: policy_ids.flatMap((id) => {
        const policy = byId.get(id);
        return policy === undefined ? [] : [lintedPolicy(policy)];
      }),
      /** `target` is a name. It is invented if the finding does not depend on the target. */
      witness: witness && { ...witness, target: targetName(witness.target) ?? witness.target },
    })),
  };
}

export function lintedPolicy(policy: StoredPolicy) {
  const { name, file } = policyRef(policy, () => true);
  return { id: policy.id, name, file, owner: ownerIn(policy.managed_as) };
}

/** Returns findings about invariants in the form of the report. */
export function invariantsJson(findings: readonly InvariantFinding[], policies: readonly StoredPolicy[]) {
  const byId = new Map(policies.map((policy) => [policy.id, lintedPolicy(policy)]));
  return findings.map(({ code, severity, message, policy }) => {
    const about = byId.get(policy ?? '');
    return { code, severity, message, policies: about === undefined ? [] : [about], witness: null };
  });
}
