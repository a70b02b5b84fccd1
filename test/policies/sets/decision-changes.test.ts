/** Changed decisions of a plan and between two revisions, over REST. Decisions of the gateway confirm them. */
import test from 'ava';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { policyBody } from '../policies.ts';
import { addTarget, type ChangeJson, type Files, file, type PlanAnswer, type ProblemAnswer, policySets } from '../sets.ts';

interface Decided {
  readonly effect: string;
  readonly policy: { readonly id: string | null; readonly name: string; readonly file: string | null } | null;
}
interface Flip {
  readonly principal: { readonly sub: string; readonly role: string; readonly groups: readonly string[] };
  readonly subjects: readonly { readonly subject_type: string; readonly subject_value: string }[];
  readonly target: string;
  readonly resource_type: string | null;
  readonly resource_name: string | null;
  readonly before: Decided;
  readonly after: Decided;
}
interface Compared {
  readonly verdict: string;
  readonly changes: readonly (ChangeJson & { readonly flips: readonly Flip[] | null })[];
}
type Planned = Omit<PlanAnswer, 'changes'> & Compared;

const group = (subject_value: string) => ({ subjects: [{ subject_type: 'group' as const, subject_value }] });
const flipsOf = ({ changes }: Compared) =>
  Object.fromEntries(
    changes.map(({ name, flips }) => [name, flips?.map(({ after, resource_name }) => `${after.effect} ${resource_name}`)]),
  );

eachEngine(test.serial, 'a plan says which decisions change, and the gateway then decides that way', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call, apply, revision, policies } = policySets(gateway, admin.token);
  await addTarget(gateway, admin.token, 'everything');
  const plan = async (files: Files, more: object = {}): Promise<Planned> => {
    const { body } = await call<Planned>(200, 'POST', '/plan', { files, ...more });
    const flips = body.changes.flatMap((change) => change.flips ?? []);
    const requests = flips.map(({ principal, target, resource_type, resource_name }) => ({
      ...{ principal, target },
      ...(resource_type === null ? {} : { resource_type, resource_name }),
    }));
    if (requests.length === 0) return body;
    const { body: simulated } = await call<{ results: { now: Decided; would_be: Decided }[] }>(200, 'POST', '/simulate', {
      ...{ files, ...more, requests },
    });
    const answers = ({ effect, policy }: Decided) => ({ effect, policy });
    t.deepEqual(
      flips.map(({ before, after }) => ({ before: answers(before), after: answers(after) })),
      simulated.results.map(({ now, would_be }) => ({ before: answers(now), after: answers(would_be) })),
    );
    return body;
  };
  const start: Files = {
    'read.yaml': file({ name: 'Read', target: 'everything', resource_pattern: '^(read|list)$', ...group('analysts') }),
    'wide.yaml': file({ name: 'Wide', resource_pattern: '^x', ...group('testers') }),
  };
  const first = await plan(start);
  t.is(first.verdict, 'looser');
  t.deepEqual(flipsOf(first), { Read: ['allow read'], Wide: ['allow x'] });
  const [read] = first.changes;
  t.deepEqual(read?.flips, [
    {
      principal: { sub: 'somebody', role: 'some-role', groups: ['analysts'] },
      subjects: [{ subject_type: 'group', subject_value: 'analysts' }],
      target: 'everything',
      resource_type: 'tool',
      resource_name: 'read',
      is_template: false,
      before: { effect: 'deny', policy: null },
      after: { effect: 'allow', policy: { id: null, name: 'Read', priority: 10, file: 'read.yaml' } as Decided['policy'] },
    },
  ]);
  t.is(first.changes[1]?.flips?.[0]?.target, 'everything', 'the one that there is');
  t.false('verdict' in (await apply(start)));
  t.like(await plan(start), { verdict: 'equal', changes: [] });

  const cases: readonly (readonly [verdict: string, flips: object, files: Files, more?: object])[] = [
    [
      'equal',
      { Renamed: [] },
      {
        ...start,
        'read.yaml': file({ name: 'Renamed', target: 'everything', resource_pattern: '^(list|read)$', ...group('analysts') }),
      },
    ],
    [
      'stricter',
      { No: ['deny list'] },
      { ...start, 'no.yaml': file({ name: 'No', effect: 'deny', priority: 11, resource_pattern: '^list$' }) },
    ],
    ['equal', { No: [] }, { ...start, 'no.yaml': file({ name: 'No', effect: 'deny', priority: 9, resource_pattern: '^list$' }) }],
    ['stricter', { Wide: ['deny x'] }, { 'read.yaml': start['read.yaml'] ?? '' }, { prune: true }],
    [
      'incomparable',
      { Read: ['allow write', 'deny list'] },
      {
        ...start,
        'read.yaml': file({ name: 'Read', target: 'everything', resource_pattern: '^(read|write)$', ...group('analysts') }),
      },
    ],
    [
      'stricter',
      { Wide: ['deny x'] },
      { ...start, 'wide.yaml': file({ name: 'Wide', resource_pattern: '^x', enabled: false, ...group('testers') }) },
    ],
  ];
  for (const [verdict, flips, files, more] of cases) {
    const planned = await plan(files, more);
    t.is(planned.verdict, verdict, JSON.stringify(flips));
    t.deepEqual(flipsOf(planned), flips);
  }
  t.is(await revision(), 1);

  // Comparisons of revisions show the policies of that time, with their ids.
  const [one] = (await policies()).filter(({ name }) => name === 'Read');
  await call(200, 'PUT', `/${one?.id}?override=true`, { resource_pattern: '^read$', description: 'less' });
  await call(201, 'POST', '', policyBody({ name: 'By hand', resource_pattern: '^read$' }));
  const compare = async (query: string) =>
    (await call<Compared & { from: number; to: number }>(200, 'GET', `/compare?${query}`)).body;
  t.like(await compare('from=1&to=2'), { from: 1, to: 2, verdict: 'stricter' });
  t.like(await compare('from=2&to=1'), { verdict: 'looser' });
  const both = await compare('from=1');
  t.like(both, { from: 1, to: 3, verdict: 'incomparable' });
  t.deepEqual(flipsOf(both), { 'By hand': ['allow read'], Read: ['deny list'] });
  t.deepEqual(
    both.changes.map(({ policy_id, action }) => [action, policy_id === one?.id]),
    [
      ['create', false],
      ['update', true],
    ],
  );
  t.is(both.changes[1]?.flips?.[0]?.before.policy?.id, one?.id);
  t.like(await compare('from=3'), { verdict: 'equal', changes: [] });
  t.is((await compare('from=0&to=3')).verdict, 'looser');
  for (const [status, query, code] of [
    [400, '', 'invalid_request'],
    [400, 'to=1', 'invalid_request'],
    [400, 'from=one', 'invalid_request'],
    [400, 'from=1&from=2', 'invalid_request'],
    [400, 'from=1&what=2', 'invalid_request'],
    [404, 'from=4', 'not_found'],
    [404, 'from=1&to=4', 'not_found'],
  ] as const) {
    t.is((await call<ProblemAnswer>(status, 'GET', `/compare?${query}`)).body.code, code, query);
  }
  const user = await person(gateway, 'user@example.com');
  await gateway.rest(403, 'GET', '/api/policies/compare?from=1', { token: user.token });
});

test.serial('a plan of very many changes lets other work run, and says what it has not searched', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, admin.token);
  const files = Object.fromEntries(
    Array.from({ length: 1_500 }, (_, i) => [`p${i}.yaml`, file({ name: `P${i}`, resource_pattern: `^tool_${i}$` })]),
  );
  const planned = call<Planned>(200, 'POST', '/plan', { files });
  let turns = 0;
  let done = false;
  planned.finally(() => (done = true)).catch(() => undefined);
  while (!done) {
    await gateway.rest(200, 'GET', '/api/status', { token: admin.token });
    turns++;
  }
  const { verdict, changes } = (await planned).body;
  t.is(verdict, 'looser');
  t.is(changes.filter(({ flips }) => flips?.length === 1).length, 1_000);
  t.is(changes.filter(({ flips }) => flips === null).length, 500);
  t.true(turns > 3, `${turns} turns`);
});
