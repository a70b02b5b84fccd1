/** Suggestions on random sets and logs allow exactly what they say, by the oracle and by the engine. */
import test from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import type { RecordedDecision } from '../../../src/audit/search/recorded-store.ts';
import { inSlices } from '../../../src/base/turns/slices.ts';
import { type Policy, RESOURCE_TYPES, type StoredPolicy } from '../../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../../src/engine/decision.ts';
import { createEngine, type LoadedEngine, loadPolicyModule } from '../../../src/engine/engine.ts';
import { canBeAsked } from '../../../src/policies/analysis/names.ts';
import { createNameSearch } from '../../../src/policies/limits/limits.ts';
import { madeForRequest } from '../../../src/policies/sets/planning.ts';
import { createSetCheck } from '../../../src/policies/sets/set-check.ts';
import { type Suggestion, type SuggestTask, suggest } from '../../../src/policies/suggest/job.ts';
import { createDeniedNeeds, createSameCheck, createUsedNeeds } from '../../../src/policies/suggest/needs.ts';
import { withoutRole } from '../../../src/policies/suggest/proposal.ts';
import { matcher, type World, world } from '../../engine/arbitraries.ts';
import { decide, decideTarget, type Matches } from '../../engine/oracle.ts';

/** Each run is one policy set with its log. */
const RUNS = Number(process.env['SUGGEST_RUNS'] ?? 100);
const { SUGGEST_SEED: SEED } = process.env;
const options = { numRuns: RUNS, ...(SEED === undefined ? {} : { seed: Number(SEED) }) };
const module = await loadPolicyModule();

/** Files name users by ids, and targets by names of a certain form. */
const USER: Readonly<Record<string, string>> = {
  dev: '00000000-0000-7000-8000-000000000001',
  ['__proto__']: '00000000-0000-7000-8000-000000000002',
  Dev: '00000000-0000-7000-8000-000000000003',
};
const TARGETS = [
  { id: 't1', name: 't1' },
  { id: '__proto__', name: 'proto' },
  { id: 't2', name: 't2' },
];
const ROLES = ['dev', '__proto__', 'Dev', 'nobody'];
const CALLERS: readonly PrincipalFacts[] = Object.values(USER).flatMap((sub) =>
  ROLES.flatMap((role) => [[], ['dev'], ['Dev', '__proto__']].map((groups) => ({ sub, role, groups }))),
);
const OWNERS = [null, 'default/', 'default/', 'other/'];

interface Asked {
  readonly principal: PrincipalFacts;
  readonly target: string;
  readonly object: NamedObject | null;
}

const stored = ({ policies }: World): StoredPolicy[] =>
  policies.map((policy, i) => {
    const owner = OWNERS[i % OWNERS.length];
    return {
      ...policy,
      managed_as: owner == null ? null : `${owner}file-${i}`,
      drift_since: null,
      subjects: policy.subjects.map((subject) =>
        subject.subject_type === 'user' ? { ...subject, subject_value: USER[subject.subject_value ?? ''] ?? null } : subject,
      ),
    };
  });

const askedOf = ({ requests }: World): Asked[] =>
  requests.flatMap(({ principal, target, object }, i): Asked[] => {
    const known = { ...principal, sub: USER[principal.sub] ?? '' };
    if (i % 5 === 4) return [{ principal: known, target, object: null }];
    return canBeAsked(object.resource_type, object.resource_name) ? [{ principal: known, target, object }] : [];
  });

const record = ({ principal, target, object }: Asked, effect: 'allow' | 'deny'): RecordedDecision => ({
  ...{ id: uuidv7(), created_at: 1, user_id: principal.sub, user_email: 'a@example.com', user_role: principal.role },
  ...{ user_groups: JSON.stringify(principal.groups), target_id: target, target_name: target, effect, reason: 'default' },
  ...{ resource_type: object?.resource_type ?? null, resource_name: object?.resource_name ?? null },
  ...{ policy_id: null, policy_name: null },
});

const oracle = (policies: readonly Policy[], { principal, target, object }: Asked, matches: Matches) =>
  object === null ? decideTarget(policies, principal, target) : decide(policies, principal, target, object, matches);

const byEngine = (engine: LoadedEngine, { principal, target, object }: Asked) =>
  object === null ? engine.decideTarget(principal, target) : engine.decide(principal, target, object);

/** Reads the generated patterns as JavaScript does, and those of the suggestion as the names that it announces. */
function matchesOf({ patterns }: World, { suggested }: Suggestion): Matches {
  const generated = matcher(patterns);
  const announced = new Map(suggested.map(({ resource_pattern, names }) => [resource_pattern, names]));
  return (pattern, name) => announced.get(pattern)?.includes(name) ?? generated(pattern, name);
}

const has = ({ sub, role, groups }: PrincipalFacts, subject_type: string, value: string): boolean =>
  subject_type === 'user' ? value === sub : subject_type === 'role' ? value === role : groups.includes(value);

type Announced = Suggestion['suggested'][number];
const isAnnounced = (each: Announced, { principal, target, object }: Asked): boolean =>
  has(principal, each.subject_type, each.subject_value) &&
  each.target_id === target &&
  (object === null || (each.resource_type === object.resource_type && each.names.includes(object.resource_name)));

/** The recorded requests, and others that are near them. */
function nearby(log: readonly Asked[], random: (below: number) => number): Asked[] {
  const names = new Set(log.flatMap(({ object }) => (object === null ? [] : [object.resource_name])));
  const all = [...names].flatMap((name) => [name, `${name}x`, `x${name}`, name.slice(1), name.slice(0, -1), name.toUpperCase()]);
  const asked = [...new Set([...all, 'x', '.'])].flatMap((resource_name) =>
    RESOURCE_TYPES.flatMap((resource_type) =>
      canBeAsked(resource_type, resource_name)
        ? TARGETS.map(({ id }) => ({
            principal: CALLERS[random(CALLERS.length)] ?? { sub: '', role: '', groups: [] },
            target: id,
            object: { resource_type, resource_name },
          }))
        : [],
    ),
  );
  const others = log.flatMap((each) => CALLERS.map((principal) => ({ ...each, principal })));
  const use = CALLERS.flatMap((principal) => TARGETS.map(({ id }) => ({ principal, target: id, object: null })));
  return [...log, ...others, ...asked, ...use];
}

function check(holds: boolean, what: string, ...details: unknown[]): void {
  if (!holds) throw new Error(`${what} ${details.map((detail) => JSON.stringify(detail)).join('; ')}`);
}

const build = (policies: readonly Policy[]): Promise<LoadedEngine> => createEngine({ module, policies, revision: 1 });
const position = { sequence: 1, revision: 1 } as never;
const window = { from: 0, to: 1 };
let ids = 0;

const suggestOn = (policies: readonly StoredPolicy[], asked: SuggestTask['asked'], needs: Parameters<typeof suggest>[2]) =>
  suggest(
    { asked, owner: 'default', window },
    { position, policies, targets: TARGETS, limits: new Map(), history: { revision: 1, deleted: new Map() } },
    needs,
    {
      // Ids of policies decide ties.
      made: {
        ...madeForRequest({ newId: () => `${'azm'[ids % 3]}${ids++}`, now: () => 0 }),
        run: inSlices,
        checkSet: createSetCheck(module.checkPattern),
        findNames: createNameSearch(),
      },
      engineOf: build,
      say: () => {},
    },
  );

const drive = (steps: Generator<undefined, void>): Promise<void> => inSlices(steps);
const known = new Set(TARGETS.map(({ id }) => id));
const NO_LISTS = new Map<string, readonly string[]>();

async function hold<T>(property: fc.IAsyncProperty<T>): Promise<void> {
  const { failed, errorInstance, seed } = await fc.check(property, options);
  if (failed) throw new Error(`SUGGEST_SEED=${seed}: ${errorInstance instanceof Error ? errorInstance.stack : errorInstance}`);
}

const worlds = world({ maxPolicies: 9, requests: 25 });

test('a suggestion for denied requests allows these, and further only what it announces', async (t) => {
  t.timeout(120_000 + RUNS * 400);
  const counts = { suggested: 0, use: 0, outranks: 0, denied: 0, highest: 0 };
  const asks = fc.record({
    subject_type: fc.constantFrom('user', 'role', 'group'),
    overDenies: fc.boolean(),
    minCount: fc.constantFrom(1, 1, 1, 2),
  });
  await hold(
    fc.asyncProperty(worlds, asks, fc.infiniteStream(fc.nat()), async (generated, asked, stream) => {
      const policies = stored(generated);
      const log = askedOf(generated);
      const engine = await build(policies);
      const denials = createDeniedNeeds({
        now: engine,
        targets: known,
        isAskedFor: () => true,
        subjectOf: ({ user_id, user_role, user_groups }) =>
          asked.subject_type === 'user'
            ? user_id
            : asked.subject_type === 'role'
              ? user_role
              : user_groups.includes('"dev"')
                ? 'dev'
                : null,
      });
      await drive(denials.take({ decisions: log.map((each) => record(each, 'deny')), lists: [], damaged: 0 }));
      const needs = denials.book.all();
      const { suggestion, candidate } = await suggestOn(policies, asked, needs);
      const matches = matchesOf(generated, suggestion);
      const after = await build(candidate);
      const { suggested, leftOut } = suggestion;
      const details = [asked, suggested, leftOut, policies];

      for (const request of nearby(log, (below) => (stream.next().value ?? 0) % below)) {
        const [was, is] = [oracle(policies, request, matches), oracle(candidate, request, matches)];
        check(byEngine(after, request).effect === is.effect, 'the engine disagrees', request, ...details);
        const fitting = suggested.filter((each) => isAnnounced(each, request));
        if (was.effect === 'allow') check(is.effect === 'allow', 'takes away', request, ...details);
        else if (is.effect === 'allow') check(fitting.length > 0, 'allows more than announced', request, ...details);
        else
          for (const each of fitting) {
            check(was.policyId !== null, 'is announced, but not allowed', request, ...details);
            check(!each.outranks.some(({ id }) => id === was.policyId), 'does not outrank', request, ...details);
          }
        const outranked = is.effect === 'allow' && was.policyId !== null && was.effect === 'deny';
        check(!outranked || asked.overDenies, 'outranks a deny', request, ...details);
        check(
          !outranked || fitting.some(({ outranks }) => outranks.some(({ id }) => id === was.policyId)),
          'does not name the deny',
          request,
          ...details,
        );
      }
      const left = new Set(leftOut.map(({ need }) => need));
      for (const [at, { principal, target_id, resource_type, resource_name }] of needs.entries()) {
        const object = resource_type === null ? null : { resource_type, resource_name: resource_name ?? '' };
        const { effect } = oracle(candidate, { principal, target: target_id, object }, matches);
        check(effect === 'allow' || left.has(at), 'neither allowed nor left out', needs[at], ...details);
        check(
          effect === 'deny' || !left.has(at) || object === null || asked.minCount > 1 || asked.subject_type !== 'user',
          'left out',
          needs[at],
          ...details,
        );
      }
      counts.suggested += suggested.length;
      counts.use += suggested.filter(({ names }) => names.length === 0).length;
      counts.outranks += suggested.filter(({ outranks }) => outranks.length > 0).length;
      counts.denied += leftOut.filter(({ reason }) => reason === 'denied').length;
      counts.highest += leftOut.filter(({ reason }) => reason === 'highest').length;
    }),
  );
  t.log(JSON.stringify(counts));
  const { highest: _, ...frequent } = counts;
  for (const [what, count] of Object.entries(frequent)) t.true(count >= RUNS / 50, `the generators must bring about ${what}`);
});

test('a suggestion for a role takes nothing away that the role used, and gives nobody anything', async (t) => {
  t.timeout(120_000 + RUNS * 400);
  const counts = { suggested: 0, use: 0, stricter: 0, changed: 0, used: 0 };
  const role = 'dev';
  await hold(
    fc.asyncProperty(worlds, fc.infiniteStream(fc.nat()), async (generated, stream) => {
      const policies = stored(generated).map((policy) => ({
        ...policy,
        // Otherwise too little depends on the role.
        subjects: policy.subjects.map((subject) =>
          subject.subject_type === 'everyone' && policy.effect === 'allow'
            ? ({ ...subject, subject_type: 'role', subject_value: role } as const)
            : subject,
        ),
      }));
      const log = askedOf(generated).map((each, i) => (i % 2 === 0 ? { ...each, principal: { ...each.principal, role } } : each));
      const [now, without] = [await build(policies), await build(withoutRole(policies, { role, owner: 'default' }))];
      const uses = createUsedNeeds({ role, now, without, targets: known });
      const decisions = log.map((each) => record(each, 'allow'));
      await drive(uses.take({ decisions, lists: [], damaged: 0 }, NO_LISTS));
      const needs = uses.book.all();
      const { suggestion, candidate } = await suggestOn(policies, { role, minCount: 1 }, needs);
      const matches = matchesOf(generated, suggestion);
      const after = await build(candidate);
      const { suggested, verdict } = suggestion;
      const details = [suggested, needs, policies];

      const same = createSameCheck({ role, now, candidate: after, targets: known, mayLose: () => false });
      await drive(same.take({ decisions, lists: [], damaged: 0 }));
      check(same.counts().flipped === 0 && same.counts().lost === 0, 'a recorded decision flips', ...details);
      const rest = withoutRole(policies, { role, owner: 'default' }, new Set(suggestion.inexpressible));
      for (const request of nearby(log, (below) => (stream.next().value ?? 0) % below)) {
        const [was, is] = [oracle(policies, request, matches), oracle(candidate, request, matches)];
        check(byEngine(after, request).effect === is.effect, 'the engine disagrees', request, ...details);
        check(is.effect === 'deny' || was.effect === 'allow', 'gives access', request, ...details);
        if (request.principal.role !== role) check(is.effect === was.effect, 'changes others', request, ...details);
        const isNarrow =
          oracle(rest, request, matches).effect === 'allow' || suggested.some((each) => isAnnounced(each, request));
        check(is.effect === 'deny' || isNarrow, 'is not the narrowest', request, ...details);
        check(is.effect === was.effect || verdict === 'stricter', 'the verdict', request, ...details);
      }
      for (const request of log.filter(({ principal }) => principal.role === role)) {
        check(
          oracle(candidate, request, matches).effect === oracle(policies, request, matches).effect,
          'flips',
          request,
          ...details,
        );
      }
      counts.suggested += suggested.length;
      counts.use += suggested.filter(({ names }) => names.length === 0).length;
      counts.stricter += verdict === 'stricter' ? 1 : 0;
      counts.changed += suggestion.changes.filter(({ before, after: then }) => before !== null && then?.subjects.length).length;
      counts.used += needs.length;
    }),
  );
  t.log(JSON.stringify(counts));
  for (const [what, count] of Object.entries(counts)) t.true(count >= RUNS / 50, `the generators must bring about ${what}`);
});
