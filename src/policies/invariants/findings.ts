/** What lint says about invariants: which of them the policies break, and which exceptions do not count, or soon will not. Pure. */
import type { Policy } from '../../engine/compile/policy.ts';
import type { Severity } from '../analysis/analyse.ts';
import { timestamp } from '../schema.ts';
import type { Exception, Invariant } from './invariant.ts';
import { type BrokenInvariant, brokenText } from './judge.ts';

export const INVARIANT_SEVERITIES = {
  invariant_broken: 'error',
  expired_exception: 'warning',
  lost_exception: 'warning',
  expiring_exception: 'info',
  undecided: 'info',
} as const satisfies Record<string, Severity>;

export type InvariantCode = keyof typeof INVARIANT_SEVERITIES;

const SOON_MS = 14 * 24 * 60 * 60 * 1000;

export interface InvariantFinding {
  readonly code: InvariantCode;
  readonly severity: Severity;
  readonly message: string;
  /** The id. */
  readonly invariant: string;
  /** The index of the exception; null: the finding is about no exception. */
  readonly exception: number | null;
  /** The policy that breaks the invariant or has the exception; null: it is unknown. */
  readonly policy: string | null;
}

/** `isLost`: whether the policy that an exception names does not exist. */
export function invariantFindings(
  broken: readonly BrokenInvariant[],
  invariants: readonly Invariant[],
  policies: readonly Policy[],
  { now, isLost }: { readonly now: number; readonly isLost: (policy: string) => boolean },
): InvariantFinding[] {
  const names = new Map(policies.map(({ id, name }) => [id, name]));
  const stateOf = ({ policy, expires_at }: Exception): readonly [InvariantCode, string] | null => {
    if (isLost(policy))
      return ['lost_exception', 'does not count, because this policy does not exist. Delete it, or correct its policy.'];
    const when = timestamp(expires_at);
    if (expires_at <= now)
      return ['expired_exception', `expired at ${when}, so it no longer counts. Delete it, or set a later time.`];
    if (expires_at <= now + SOON_MS)
      return ['expiring_exception', `expires at ${when}. Change the policy before that, or set a later time.`];
    return null;
  };
  const finding = (code: InvariantCode, about: Omit<InvariantFinding, 'code' | 'severity'>): InvariantFinding => ({
    ...{ code, severity: INVARIANT_SEVERITIES[code] },
    ...about,
  });
  return [
    ...broken.map((each) => {
      const about = { invariant: each.id, exception: null, policy: each.witness?.policy.id ?? null };
      const text = brokenText(each);
      return each.witness === null
        ? finding('undecided', { ...about, message: `The analysis reached its limits for the invariant ${text}` })
        : finding('invariant_broken', { ...about, message: `The policies break the invariant ${text}` });
    }),
    ...invariants.flatMap(({ id, name, exceptions }) =>
      exceptions.flatMap((exception, i) => {
        const state = stateOf(exception);
        if (state === null) return [];
        const [code, text] = state;
        const called = JSON.stringify(names.get(exception.policy) ?? exception.policy);
        const message = `The exception of the invariant ${JSON.stringify(name)} for ${called} ${text}`;
        return [finding(code, { message, invariant: id, exception: i, policy: exception.policy })];
      }),
    ),
  ];
}
