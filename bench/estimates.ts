/** Compares the estimate of a decision (src/engine/estimate.ts) with its time, for the largest policy sets that the limits allow. */

import type { Policy, PolicySubject } from '../src/engine/compile/policy.ts';
import { checkPolicySet } from '../src/engine/compile/set-limits.ts';
import type { PrincipalFacts } from '../src/engine/decision.ts';
import { createEngine, type PolicyModule } from '../src/engine/engine.ts';
import { median } from './measure.ts';

export interface EstimateFigures {
  readonly family: string;
  readonly policies: number;
  /** Milliseconds of processor time. The first decision compiles regular expressions, which the estimate leaves out. */
  readonly first: number;
  readonly next: number;
  readonly estimate: number;
  /** `next` to the estimate. More than 1 is unsound: the gateway would take a long decision for a shorter one. */
  readonly ratio: number;
}

interface Family {
  readonly family: string;
  readonly pattern: (n: number) => string;
  /** The characters of names. The longer ones are for resources. */
  readonly alphabet: string;
}

const FAMILIES: readonly Family[] = [
  { family: 'texts', pattern: (n) => `/repo-${n}/`, alphabet: '/repo-0123' },
  { family: 'texts that repeat themselves', pattern: (n) => `${'a/'.repeat(60)}${n}`, alphabet: 'a/' },
  { family: 'texts at the beginning', pattern: (n) => `^https://${n}`, alphabet: 'https:/' },
  { family: 'unanchored', pattern: (n) => `a[^/]${n}?%`, alphabet: 'ab/' },
  { family: 'x.*y.*z', pattern: (n) => `a.*b.*c${n}?%`, alphabet: 'abc' },
  { family: 'classes', pattern: (n) => `[a-z]+/[0-9a-f]+${n}?%`, alphabet: 'abf/09' },
  {
    family: 'alternatives',
    pattern: (n) => `(${Array.from({ length: 40 }, (_, i) => `k${i}x`).join('|')})${n}?[%~]`,
    alphabet: 'k0123x',
  },
  { family: 'nested repetitions', pattern: (n) => `(a?b?c?d?){30}${n}?%`, alphabet: 'abcde' },
  { family: 'counted words', pattern: (n) => `[a-z]{1,64}_[a-z]{1,64}${n}?%`, alphabet: 'abc_' },
  { family: 'many states', pattern: (n) => `a[ab]{10}[cd]${n}?%`, alphabet: 'ab' },
  { family: 'hundreds of states', pattern: (n) => `a[ab]{7}[cd]${n}?%`, alphabet: 'ab' },
  { family: 'long counted class', pattern: (n) => `^a[a-z0-9]{1,900}${n}?%`, alphabet: 'ab' },
  { family: 'a/a and a counted dot', pattern: (n) => `^a/a.{1,100}/${n}?%`, alphabet: 'a/' },
  { family: 'case-insensitive words', pattern: (n) => `(?i)(secret|password)[a-z]*${n}?%`, alphabet: 'secrtpawod' },
];

const CALLER: PrincipalFacts = { sub: 'ann', role: 'dev', groups: [] };
const TARGET = 't';
const LONGEST = 2_048;

/** For every target and for one, for everyone and for a role: the most that the limits allow one caller at one target. */
function setOf({ pattern }: Family, count: number): Policy[] {
  const everyone: PolicySubject = { id: 's', subject_type: 'everyone', subject_value: null };
  const role: PolicySubject = { id: 's', subject_type: 'role', subject_value: CALLER.role };
  return [null, TARGET].flatMap((target_id) =>
    Array.from({ length: count }, (_, n): Policy => {
      const id = `${target_id}-${n}`;
      const about = { target_id, resource_type: 'resource' as const, resource_pattern: pattern(n) };
      // A third of the limit is for a role.
      return {
        ...{ id, name: id, description: null, effect: 'deny', priority: 0, enabled: true, created_at: 0, updated_at: 0 },
        ...about,
        subjects: [n % 3 === 0 ? role : everyone],
      };
    }),
  );
}

function largestSet(family: Family): Policy[] {
  let [low, high] = [0, 3_001];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (checkPolicySet(setOf(family, middle)).length === 0) low = middle;
    else high = middle;
  }
  return setOf(family, low);
}

function milliseconds(work: () => unknown): number {
  const began = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(began);
  return (user + system) / 1_000;
}

export async function estimates(module: PolicyModule, rounds: number): Promise<EstimateFigures[]> {
  const figures: EstimateFigures[] = [];
  for (const family of FAMILIES) {
    const policies = largestSet(family);
    const { alphabet } = family;
    // The same names in every run: each begins with the text that the anchored patterns look for.
    let state = 1;
    const name = (): string => {
      let text = family.pattern(0).startsWith('^a/a') ? 'a/a' : family.pattern(0).startsWith('^h') ? 'https://' : 'a';
      while (text.length < LONGEST) {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        text += alphabet[Math.floor((state / 2 ** 32) * alphabet.length)];
      }
      return text;
    };
    const first: number[] = [];
    const next: number[] = [];
    let estimate = 0;
    for (let round = 0; round < rounds; round++) {
      const engine = await createEngine({ module, policies, revision: 1 });
      const decide = (resource_name: string): number =>
        milliseconds(() => {
          const { reason } = engine.decide(CALLER, TARGET, { resource_type: 'resource', resource_name });
          if (reason === 'error') throw new Error('The engine failed');
        });
      const names = Array.from({ length: 6 }, name);
      estimate = engine.estimate(CALLER, TARGET, [{ resource_type: 'resource', resource_name: names[0] ?? '' }]);
      first.push(decide(names[0] ?? ''));
      next.push(median(names.slice(1).map(decide)));
    }
    const [one, other] = [median(first), median(next)];
    figures.push({
      family: family.family,
      policies: policies.length,
      first: one,
      next: other,
      estimate,
      ratio: other / estimate,
    });
  }
  return figures;
}
