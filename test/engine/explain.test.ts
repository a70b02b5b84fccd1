import test from 'ava';
import fc from 'fast-check';
import { atOnce } from '../../src/base/turns/slices.ts';
import { compile } from '../../src/engine/compile/compile.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, fittingNames, fittingPatterns, loadPolicyModule } from '../../src/engine/engine.ts';
import { explain, type Misfit, patternsToTry, type Question, readingsInSteps } from '../../src/engine/explain.ts';
import { matcher, world } from './arbitraries.ts';
import { type Answer, decide, decideTarget } from './oracle.ts';
import { answerOf, policyWith } from './support.ts';

const REQUESTS = 20;
const RUNS = Number(process.env['EXPLAIN_RUNS'] ?? 300);

const modules = loadPolicyModule();

async function explained(policies: readonly Policy[], question: Question) {
  const module = await modules;
  const engine = await createEngine({ module, policies, revision: 1 });
  const readings = atOnce(readingsInSteps(policies, engine.compiled.document.policies, question));
  const name = question.object?.resource_name ?? '';
  return explain(readings, await fittingPatterns(module, patternsToTry(readings), name));
}

test('the explanation names the policy that the engine names, and why each earlier policy does not match', async (t) => {
  t.timeout(120_000 + RUNS * 300);
  const module = await modules;
  const misfits = new Map<Misfit, number>();
  let matched = 0;
  await fc.assert(
    fc.asyncProperty(world({ maxPolicies: 10, requests: REQUESTS }), async ({ policies, requests, patterns }) => {
      const matches = matcher(patterns);
      const engine = await createEngine({ module, policies, revision: 1 });
      const read = engine.compiled.document.policies;
      for (const { principal, target: targetId, object } of requests) {
        for (const question of [
          { principal, targetId, object },
          { principal, targetId, object: null },
        ]) {
          const readings = atOnce(readingsInSteps(policies, read, question));
          const fitting = await fittingPatterns(module, patternsToTry(readings), question.object?.resource_name ?? '');
          const { policy, passedOver } = explain(readings, fitting);
          const decision =
            question.object === null
              ? engine.decideTarget(principal, targetId)
              : engine.decide(principal, targetId, question.object);
          const found: Answer = { effect: policy?.effect ?? 'deny', policyId: policy?.id ?? null };
          same(found, answerOf(decision), question);
          // By itself the policy does not match. If the named member and those after it are made to match, it matches.
          for (const { policy: passed, misfit } of passedOver) {
            misfits.set(misfit, (misfits.get(misfit) ?? 0) + 1);
            const alone = (over: Partial<Policy>): Answer => {
              const set = [{ ...passed, ...over }];
              return question.object === null
                ? decideTarget(set, principal, targetId)
                : decide(set, principal, targetId, question.object, matches);
            };
            same(alone({}), { effect: 'deny', policyId: null }, { passed, misfit, question });
            same(alone(MENDED[misfit]), { effect: passed.effect, policyId: passed.id }, { passed, misfit, question });
          }
          if (policy !== null) matched++;
        }
      }
    }),
    { numRuns: RUNS },
  );
  t.log(`${RUNS * REQUESTS * 2} questions, ${matched} decided by a policy; passed over: ${JSON.stringify([...misfits])}`);
  t.true(matched > RUNS);
  for (const misfit of ['enabled', 'target', 'resource_type', 'subject', 'pattern'] as const) {
    t.true((misfits.get(misfit) ?? 0) > RUNS / 3, misfit);
  }
});

/** The member itself and those that come after it, as wide as can be: what came before must have fitted already. */
const FITS = {
  resource_pattern: null,
  subjects: [{ id: 's', subject_type: 'everyone', subject_value: null }],
  resource_type: 'all',
  target_id: null,
  enabled: true,
} as const satisfies Partial<Policy>;
const from = (...members: (keyof typeof FITS)[]): Partial<Policy> =>
  Object.fromEntries(members.map((member) => [member, FITS[member]]));
const MENDED: Readonly<Record<Misfit, Partial<Policy>>> = {
  pattern: from('resource_pattern'),
  subject: from('resource_pattern', 'subjects'),
  resource_type: from('resource_pattern', 'subjects', 'resource_type'),
  target: from('resource_pattern', 'subjects', 'resource_type', 'target_id'),
  enabled: FITS,
  unreadable: FITS,
};

function same(a: Answer, b: Answer, about: object): void {
  if (JSON.stringify(a) !== JSON.stringify(b)) {
    throw new Error(`${JSON.stringify(a)}, not ${JSON.stringify(b)}: ${JSON.stringify(about)}`);
  }
}

const principal = { sub: 'u', role: 'dev', groups: ['a'] };
const tool = (resource_name: string) => ({ resource_type: 'tool', resource_name }) as const;

test('the explanation names the first member that does not match', async (t) => {
  const nobody = {
    subjects: [],
    resource_pattern: '^no$',
    resource_type: 'prompt',
    target_id: 'elsewhere',
    enabled: false,
  } as const;
  const policies = [
    policyWith({ id: 'a', priority: 9, ...nobody }),
    policyWith({ id: 'b', priority: 8, ...nobody, enabled: true }),
    policyWith({ id: 'c', priority: 7, ...nobody, enabled: true, target_id: null }),
    policyWith({ id: 'd', priority: 6, ...nobody, enabled: true, target_id: null, resource_type: 'all' }),
    policyWith({ id: 'e', priority: 5, resource_pattern: '^no$' }),
    policyWith({ id: 'f', priority: 4 }),
    policyWith({ id: 'g', priority: 3 }),
  ];
  const { policy, passedOver } = await explained(policies, { principal, targetId: 't', object: tool('echo') });
  t.is(policy?.id, 'f');
  t.deepEqual(
    passedOver.map(({ policy: { id }, misfit }) => `${id} ${misfit}`),
    ['a enabled', 'b target', 'c resource_type', 'd subject', 'e pattern'],
  );
});

test('a question of many groups about policies of many groups is answered in short steps', (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    ...{ id: `s${n}`, subject_type: 'group' as const, subject_value: `g${n}` },
  }));
  const policies = ['a', 'b', 'c'].map((id) => policyWith({ id, subjects }));
  const { document } = compile(policies, { checkPattern: () => null });
  let looks = 0;
  const groups = new Proxy(
    Array.from({ length: 1_000 }, (_, n) => `other${n}`),
    {
      get(target, member) {
        looks++;
        return Reflect.get(target, member) as unknown;
      },
    },
  );
  const question = { principal: { ...principal, groups }, targetId: 't', object: tool('echo') };
  const steps = readingsInSteps(policies, document.policies, question);
  t.is([...steps].length, policies.length);
  t.true(looks < 3_000, 'each group is looked at once, with its place and the length of the list');
  groups[0] = 'g999';
  t.true(atOnce(readingsInSteps(policies, document.policies, question)).every(({ misfit }) => misfit === null));
});

test('an unreadable allow grants nothing, and an unreadable deny covers as much as possible', async (t) => {
  const policies = [
    policyWith({ id: 'a', priority: 2, resource_pattern: '(' }),
    policyWith({ id: 'b', priority: 1, resource_pattern: '(', effect: 'deny' }),
  ];
  const { policy, passedOver } = await explained(policies, { principal, targetId: 't', object: tool('echo') });
  t.is(policy?.id, 'b');
  t.deepEqual(
    passedOver.map(({ policy: { id }, misfit }) => `${id} ${misfit}`),
    ['a unreadable'],
  );
});

test('all patterns are searched, even if there are more than one instance may hold', async (t) => {
  const module = await modules;
  const patterns = Array.from({ length: 250 }, (_, i) => `^x[${i % 10}]y*${i}$`);
  const fitting = await fittingPatterns(module, patterns, 'x7yy207');
  t.deepEqual([...fitting], ['^x[7]y*207$']);
});

test('the names that a pattern matches are those for which a policy with this pattern decides', async (t) => {
  const module = await modules;
  const few = ['a', 'b', 'ab', 'é', '😀', 'a\u0000b', '\ud800', `${'x'.repeat(2_000)}y`];
  const names = [...few, ...Array.from({ length: 300 }, (_, at) => `n${at}`)];
  for (const resource_pattern of ['a', '^.$', '^n1', '[^a]', '(x{20}){30}y$', '(?P<b>b)$', '^n[0-9]?7$']) {
    const policies = [policyWith({ id: 'p', resource_type: 'tool', resource_pattern })];
    const engine = await createEngine({ module, policies, revision: 1 });
    const decided = names.filter(
      (resource_name) =>
        engine.decide({ sub: 's', role: 'r', groups: [] }, 't', { resource_type: 'tool', resource_name }).effect === 'allow',
    );
    t.deepEqual([...(await fittingNames(module, resource_pattern, names))], decided, resource_pattern);
    t.not(decided.length, 0, resource_pattern);
  }
});

/** The module, and how often it has been asked. */
async function counted() {
  const module = await modules;
  const count = { asked: 0 };
  const instantiate: typeof module.instantiate = () => {
    const bare = module.instantiate();
    const run = (context: number): number => {
      count.asked++;
      return bare.exports.eval(context);
    };
    return { ...bare, exports: { ...bare.exports, eval: run } };
  };
  return { module: { ...module, instantiate }, count };
}

test('expensive patterns and long names are tested one by one, and others together', async (t) => {
  const { module, count } = await counted();
  const many = (textOf: (at: number) => string): string[] => Array.from({ length: 98 }, (_, at) => textOf(at));
  async function asksForPatterns(patternOf: (at: number) => string): Promise<number> {
    count.asked = 0;
    await fittingPatterns(module, many(patternOf), 'x');
    return count.asked;
  }
  async function asksForNames(pattern: string, nameOf: (at: number) => string): Promise<number> {
    count.asked = 0;
    await fittingNames(module, pattern, many(nameOf));
    return count.asked;
  }
  t.is(await asksForPatterns((at) => `^srv${at}_[^a]{168}z`), 98);
  t.true((await asksForPatterns((at) => `^srv${at}_[0-9]z`)) < 10);
  const long = (at: number): string => `${at}${'a'.repeat(2_000)}`;
  t.is(await asksForNames('a[ab]{9}c', long), 98);
  t.true((await asksForNames('a[ab]', long)) < 12);
  t.is(await asksForNames('a[ab]', (at) => `x${at}`), 1);
});
