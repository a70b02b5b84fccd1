/** The findings of the analysis in the form that people read: policies and targets by name. Pure. */
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { FindingCode, Report, Severity, Witness } from '../analysis/analyse.ts';
import { policyRef } from '../files/test-run.ts';

export interface LintFinding {
  readonly code: FindingCode;
  readonly severity: Severity;
  readonly message: string;
  /** First the policy that the finding is about. */
  readonly policies: readonly { readonly id: string; readonly name: string; readonly file: string | null }[];
  /** `target` is a name. It is invented if the finding does not depend on the target. */
  readonly witness: Witness | null;
}

export interface LintReport {
  readonly analysed: number;
  readonly findings: readonly LintFinding[];
}

export function lintJson(
  { analysed, findings }: Report,
  policies: readonly StoredPolicy[],
  targetName: (id: string) => string | undefined,
): LintReport {
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  return {
    analysed,
    findings: findings.map(({ code, severity, message, policy_ids, witness }) => ({
      ...{ code, severity, message },
      policies: policy_ids.flatMap((id) => {
        const policy = byId.get(id);
        if (policy === undefined) return [];
        const { name, file } = policyRef(policy, () => true);
        return [{ id, name, file }];
      }),
      witness: witness && { ...witness, target: targetName(witness.target) ?? witness.target },
    })),
  };
}
