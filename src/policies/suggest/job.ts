/** Makes a suggestion from what the audit log says, and proves it. Runs in the policy thread. */
import { AppError } from '../../base/errors.ts';
import { inSlices } from '../../base/turns/slices.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Engine } from '../../engine/decision.ts';
import { readInOrder } from '../analysis/requests.ts';
import type { Progress } from '../analysis/search.ts';
import { fileNames, managedAs } from '../files/file.ts';
import { type PolicyRef, policyRef } from '../files/test-run.ts';
import { decisionChanges } from '../sets/decision-changes.ts';
import type { PolicyChange } from '../sets/plan.ts';
import { changesJson, withFlips } from '../sets/plan-json.ts';
import { ANY, type PlanParts, planOn, readFiles, type SetState } from '../sets/planning.ts';
import { fileOfProposed, filesOfRest, type Window } from './files.ts';
import type { Need } from './needs.ts';
import { type Claim, proveGrants, proveLeast } from './proof.ts';
import {
  type GrantOptions,
  type LeastOptions,
  type LeftOut,
  MAX_PROPOSED,
  type Proposed,
  proposeGrants,
  proposeLeast,
} from './proposal.ts';

export interface SuggestTask {
  readonly asked: GrantOptions | Pick<LeastOptions, 'role' | 'minCount'>;
  readonly owner: string;
  readonly window: Window;
}

export interface Suggestion {
  readonly verdict: Awaited<ReturnType<typeof decisionChanges>>['verdict'];
  /** Texts by name. */
  readonly files: Readonly<Record<string, string>>;
  readonly prune: boolean;
  readonly adopt: boolean;
  readonly suggested: readonly (Omit<Proposed, 'outranks'> & {
    readonly file: string;
    readonly outranks: readonly PolicyRef[];
  })[];
  readonly leftOut: readonly LeftOut[];
  readonly inexpressible: readonly string[];
  readonly changes: readonly PolicyChange[];
  /** The changes in the form of the API. */
  readonly changesJson: ReturnType<typeof withFlips>;
}

export interface SuggestParts {
  readonly made: PlanParts;
  readonly engineOf: (policies: readonly StoredPolicy[]) => Promise<Engine>;
  readonly say: (progress: Progress | undefined) => void;
}

/** Returns the suggestion and the policies that it would make. Throws AppError if the suggestion cannot be proved. */
export async function suggest(
  { asked, owner, window }: SuggestTask,
  state: SetState,
  needs: readonly Need[],
  { made, engineOf, say }: SuggestParts,
): Promise<{ readonly suggestion: Suggestion; readonly candidate: readonly StoredPolicy[] }> {
  const { policies, targets } = state;
  const numbered = needs.map((need, at) => ({ ...need, at }));
  const { proposed, leftOut, rest, inexpressible } =
    'role' in asked
      ? proposeLeast(numbered, policies, { ...asked, owner })
      : { ...proposeGrants(numbered, await inSlices(readInOrder(policies)), asked), rest: null, inexpressible: [] };
  // Grants have this bound already. Here, less than everything would take away what the role uses.
  if (proposed.length > MAX_PROPOSED) {
    throw new AppError(
      'too_large',
      `The suggestion would need ${proposed.length} policies, more than the limit of ${MAX_PROPOSED}. Take a shorter time, or leave out what was rarely asked for (min_count).`,
    );
  }
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const texts = rest === null ? new Map<string, string>() : filesOfRest(policies, rest, owner, targets);
  const taken = new Set(rest === null ? fileNames(policies, owner).values() : texts.keys());
  const files = proposed.map((each) => {
    const count = each.needs.reduce((sum, at) => sum + (needs[at]?.count ?? 0), 0);
    const { file, text } = fileOfProposed(each, names.get(each.target_id) ?? '', count, window, taken);
    taken.add(file);
    texts.set(file, text);
    return file;
  });

  const replaces = rest !== null;
  const request = { files: await readFiles(texts), owner, prune: replaces, adopt: replaces, ...ANY };
  const { changes, candidate } = await planOn(state, request, made);
  const byFile = new Map(candidate.map((policy) => [policy.managed_as, policy]));
  const created = files.map((file) => byFile.get(managedAs(owner, file)));
  const engine = await engineOf(candidate);
  const stored = new Set(policies.map(({ id }) => id));
  const isStored = (id: string): boolean => stored.has(id);
  const decided = await decisionChanges(policies, candidate, targets, isStored, say);
  const claim: Claim = { before: policies, after: candidate, proposed, created };
  if ('role' in asked) await proveLeast(claim, decided, asked.role, needs, engine, say);
  else if (proposed.length > 0) await proveGrants(claim, decided, targets, needs, engine, say);

  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  const suggested = proposed.map((each, i) => ({
    ...each,
    file: files[i] ?? '',
    outranks: each.outranks.flatMap((id) => {
      const policy = byId.get(id);
      return policy === undefined ? [] : [policyRef(policy, isStored)];
    }),
  }));
  return {
    candidate,
    suggestion: {
      verdict: decided.verdict,
      files: Object.fromEntries(texts),
      ...{ prune: replaces, adopt: replaces },
      ...{ suggested, leftOut, inexpressible, changes },
      changesJson: withFlips(changesJson(changes, targets), decided.flipsOf).map((change) =>
        change.action === 'create' ? { ...change, policy_id: null } : change,
      ),
    },
  };
}
