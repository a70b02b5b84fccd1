/** The findings of the analysis in the form that people read: policies and targets by name. Pure. */
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Report, Severity } from '../analysis/analyse.ts';
import { ownerIn } from '../files/file.ts';
import { policyRef } from '../files/test-run.ts';
import type { Invariant } from '../invariants/invariant.ts';
import { type BrokenInvariant, brokenText } from '../invariants/judge.ts';
import { timestamp } from '../schema.ts';

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

const INVARIANT_FINDINGS = { invariant_broken: 'error', expired_exception: 'warning', undecided: 'info' } as const;

/** Returns findings about the invariants that the policies break, and about exceptions that no longer count. */
export function invariantFindings(
  broken: readonly BrokenInvariant[],
  invariants: readonly Invariant[],
  policies: readonly StoredPolicy[],
  now: number,
): (Omit<LintReport['findings'][number], 'code'> & { readonly code: keyof typeof INVARIANT_FINDINGS })[] {
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  const finding = (code: keyof typeof INVARIANT_FINDINGS, message: string, id: string | null) => {
    const policy = byId.get(id ?? '');
    const severity: Severity = INVARIANT_FINDINGS[code];
    return { code, severity, message, policies: policy === undefined ? [] : [lintedPolicy(policy)], witness: null };
  };
  return [
    ...broken.map((each) =>
      each.witness === null
        ? finding('undecided', `The analysis reached its limits for the invariant ${brokenText(each)}`, null)
        : finding('invariant_broken', `The policies break the invariant ${brokenText(each)}`, each.witness.policy.id),
    ),
    ...invariants.flatMap(({ name, exceptions }) =>
      exceptions
        .filter(({ expires_at }) => expires_at <= now)
        .map(({ policy, expires_at }) => {
          const called = JSON.stringify(byId.get(policy)?.name ?? policy);
          const message = `The exception of the invariant ${JSON.stringify(name)} for ${called} expired at ${timestamp(expires_at)}, so it no longer counts.`;
          return finding('expired_exception', message, policy);
        }),
    ),
  ];
}
