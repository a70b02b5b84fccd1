import { once } from 'node:events';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import test from 'ava';
import { addTarget, file, policySets } from '../../policies/sets.ts';
import { apiToken, person, startGateway } from '../../support/gateway.ts';
import { folder, inProcess, policies, policyFolder, portcullis, type Ran } from '../cli.ts';

const starters = join(import.meta.dirname, '../../../policies');

const call = (environment: Record<string, string>, ...args: string[]): Promise<Ran> =>
  inProcess(environment, (terminal) => policies(args, terminal));

test.serial('tests run without a gateway, and a failure names file, position and result', async (t) => {
  const dir = policyFolder(t);
  cpSync(starters, dir, { recursive: true });
  const passed = await portcullis({}, 'policies', 'test', '--dir', dir, '--coverage', '100');
  t.deepEqual([passed.code, passed.err], [0, '']);
  t.is(passed.out, '53 passed, 0 failed. 6 of 6 policies decide a case (100%).\n');

  // A policy allows too much, and no test names the requests that it allows.
  writeFileSync(
    join(dir, 'developers-call-harmless-tools.yaml'),
    file({ name: 'Wide', target: 'everything', resource_pattern: '^echo' }),
  );
  const junit = join(dir, 'junit.xml');
  const failed = await call({}, 'test', '--dir', dir, '--junit', junit);
  t.is(failed.code, 1);
  t.true(
    failed.out.includes(
      `${join(dir, 'tests', 'starter.yaml')}:28:5: Tools: stranger, a name that only begins like echo: expected deny, got allow by "Wide"\n`,
    ),
    failed.out,
  );
  t.regex(readFileSync(junit, 'utf8'), /<failure message="expected deny, got allow by &quot;Wide&quot;">starter\.yaml:28</);
  const asJson = await call({}, 'test', '--dir', dir, '--json');
  t.is(asJson.code, 1);
  t.is(
    JSON.parse(asJson.out).results.filter((result: { passed: boolean }) => !result.passed).length,
    JSON.parse(asJson.out).failed,
  );

  cpSync(starters, dir, { recursive: true });
  writeFileSync(join(dir, 'unused.yaml'), file({ name: 'Un\u202eused', target: 'elsewhere' }));
  const low = await call({}, 'test', '--dir', dir, '--coverage', '86', '--junit', junit);
  t.is(low.code, 1);
  t.regex(
    low.out,
    /6 of 7 policies decide a case \(85\.7%\)\.\n {2}decides no case: "Un\\u\{202e\}used" \(unused\.yaml, priority 10\)\nThe coverage is too low: --coverage requires 86%\.\n$/,
  );
  t.regex(readFileSync(junit, 'utf8'), /name="policies"><failure/);
  const inJson = (await call({}, 'test', '--dir', dir, '--json')).out;
  t.regex(inJson, /"Un\\u202eused"/);
  t.true(inJson.isWellFormed() && JSON.stringify(JSON.parse(inJson)).includes('Un\u202eused'));
  t.is((await call({}, 'test', '--dir', dir, '--coverage', '85.7')).code, 0);

  for (const [code, ...args] of [
    [2, 'test', '--coverage', '101'],
    [2, 'test', '--coverage', 'all'],
    [2, 'test', '--remote', '--live'],
    [1, 'test', '--dir', dir, '--tests', join(dir, 'nowhere')],
    [1, 'test', '--dir', join(dir, 'nowhere'), '--tests', join(dir, 'tests')],
    [1, 'test', '--dir', dir, '--junit', join(dir, 'no', 'folder.xml')],
    [2, 'lint', '--severity', 'fatal'],
    [2, 'explain', 'everything'],
    [2, 'explain', 'everything', 'tool', '--user', 'a'],
    [2, 'explain', 'everything', '--user', 'a', '--groups', 'b'],
    [2, 'simulate'],
    [2, 'who-can'],
  ] as const) {
    const ran = await call({ PORTCULLIS_TOKEN: 'a.b.c' }, ...args);
    t.is(ran.code, code, `${args.join(' ')}: ${ran.out}${ran.err}`);
    t.not(ran.err, '', args.join(' '));
  }
  writeFileSync(join(dir, 'tests', 'broken.yaml'), 'tests: []\n');
  const broken = await call({}, 'test', '--dir', dir);
  t.is(broken.code, 1);
  t.true(broken.err.includes(`${join(dir, 'tests', 'broken.yaml')}:1:1: `), broken.err);
  rmSync(join(dir, 'tests', 'broken.yaml'));
  writeFileSync(join(dir, 'unused.yaml'), file({ resource_pattern: '(?=a)' }));
  const pattern = await call({}, 'test', '--dir', dir);
  t.is(pattern.code, 1);
  t.regex(pattern.err, /unused\.yaml:3:1: resource_pattern is refused\. /);
});

test.serial('lint needs no gateway, and fails at the given severity', async (t) => {
  const dir = folder(t);
  writeFileSync(join(dir, 'a.yaml'), file({ name: 'A', effect: 'deny', priority: 20 }));
  writeFileSync(join(dir, 'b.yaml'), file({ name: 'B' }));
  const found = await call({}, 'lint', '--dir', dir);
  t.is(found.code, 1);
  t.regex(found.out, /b\.yaml:1:1: error contradiction \(owner default\): "B" allows no object/m);
  t.regex(found.out, /findings in 2 policies\.\n$/);
  rmSync(join(dir, 'a.yaml'));
  writeFileSync(join(dir, 'b.yaml'), file({ name: 'B', resource_pattern: 'echo' }));
  t.is((await call({}, 'lint', '--dir', dir)).code, 0);
  const one = await call({}, 'lint', '--dir', dir, '--severity', 'warning');
  t.is(one.code, 1);
  t.regex(one.out, /\n1 finding in 1 policy\.\n$/);
});

test.serial('explain, simulate, who-can and what-can ask the gateway', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  await addTarget(gateway, admin.token, 'everything');
  const dir = policyFolder(t);
  cpSync(starters, dir, { recursive: true });
  const run = async (code: number, ...args: string[]): Promise<string> => {
    const ran = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, ...args);
    t.is(ran.code, code, `${args.join(' ')}: ${ran.out}${ran.err}`);
    return ran.out;
  };
  const echo = ['everything', 'tool', 'echo'];
  t.is(
    await run(0, 'simulate', ...echo, '--role', 'developer', '--dir', dir),
    '+ role developer, everything, tool "echo"\n    now:  deny: no policy matches\n' +
      '    then: allow by "Developers call harmless tools" (developers-call-harmless-tools.yaml, priority 50)\n\n1 of 1 would change.\n',
  );
  t.regex(await run(0, 'test', '--remote', '--dir', dir), /^53 passed/);
  await run(1, 'test', '--live', '--dir', dir);
  t.is(await policySets(gateway, admin.token).revision(), 0);
  await run(0, 'apply', '--dir', dir);
  t.regex(await run(0, 'test', '--live', '--dir', dir), /^53 passed/);
  mkdirSync(join(dir, 'requests'));
  const requests = join(dir, 'requests', 'some.json');
  writeFileSync(requests, JSON.stringify([{ principal: { user: 'admin@example.com' }, target: 'everything' }]));
  t.regex(
    await run(0, 'simulate', '--requests', requests, '--dir', dir),
    /^ {2}admin@example\.com, everything\n.*\n\n0 of 1 would change/,
  );

  const why = await run(0, 'explain', 'everything', 'tool', 'echo', '--role', 'user', '--groups', 'a,developers');
  t.regex(why, /^role user, everything, tool "echo": allow by "Developers call harmless tools" \(/);
  t.regex(
    why,
    /\nPolicies that do not match, in the order of evaluation:\n {2}deny "Nobody prints the environment" \(.*\n {6}pattern: \^get-env\$\n/,
  );
  t.regex(why, /allow "Administrators use everything" \(.*\n {6}subjects: role:admin\n/);
  t.is(await run(1, 'explain', 'nothing', '--role', 'user'), '');

  t.deepEqual((await run(0, 'who-can', ...echo)).split('\n'), [
    'role "admin"  by "Administrators use everything" (priority 100)',
    'role "developer"  by "Developers call harmless tools" (priority 50)',
    'group "developers"  by "Developers call harmless tools" (priority 50)',
    'admin@example.com  by "Administrators use everything" (priority 100)',
    '',
  ]);
  t.is(await run(0, 'who-can', 'everything', 'tool', 'get-env'), 'None.\n');
  t.is(await run(0, 'what-can', 'admin@example.com'), 'everything  by "Administrators use everything" (priority 100)\n');
  t.is(await run(0, 'what-can', 'everyone'), 'None.\n');
  const csv = (await run(0, 'what-can', 'role:admin', '--target', 'everything', '--csv')).split('\n');
  t.regex(csv[0] ?? '', /^subject_type,subject_value,email,/);
  t.regex(csv[1] ?? '', /^"role","admin",,,,"everything",,,/);
  t.regex(await run(0, 'lint', '--live'), /^developers-get-prompts\.yaml: warning unknown_role \(owner default\): /m);

  // A test that fails stops an apply, and so does one that cannot be run.
  const revision = await policySets(gateway, admin.token).revision();
  writeFileSync(join(dir, 'more.yaml'), file({ name: 'Wide', target: 'everything', resource_pattern: '^echo' }));
  const stopped = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, 'apply', '--dir', dir, '--json');
  t.is(stopped.code, 1);
  t.is(JSON.parse(stopped.out).error.code, 'tests_failed');
  t.regex(
    stopped.err,
    /Nothing was applied, because 7 of 53 tests failed\.\n.*starter\.yaml:28:5: Tools: .* got allow by "Wide"\n/,
  );
  rmSync(join(dir, 'developers-get-prompts.yaml'));
  await run(1, 'apply', '--prune', '--dir', dir);
  t.is(await policySets(gateway, admin.token).revision(), revision);
  await run(0, 'apply', '--dir', dir, '--skip-tests');
  t.is(await policySets(gateway, admin.token).revision(), revision + 1);
});

test.serial('a list is read to its end, and only from this gateway', async (t) => {
  const asked: string[] = [];
  const row = (email: string) => ({
    subject_type: 'user',
    subject_value: email,
    email,
    target: 'x',
    policy_name: 'p',
    policy_priority: 1,
  });
  const server = createServer((req, res) => {
    asked.push(req.url ?? '');
    const more =
      asked.length === 1
        ? '</api/policies/access?cursor=a&limit=1>; rel="next"'
        : '<https://elsewhere.example/api/x>; rel="next"';
    res
      .setHeader('x-request-id', 'x')
      .setHeader('Link', more)
      .end(JSON.stringify([row(`u${asked.length}@example.com`)]));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const { port } = server.address() as AddressInfo;
  const listed = await call({ PORTCULLIS_URL: `http://127.0.0.1:${port}`, PORTCULLIS_TOKEN: 'a.b.c' }, 'what-can', 'a@b');
  t.is(listed.out.split('\n').length, 3, listed.out + listed.err);
  t.deepEqual(asked, ['/api/policies/access?who=user%3Aa%40b', '/api/policies/access?cursor=a&limit=1']);
});
