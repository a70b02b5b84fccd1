/** Runs policy tests with an engine. */
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Engine } from '../../engine/decision.ts';
import { type Answered, decideEach } from '../questions.ts';
import type { Expectation, TestCase } from './test-file.ts';
import type { PolicyFileError } from './yaml.ts';

/** A policy with what people need to find it. */
export interface PolicyRef {
  /** null: the policy is not created yet. */
  readonly id: string | null;
  readonly name: string;
  readonly priority: number;
  /** null: the policy belongs to no file. */
  readonly file: string | null;
}

export interface TestResult extends Omit<TestCase, 'facts' | 'object' | 'expected'> {
  readonly passed: boolean;
  readonly expected: Expectation;
  readonly actual: Omit<Answered, 'policy'> & { readonly policy: PolicyRef | null };
}

export interface TestReport {
  readonly passed: number;
  readonly failed: number;
  readonly results: readonly TestResult[];
  readonly coverage: {
    /** The number of enabled policies. */
    readonly policies: number;
    /** The number of policies that decided at least one case. */
    readonly decided: number;
    /** Rounded down to tenths; 100 if there are no policies. */
    readonly percent: number;
    readonly undecided: readonly PolicyRef[];
  };
}

export interface TestedSet {
  readonly engine: Engine;
  readonly policies: readonly StoredPolicy[];
  readonly targets: readonly { readonly id: string; readonly name: string }[];
  /** Whether a policy with this id is stored. */
  readonly isStored: (id: string) => boolean;
  /** Whether the coverage counts a policy. Default: it counts all. */
  readonly isCovered?: (id: string) => boolean;
}

export async function runTests(
  cases: readonly TestCase[],
  { engine, policies, targets, isStored, isCovered = () => true }: TestedSet,
): Promise<TestReport | { readonly errors: readonly PolicyFileError[] }> {
  const targetIds = new Map(targets.map(({ id, name }) => [name, id]));
  const names = new Set(policies.flatMap(callings));
  const errors = new Map<string, PolicyFileError>();
  for (const { file, line, column, target, expected } of cases) {
    const refuse = (message: string): void => {
      errors.set(JSON.stringify([file, line, message]), { file, line, column, message });
    };
    if (!targetIds.has(target)) refuse(`no target has the name ${target}`);
    if (typeof expected.policy === 'string' && !names.has(expected.policy)) {
      refuse(`no policy and no policy file has the name ${JSON.stringify(expected.policy)}`);
    }
  }
  if (errors.size > 0) return { errors: [...errors.values()] };

  const questions = cases.map(({ facts, target, object }) => ({
    principal: facts,
    targetId: targetIds.get(target) ?? '',
    object,
  }));
  const answers = await decideEach(engine, questions);
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  const deciders = new Set<string>();
  const results = cases.map(({ facts: _, object: __, expected, ...about }, i): TestResult => {
    const { policy = null, ...answer } = answers[i] ?? { effect: 'deny', reason: 'error' };
    const decider = policy === null ? undefined : byId.get(policy.id);
    if (decider !== undefined) deciders.add(decider.id);
    const passed = answer.reason !== 'error' && answer.effect === expected.effect && isBy(decider, expected);
    return { ...about, passed, expected, actual: { ...answer, policy: decider ? policyRef(decider, isStored) : null } };
  });
  const passed = results.filter((result) => result.passed).length;
  const enabled = policies.filter(({ id, enabled }) => enabled && isCovered(id));
  const undecided = enabled.filter(({ id }) => !deciders.has(id));
  const decided = enabled.length - undecided.length;
  return {
    passed,
    failed: results.length - passed,
    results,
    coverage: {
      policies: enabled.length,
      decided,
      percent: enabled.length === 0 ? 100 : Math.floor((1000 * decided) / enabled.length) / 10,
      undecided: undecided.map((policy) => policyRef(policy, isStored)),
    },
  };
}

const slugOf = ({ managed_as }: StoredPolicy): string | null => managed_as?.slice(managed_as.indexOf('/') + 1) ?? null;

/** Returns the names that tests may use for a policy. */
function callings(policy: StoredPolicy): string[] {
  const slug = slugOf(policy);
  return slug === null ? [policy.name] : [policy.name, slug];
}

function isBy(decider: StoredPolicy | undefined, { policy }: Expectation): boolean {
  if (policy === undefined) return true;
  return policy === null ? decider === undefined : decider !== undefined && callings(decider).includes(policy);
}

export function policyRef(policy: StoredPolicy, isStored: (id: string) => boolean): PolicyRef {
  const slug = slugOf(policy);
  const { id, name, priority } = policy;
  return { id: isStored(id) ? id : null, name, priority, file: slug === null ? null : `${slug}.yaml` };
}

/** Returns one sentence. */
export function failureText({ expected, actual }: Pick<TestResult, 'expected' | 'actual'>): string {
  const by = (policy: string | null | undefined): string =>
    policy === undefined ? '' : policy === null ? ' by no policy' : ` by ${JSON.stringify(policy)}`;
  const got = actual.policy === null ? ` (${actual.reason})` : by(actual.policy.name);
  return `expected ${expected.effect}${by(expected.policy)}, got ${actual.effect}${got}`;
}
