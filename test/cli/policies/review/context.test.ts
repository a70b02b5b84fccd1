import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { PolicyFile } from '../../../../src/policies/files/yaml.ts';
import { contextOf, formatContext, type PolicyContext, readContext } from '../../../../src/policies/review/context.ts';
import { policy, policyBody } from '../../../policies/policies.ts';
import { addTarget, type Files, file, policySets } from '../../../policies/sets.ts';
import { apiToken, person, startGateway } from '../../../support/gateway.ts';
import { folder, inProcess, policies, type Ran } from '../../cli.ts';

const run = (environment: Record<string, string>, ...args: string[]): Promise<Ran> =>
  inProcess(environment, (terminal) => policies(args, terminal));

function folderOf(t: ExecutionContext, files: Files): string {
  const dir = folder(t);
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text);
  return dir;
}

const user = (id: string): PolicyFile['subjects'] => [{ subject_type: 'user', subject_value: id }];

async function start(t: ExecutionContext) {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'root.person@example.com');
  const alice = await person(gateway, 'alice.smith@example.com');
  const bob = await person(gateway, 'bob.jones@example.com');
  await addTarget(gateway, admin.token, 'warehouse');
  const rest = policySets(gateway, admin.token);
  const security = {
    'alice-smith-stays-out.yaml': file({
      ...{ name: 'Alice Smith stays out', description: 'alice.smith@example.com left', target: 'warehouse' },
      ...{ effect: 'deny', priority: 100, resource_pattern: '^run_', subjects: user(alice.id) },
    }),
    'contractors.yaml': file({
      ...{ name: 'Contractors', effect: 'deny', priority: 100, resource_pattern: '^exec$' },
      subjects: [
        ...user(alice.id),
        { subject_type: 'group', subject_value: 'contractors' },
        { subject_type: 'group', subject_value: 'a\u202eb' },
      ],
    }),
    'off.yaml': file({ name: 'Off', enabled: false, subjects: user(bob.id) }),
  };
  await rest.apply(security, { owner: 'security' });
  await rest.apply({ 'own.yaml': file({ name: 'Own', subjects: user(bob.id) }) }, { owner: 'payments' });
  const body = policyBody({ name: 'Made by Bob Jones', resource_pattern: '^x$', subjects: [{ subject_type: 'everyone' }] });
  await gateway.rest(201, 'POST', '/api/policies', { token: admin.token, body });
  const environment = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: (await apiToken(gateway, admin)).token };
  const out = join(folder(t), 'context.json');
  const written = await run(environment, 'context', '--owner', 'payments', '--out', out);
  t.is(written.code, 0, written.err);
  return { gateway, admin, alice, bob, environment, out, written, rest };
}

const readJson = (path: string): PolicyContext => JSON.parse(readFileSync(path, 'utf8'));

test.serial('the context has what other owners decide, and nothing that names a person', async (t) => {
  const { gateway, admin, alice, bob, environment, out, written } = await start(t);
  t.regex(written.out, /^wrote .*: 3 policies of other owners at revision 3 \(\d{4}-\d\d-\d\d\)\n$/);
  const text = readFileSync(out, 'utf8');
  const people = [admin, alice, bob].flatMap(({ id, email }) => [id, email, email.split('@')[0] ?? '']);
  const names = [/alice/i, /smith/i, /bob/i, /jones/i, /person/i, /example\.com/];
  for (const name of people) t.false(text.includes(name), name);
  for (const name of names) t.notRegex(text, name);
  const { policies: others, ...rest } = readJson(out);
  t.like(rest, { portcullis_context: 1, owner: 'payments', revision: 3 });
  t.deepEqual(others.map(({ owner, target, effect, priority }) => [owner, target, effect, priority]).sort(), [
    [null, null, 'allow', 10],
    ['security', null, 'deny', 100],
    ['security', 'warehouse', 'deny', 100],
  ]);
  for (const policy of others)
    t.deepEqual(Object.keys(policy).sort(), 'effect,id,owner,priority,resource_pattern,resource_type,subjects,target'.split(','));
  t.true(text.includes('a\\u202eb'), 'nobody who reads the file is misled');
  t.true(others.some(({ subjects }) => JSON.stringify(subjects).includes('a\u202eb')));
  // Both policies mean the same user.
  const [one, two] = [...text.matchAll(/"user_pseudonym": "([0-9a-f]{32})"/g)].map(([, pseudonym]) => pseudonym);
  t.is(one, two);

  // The same state gives the same bytes; a different owner gets different pseudonyms.
  const again = `${out}.again`;
  await run(environment, 'context', '--owner', 'payments', '--out', again);
  t.is(readFileSync(again, 'utf8'), text);
  await run(environment, 'context', '--owner', 'elsewhere', '--out', again);
  const other = readFileSync(again, 'utf8');
  t.regex(other, /"user_pseudonym"/);
  t.false(other.includes(one ?? ''));
  t.is(readJson(again).policies.length, 4);

  // The right to plan for an owner does not show what other owners decide.
  const plan = { subject_type: 'user', subject_value: alice.id, right: 'policies:plan', owner: 'payments' };
  await gateway.rest(201, 'POST', '/api/rights', { token: admin.token, body: plan });
  const path = '/api/policies/context?owner=payments';
  await gateway.rest(403, 'GET', path, { token: alice.token });
  await gateway.rest(201, 'POST', '/api/rights', { token: admin.token, body: { ...plan, right: 'bundles:read', owner: null } });
  await gateway.rest(200, 'GET', path, { token: alice.token });
  await gateway.rest(400, 'GET', '/api/policies/context?owner=..', { token: alice.token });
});

test.serial('lint, test and compare see conflicts with other owners before the merge', async (t) => {
  const { alice, bob, environment, out, rest } = await start(t);
  const files = {
    // The deny of the owner security for the same user decides first.
    'run.yaml': file({ name: 'Run', target: 'warehouse', resource_pattern: '^run_query$', subjects: user(alice.id) }),
    'shell.yaml': file({
      name: 'Shell',
      resource_pattern: '^(exec|list)$',
      subjects: [{ subject_type: 'role', subject_value: 'user' }],
    }),
  };
  const dir = folderOf(t, files);
  t.is((await run({}, 'lint', '--dir', dir, '--severity', 'error')).code, 0);
  const linted = await run({}, 'lint', '--dir', dir, '--context', out);
  t.is(linted.code, 1);
  t.regex(
    linted.out,
    /run\.yaml:1:1: error contradiction \(owner payments\): "Run" allows no object: .*: "security's policy [0-9a-f-]{36}"\.\n/,
  );
  t.regex(linted.out, /in 2 policies\.\n$/);
  writeFileSync(
    join(dir, 'run.yaml'),
    file({ name: 'Run', target: 'warehouse', resource_pattern: '^run_query$', subjects: user(bob.id) }),
  );
  t.is((await run({}, 'lint', '--dir', dir, '--context', out)).code, 0, 'a different user is not meant');

  // A policy of this folder leaves nothing to a policy of a different owner.
  writeFileSync(join(dir, 'wide.yaml'), file({ name: 'Wide', priority: 1000, resource_pattern: null }));
  const wide = await run({}, 'lint', '--dir', dir, '--context', out, '--sarif', `${out}.sarif`);
  t.is(wide.code, 1);
  t.regex(
    wide.out,
    /wide\.yaml:\d+:1: error contradiction \(owner security\): "security's policy [0-9a-f-]{36}" denies no object: .*"Wide"/,
  );
  const { runs } = JSON.parse(readFileSync(`${out}.sarif`, 'utf8'));
  for (const result of runs[0].results) t.is(result.locations.length, 1, JSON.stringify(result));

  const tests = join(folder(t), 'tests');
  mkdirSync(tests);
  writeFileSync(
    join(tests, 'a.yaml'),
    `target: warehouse
principals: { alice: { role: user, user: ${alice.id} }, other: { role: user } }
requests: { exec: { tool: exec }, list: { tool: list } }
tests:
  - name: Shell
    expect: [{ effect: allow, policy: shell }]
`,
  );
  const clean = folderOf(t, { 'shell.yaml': files['shell.yaml'] });
  const args = ['--dir', clean, '--tests', tests];
  t.is((await run({}, 'test', ...args)).code, 0);
  const tested = await run({}, 'test', ...args, '--context', out);
  t.is(tested.code, 1);
  t.regex(
    tested.out,
    /: Shell: alice, exec: expected allow by "shell", got deny by "security's policy [0-9a-f-]{36}"\n3 passed, 1 failed\. 1 of 1 policies decide/,
  );

  // A different owner denies all that the new allow of the first folder would grant, and a part of what the second would grant.
  const near = folderOf(t, {
    'shell.yaml': file({
      name: 'Shell',
      resource_pattern: '^list$',
      subjects: [{ subject_type: 'role', subject_value: 'user' }],
    }),
  });
  const blocked = [
    ['contractors', '^exec$'],
    ['contractors', '^(exec|other)$'],
  ].map(([group = '', resource_pattern = '']) =>
    folderOf(t, {
      'shell.yaml': readFileSync(join(near, 'shell.yaml'), 'utf8'),
      'group.yaml': file({ name: 'Group', resource_pattern, subjects: [{ subject_type: 'group', subject_value: group }] }),
    }),
  );
  const verdict = async (to: string, ...more: string[]): Promise<string> =>
    JSON.parse((await run({}, 'compare', '--dir', to, '--with', near, '--json', ...more)).out).verdict;
  t.is(await verdict(blocked[0] ?? ''), 'looser');
  t.is(await verdict(blocked[0] ?? '', '--context', out), 'equal');
  t.is(await verdict(blocked[1] ?? '', '--context', out), 'looser');
  const text = (await run({}, 'compare', '--dir', blocked[0] ?? '', '--with', near, '--context', out)).out;
  t.regex(text, /with the policies of other owners at revision 3 /);

  // What lint says with the context is what the gateway says after the merge.
  await rest.apply(
    Object.fromEntries(['run', 'shell', 'wide'].map((name) => [`${name}.yaml`, readFileSync(join(dir, `${name}.yaml`), 'utf8')])),
    {
      owner: 'payments',
      prune: true,
    },
  );
  const live = JSON.parse((await run(environment, 'lint', '--live', '--json')).out) as {
    findings: { code: string; policies: { owner: string }[] }[];
  };
  const here = JSON.parse((await run({}, 'lint', '--dir', dir, '--context', out, '--json')).out) as typeof live;
  const about = ({ findings }: typeof live): string[] =>
    findings
      .filter(({ code, policies: [policy] }) => policy?.owner === 'payments' && !code.startsWith('unknown_'))
      .map(({ code }) => code)
      .sort();
  t.deepEqual(about(here), about(live));
});

test.serial(
  'the policies of other owners are about the users of both folders and of the invariants, however their ids are written',
  async (t) => {
    const id = '0199aaaa-1111-7222-8333-444455556666';
    const deny = policy('0190163d-8694-739b-aea5-966c26f8ad90', {
      ...{ managed_as: 'security/out', effect: 'deny', priority: 100, resource_pattern: '^(deploy|drop)$' },
      subjects: [{ id: 's', subject_type: 'user', subject_value: id }],
    });
    const parts = { owner: 'payments', revision: 1, today: new Date().toISOString().slice(0, 10), targets: [] };
    const context = join(folder(t), 'context.json');
    writeFileSync(context, formatContext(contextOf([deny], parts)));
    const everyone = file({ name: 'All', priority: 50, resource_pattern: '^deploy$' });
    const one = file({ name: 'One', priority: 200, resource_pattern: '^deploy$', subjects: user(id) });
    const base = folderOf(t, { 'all.yaml': everyone });
    const verdict = async (files: Files): Promise<string> => {
      const ran = await run({}, 'compare', '--dir', folderOf(t, files), '--with', base, '--context', context, '--json');
      return JSON.parse(ran.out).verdict;
    };
    t.is(await verdict({ 'one.yaml': one }), 'incomparable', 'only the later folder names the user');
    for (const written of [one, one.replace(id, `"${id.replace('6666', '\\u00366\\u00366')}"`)])
      t.is(await verdict({ 'all.yaml': everyone, 'one.yaml': written }), 'looser', written);

    const invariants = folderOf(t, {
      'user.yaml': `name: Out\nreason: left\nnever:\n  subjects:\n    - user: ${id}\n  resource_type: tool\n  resource_pattern: ^deploy$\n`,
    });
    const linted = await run({}, 'lint', '--dir', base, '--context', context, '--invariants', invariants);
    t.is(linted.code, 0, linted.out);
  },
);

const SAMPLE = contextOf([], { owner: 'payments', revision: 7, today: '2026-01-31', targets: [] });

test.serial(
  'a context that was changed, or that belongs to a different owner, is refused, and an old one is named',
  async (t) => {
    const dir = folderOf(t, { 'a.yaml': file() });
    const path = join(folder(t), 'context.json');
    const lint = async (text: string, ...more: string[]): Promise<Ran> => {
      writeFileSync(path, text);
      return run({}, 'lint', '--dir', dir, '--context', path, ...more);
    };
    const old = await lint(formatContext(SAMPLE));
    t.is(old.code, 0);
    t.regex(old.err, /has the policies of other owners at revision 7, on 2026-01-31: write it again/);
    const { portcullis_context: _, sha256: __, ...content } = SAMPLE;
    const fresh = formatContext(contextOf([], { ...content, today: new Date().toISOString().slice(0, 10), targets: [] }));
    t.is((await lint(fresh)).err, '');
    t.is((await lint(fresh, '--owner', 'payments')).code, 0);
    t.is((await lint(fresh, '--owner', 'security')).code, 2);
    for (const [text, problem] of [
      [fresh.replace('"revision": 7', '"revision": 8'), 'its hash is a different one'],
      [fresh.replace('"payments"', '"security"'), 'its hash is a different one'],
      [fresh.replace('"portcullis_context": 1', '"portcullis_context": 2'), 'must be a context of version 1'],
      [fresh.replace('"policies"', '"more": 1, "policies"'), 'not allowed'],
      [fresh.replace('"revision": 7', '"revision": 7, "revision": 7'), 'revision'],
      [fresh.slice(0, -4), 'cannot be read'],
      ['[]', 'must be a context of version 1'],
      ['', 'cannot be read'],
    ] as const) {
      const { code, err } = await lint(text);
      t.is(code, 1, text);
      t.true(err.includes(problem), `${err} ${text}`);
    }
    t.is((await run({}, 'lint', '--dir', dir, '--context', join(dir, 'nowhere.json'))).code, 1);
    t.is((await run({ PORTCULLIS_TOKEN: 'a.b.c' }, 'test', '--live', '--context', path)).code, 2);
    t.is((await run({ PORTCULLIS_TOKEN: 'a.b.c' }, 'lint', '--live', '--context', path)).code, 2);
  },
);

test.serial('a file that poses as a context gets no subject, target or policy past the reader', (t) => {
  const policy = {
    ...{ id: '0190163d-8694-739b-aea5-966c26f8ad90', owner: 'security', target: null, resource_type: 'tool' },
    ...{ resource_pattern: null, effect: 'deny', priority: 1, subjects: ['everyone'] },
  };
  const of = (...policies: readonly object[]): string => JSON.stringify({ ...SAMPLE, policies });
  // Of a right form, so that only the hash is wrong.
  t.regex(String(readContext(of(policy))), /hash/);
  for (const bad of [
    { ...policy, id: 'x' },
    { ...policy, owner: 'A/B' },
    { ...policy, target: '../x' },
    { ...policy, name: 'x' },
    { ...policy, priority: '1' },
    { ...policy, effect: 'permit' },
    { ...policy, resource_pattern: '' },
    { ...policy, subjects: ['nobody'] },
    { ...policy, subjects: [{}] },
    { ...policy, subjects: [{ role: 'a', group: 'b' }] },
    { ...policy, subjects: [{ user: policy.id }] },
    { ...policy, subjects: [{ user_pseudonym: policy.id }] },
  ]) {
    const refusal = readContext(of(bad));
    t.is(typeof refusal, 'string', JSON.stringify(bad));
    t.notRegex(String(refusal), /hash/, JSON.stringify(bad));
  }
  t.notRegex(String(readContext(of(policy, policy))), /hash/);
  // A day that is none would never be too old.
  for (const as_of of ['2026-02-30', '2026-99-99', 'today'])
    t.regex(String(readContext(JSON.stringify({ ...SAMPLE, as_of }))), /is not a day/, as_of);
});
