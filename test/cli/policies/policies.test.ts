import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { policyBody } from '../../policies/policies.ts';
import { addTarget, file, policySets } from '../../policies/sets.ts';
import { apiToken, person, startGateway } from '../../support/gateway.ts';
import { program } from '../../support/process.ts';
import { folder, inProcess, policies, policyFolder, portcullis, type Ran } from '../cli.ts';

const starters = join(import.meta.dirname, '../../../policies');

const call = (environment: Record<string, string>, ...args: string[]): Promise<Ran> =>
  inProcess(environment, (terminal) => policies(args, terminal));

async function start(t: ExecutionContext) {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  const ran: Ran[] = [];
  return {
    gateway,
    admin,
    token,
    ran,
    rest: policySets(gateway, admin.token),
    /** Fails the test unless it exits with `code`. */
    run: async (code: number, ...args: string[]): Promise<Ran> => {
      const done = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, ...args);
      ran.push(done);
      t.is(done.code, code, `${args.join(' ')}: ${done.out}${done.err}`);
      return done;
    },
  };
}

test.serial('plan, apply, history, diff, show, rollback and export work together on policies in git', async (t) => {
  const { gateway, admin, token, run, ran, rest } = await start(t);
  await addTarget(gateway, admin.token, 'everything');
  const dir = policyFolder(t);
  for (const name of readdirSync(starters).filter((known) => known.endsWith('.yaml'))) {
    writeFileSync(join(dir, name), readFileSync(join(starters, name)));
  }
  // Neither is a policy.
  writeFileSync(join(dir, 'README.md'), 'about');
  writeFileSync(join(dir, '.hidden.yaml'), '- not looked at');

  const planned = await run(0, 'plan', '--dir', dir);
  t.regex(
    planned.out,
    /\nwarning: .*"Developers get prompts" names a role that no user has: "developer"\.\n.*\n\nRevision 0 would become:\n\n\+ create "Administrators use everything" \(administrators-use-everything\.yaml\)\n {4}\+ name: /s,
  );
  t.regex(planned.out, /^Decisions: looser: .*\n6 to create, 0 to update, 0 to adopt, 0 to delete, 0 unchanged\.\n/s);
  t.true(
    planned.out.includes(
      `\nAllowed, for example:

+ role "admin", everything, tool "x"
    now:  deny: no policy matches
    then: allow by "Administrators use everything" (administrators-use-everything.yaml, priority 100)
`,
    ),
    planned.out,
  );
  t.false(planned.out.includes('Denied'));
  t.true(
    planned.out.includes('\nNo outcome changes because of "Contractors stay out of blobs", "Nobody prints the environment".\n'),
    planned.out,
  );
  await run(3, 'plan', '--dir', dir, '--detailed-exitcode');
  await run(1, 'apply', '--dir', dir, '--expect-revision', '7');
  const applied = await run(0, 'apply', '--dir', dir, '--reason', 'the first ones – all', '--expect-revision', '0');
  t.regex(applied.out, /^Applied, as revision 1:/);
  t.is((await run(0, 'apply', '--dir', dir)).out, 'No changes: 6 files match their policies.\n');
  await run(0, 'plan', '--dir', dir, '--detailed-exitcode');

  // Export leaves what people wrote.
  t.like(JSON.parse((await run(0, 'export', '--dir', dir, '--json')).out), { written: [], unchanged: 6, extra: [] });
  const changed = join(dir, 'developers-read-resources.yaml');
  const { id } = (await rest.policies()).find(({ managed_as }) => managed_as === 'default/developers-read-resources') ?? {
    id: '',
  };
  await rest.call(200, 'PUT', `/${id}?override=true`, { priority: 51 });
  await rest.call(201, 'POST', `/${id}/subjects?override=true`, { subject_type: 'group', subject_value: 'a\u202eb' });
  await rest.call(201, 'POST', '', policyBody({ name: 'By hand' }));
  const drift = await run(0, 'plan', '--dir', dir, '--prune');
  t.true(drift.out.includes('~ update "Developers read the demo\'s resources" (developers-read-resources.yaml'));
  t.regex(drift.out, /\(developers-read-resources\.yaml, .*\)\n {4}changed outside of its file since revision 2\n/);
  t.true(drift.out.includes('    priority: 51 -> 50\n    subjects:\n      - group: "a\\u{202e}b"\n'), drift.out);
  t.true(drift.out.includes('Policies without a file: 1.'));
  const before = readFileSync(changed, 'utf8');
  await run(0, 'export', '--dir', dir);
  t.is(
    readFileSync(changed, 'utf8'),
    before.replace('priority: 50', 'priority: 51').replace('group: developers\n', 'group: developers\n  - group: "a\\u202eb"\n'),
  );
  t.true(existsSync(join(dir, 'by-hand.yaml')));
  t.regex(
    (await run(0, 'apply', '--dir', dir, '--prune')).out,
    /^Applied, as revision 5:\n\n~ update .*\n {4}changed outside of its file since revision 2\n\n0 to create, 1 to update, .*, 6 unchanged\.\nPolicies without a file: 1\. --adopt/,
  );

  const history = await run(0, 'history');
  t.regex(
    history.out,
    /^5 .* changed "Developers read the demo's resources"\n4 .* created "By hand"\n3 .* changed .*\n2 .* changed "Developers read the demo's resources" outside of files\n1 .* admin@example\.com {2}6 created {2}\(the first ones – all\)\n$/,
  );
  t.is(JSON.parse((await run(0, 'history', '--limit', '2', '--json')).out).length, 2);
  t.regex(
    (await run(0, 'diff', '1', '2')).out,
    /^From revision 1 to 2:\n\n~ update .*\n {4}changed outside of its file\n {4}priority: 50 -> 51\n$/,
  );
  t.is((await run(0, 'diff', '5')).out, 'No difference.\n');
  t.is(
    (await run(0, 'compare', '3', '1')).out.replace(/[0-9a-f-]{36}/g, '<id>'),
    `From revision 3 to 1. Decisions: stricter: some requests that were allowed are denied, and none that were denied are allowed.

Denied, for example:

- group "a\\u{202e}b", everything, resource "demo://resource/x"
    at 3: allow by "Developers read the demo's resources" (developers-read-resources.yaml, priority 51, <id>)
    at 1: deny: no policy matches
`,
  );
  t.regex(
    (await run(0, 'compare', '1')).out,
    /^From revision 1 to 5\. Decisions: looser: .*\n\+ anybody, everything, tool "x"\n/s,
  );
  t.is((await run(0, 'compare', '5')).out, 'From revision 5 to 5. Decisions: equal: every request gets the same effect.\n');
  t.like(JSON.parse((await run(0, 'compare', '1', '4', '--json')).out), { from: 1, to: 4, verdict: 'looser' });
  await run(1, 'compare', '9');
  t.regex(
    (await run(0, 'show', '1')).out,
    /^# 1 .*\n# [0-9a-f-]{36}, default\/administrators-use-everything\nname: Administrators use everything\n/,
  );
  const shown = await run(1, 'rollback', '1');
  t.regex(
    shown.out,
    /^Decisions: .*To match revision 1, revision 5 would become:.*Nothing was changed\. Add --yes to roll back\.\n$/s,
  );
  t.regex(
    (await run(0, 'rollback', '1', '--yes', '--reason', 'enough')).out,
    /^Decisions: .*\nRolled back to revision 1, as revision 6:\n/s,
  );
  t.is((await run(0, 'rollback', '1')).out, 'The policies already match revision 1.\n');
  t.is((await run(0, 'rollback', '1', '--owner', 'defualt')).out, 'No policy of the owner defualt differs from revision 1.\n');
  await run(1, 'rollback', '9');
  const place = await run(1, 'move', 'Nobody prints the environment', '2', '--override');
  t.regex(place.out, /^Decisions: .*would become:.*Nothing was changed\. Add --yes to move the policy\.\n$/s);
  await run(1, 'move', 'Nobody prints the environment', '2', '--yes');
  await run(1, 'move', 'Nobody prints the environment', '2', '--yes', '--override', '--expect-revision', '1');
  t.regex(
    (await run(0, 'move', 'Nobody prints the environment', '2', '--yes', '--override')).out,
    /\nMoved to position 2, as revision 7:\n/,
  );
  t.is((await run(0, 'move', 'Nobody prints the environment', '2')).out, 'The policy already has the position 2.\n');
  await run(1, 'move', 'No such policy', '2');
  await run(2, 'move', 'Nobody prints the environment', 'x');
  await run(0, 'rollback', '1', '--yes');
  await run(0, 'export', '--dir', dir, '--prune');
  t.false(existsSync(join(dir, 'by-hand.yaml')));
  t.is(readFileSync(changed, 'utf8').includes('51'), false);
  t.false(ran.some(({ out, err }) => (out + err).includes(token)));
});

test.serial('an error in a file names file, line and column, for people and programs', async (t) => {
  const { run, rest } = await start(t);
  const dir = policyFolder(t);
  const outside = join(folder(t), 'secret.yaml');
  writeFileSync(outside, file());
  const cases: [string, () => void, RegExp][] = [
    [
      'a.yaml',
      () => writeFileSync(join(dir, 'a.yaml'), `# é\n${file({ resource_pattern: '(?!a)' })}`),
      /a\.yaml:4:1: resource_pattern is refused\. /,
    ],
    [
      'a.yaml',
      () => writeFileSync(join(dir, 'a.yaml'), file({ target: 'nowhere' })),
      /a\.yaml:2:1: target is nowhere, but no target has this name/,
    ],
    ['a.yaml', () => writeFileSync(join(dir, 'a.yaml'), `${file()}priority: 1\n`), /a\.yaml:8:1: /],
    [
      'a.yaml',
      () => writeFileSync(join(dir, 'a.yaml'), Buffer.concat([Buffer.from('name: a\ndescription: '), Buffer.from([0xff])])),
      /a\.yaml:2:1: is not UTF-8/,
    ],
    ['a.yaml', () => writeFileSync(join(dir, 'a.yaml'), 'x'.repeat(1_100_000)), /a\.yaml:1:1: has more than 1048576 bytes/],
    ['a.yaml', () => mkdirSync(join(dir, 'a.yaml')), /a\.yaml:1:1: is not a file/],
    ['a.yaml', () => symlinkSync(outside, join(dir, 'a.yaml')), /a\.yaml:1:1: is a link that leads out of the folder/],
    ['a.yaml', () => symlinkSync('nowhere', join(dir, 'a.yaml')), /a\.yaml:1:1: cannot be read \(ENOENT\)/],
    ['a.yaml', () => execFileSync('mkfifo', [join(dir, 'a.yaml')]), /a\.yaml:1:1: is not a file/],
    [
      'a\n::stop-commands::x.yaml',
      () => writeFileSync(join(dir, 'a\n::stop-commands::x.yaml'), file()),
      /\/a ::stop-commands::x\.yaml:1:1: /,
    ],
    ['A.yaml', () => writeFileSync(join(dir, 'A.yaml'), file()), /A\.yaml:1:1: the name of a policy file must consist of a-z/],
    ['a.yml', () => writeFileSync(join(dir, 'a.yml'), file()), /a\.yml:1:1: the name of a policy file .* end in \.yaml/],
  ];
  writeFileSync(join(dir, 'fine.yaml'), file());
  for (const [name, make, expected] of cases) {
    make();
    const { err, out } = await run(1, 'apply', '--dir', dir);
    t.regex(err, expected);
    t.true(err.includes(`${dir}/${name.replace('\n', ' ')}:`));
    t.is(out, '');
    rmSync(join(dir, name), { recursive: true });
  }
  writeFileSync(join(dir, 'a.yaml'), file({ target: 'nowhere' }));
  const { error } = JSON.parse((await run(1, 'plan', '--dir', dir, '--json')).out);
  t.like(error, { code: 'invalid_request', errors: [{ file: 'a.yaml', line: 2, column: 1 }] });
  t.deepEqual(await rest.policies(), []);

  // A link to a file within the folder counts as a file of it, because Kubernetes mounts folders that way.
  rmSync(join(dir, 'a.yaml'));
  mkdirSync(join(dir, '..data'));
  writeFileSync(join(dir, '..data', 'a.yaml'), file({ name: 'linked' }));
  symlinkSync('..data/a.yaml', join(dir, 'a.yaml'));
  await run(0, 'apply', '--dir', dir);
  t.is((await rest.policies()).length, 2);
  // Export writes through no link, and over nothing that it cannot read.
  for (const { id } of await rest.policies()) await rest.call(200, 'PUT', `/${id}?override=true`, { priority: 77 });
  t.regex((await run(1, 'export', '--dir', dir)).err, /a\.yaml is a link/);
  rmSync(join(dir, 'a.yaml'));
  writeFileSync(join(dir, 'a.yaml'), 'name: [\n# of people\n');
  t.regex((await run(1, 'export', '--dir', dir)).err, /a\.yaml:\d:\d: .*\nnothing was written/s);
  t.is(readFileSync(join(dir, 'a.yaml'), 'utf8'), 'name: [\n# of people\n');
});

test.serial('an export that cannot write a whole file leaves the old one as it was', async (t) => {
  const { gateway, token, rest } = await start(t);
  const subjects = Array.from(
    { length: 100 },
    (_, n) => ({ subject_type: 'role', subject_value: `role-${n}-${'x'.repeat(80)}` }) as const,
  );
  await rest.apply({ 'deny.yaml': file({ effect: 'deny', subjects }) });
  const dir = policyFolder(t);
  const old = `# not committed yet\n${file({ effect: 'deny' })}`;
  writeFileSync(join(dir, 'deny.yaml'), old);
  // Writing beyond 4 KiB fails in the middle of the file, as on a full disk.
  const limited = spawn(
    'sh',
    [
      ...['-c', 'trap "" XFSZ && ulimit -f 8 && exec "$@"', 'sh'],
      ...[process.execPath, ...program('cli/portcullis'), 'policies', 'export', '--dir', dir],
    ],
    {
      env: { PATH: process.env['PATH'], PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token },
      stdio: ['ignore', 'ignore', 'pipe'],
    },
  );
  let said = '';
  limited.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  t.deepEqual(await once(limited, 'close'), [1, null], said);
  t.regex(said, /deny\.yaml cannot be written: EFBIG/);
  t.deepEqual(readdirSync(dir), ['deny.yaml', 'portcullis.yaml']);
  t.is(readFileSync(join(dir, 'deny.yaml'), 'utf8'), old);
});

test.serial('a wrong call exits with 2, says what is wrong and which help to read, and never prints the token', async (t) => {
  const { gateway, token, run } = await start(t);
  const dir = policyFolder(t);
  for (const args of [
    ['plan', '--nothing'],
    ['plan', 'extra'],
    ['plan', '--dir'],
    ['show'],
    ['show', 'x'],
    ['diff'],
    ['diff', '1', '2', '3'],
    ['compare'],
    ['compare', '1', 'x'],
    ['rollback', '-1'],
    ['apply', '--expect-revision', 'x', '--dir', starters],
    ['apply', '--expect-targets', 'x', '--dir', starters],
    ['history', '--server', 'gateway.example.com'],
    ['history', '--server', 'http://gateway.example.com'],
  ]) {
    const { err } = await run(2, ...args);
    t.regex(err, /^portcullis: .+\nSee portcullis policies \w+ --help\.\n$/s, args.join(' '));
  }
  t.regex((await run(2, 'nothing')).err, /unknown command: portcullis policies nothing/);
  t.regex((await run(1, 'plan', '--dir', dir)).err, /contains no policy files \(\*\.yaml\): set --dir to their folder/);
  t.regex((await run(1, 'plan', '--dir', join(dir, 'none'))).err, /cannot be read \(ENOENT\)/);
  t.regex((await run(1, 'history', '--limit', '0')).err, /limit: must be a number from 1 to 1000/);
  for (const args of [[], ['--help'], ['help']]) t.regex((await run(0, ...args)).out, /^Usage: portcullis policies <command>/);
  for (const command of ['export', 'plan', 'apply', 'history', 'show', 'diff', 'compare', 'rollback', 'schema']) {
    t.regex((await run(0, command, '--help')).out, new RegExp(`^Usage: portcullis policies ${command}`));
  }

  const without = await call({ PORTCULLIS_URL: gateway.url }, 'history');
  t.is(without.code, 2);
  t.regex(without.err, /PORTCULLIS_TOKEN is not set/);
  for (const bad of [`${token}\n${token}`, `Bearer ${token}`, 'secret words']) {
    const ran = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: bad }, 'history');
    t.is(ran.code, 2);
    t.regex(ran.err, /PORTCULLIS_TOKEN is not a token/);
    t.false(ran.err.includes(bad));
  }
  const forged = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: 'a.b.c' }, 'history', '--json');
  t.is(forged.code, 1);
  t.is(JSON.parse(forged.out).error.code, 'invalid_token');
  t.regex(forged.err, /PORTCULLIS_TOKEN must be a token of this gateway/);
});

async function serve(t: ExecutionContext, server: Server): Promise<string> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test.serial('the token is sent only to the gateway that the options name', async (t) => {
  const { gateway, token, ran } = await start(t);
  const seen: (string | undefined)[] = [];
  const elsewhere = createServer((req, res) => {
    seen.push(req.headers.authorization);
    res.end('[]');
  });
  const there = await serve(t, elsewhere);
  const redirecting = createServer((_req, res) => {
    res.writeHead(307, { location: `${there}/api/policies/history` }).end();
  });
  const breaking = createServer((_req, res) => void res.socket?.destroy());
  const page = createServer((_req, res) => {
    res.end('<html>');
  });
  const proxy = (status: number) =>
    serve(
      t,
      createServer((_req, res) => void res.writeHead(status).end('<html>')),
    );
  const nowhere = 'http://127.0.0.1:1';
  for (const [url, expected] of [
    [await serve(t, redirecting), /no answer from/],
    [await serve(t, page), /answered 200, but not as a Portcullis gateway does/],
    [await proxy(503), /a proxy at .* answered 503, because it got no answer/],
    [await proxy(524), /a proxy at .* answered 524, because it got no answer/],
    [await proxy(413), /a proxy at .* answered 413, because the request is too large for it: allow bodies of 4 MiB there/],
    [await proxy(504), /a proxy at .* answered 504, .* If the command makes a change, check whether it was made/],
    [
      await serve(t, breaking),
      /no answer from .*: the connection broke off or timed out\. .* If the command makes a change, check whether it was made/,
    ],
    [nowhere, /no answer from http:\/\/127\.0\.0\.1:1 \(.*\): PORTCULLIS_URL or --server must name a running gateway/],
  ] as const) {
    const done = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, 'history', '--server', url);
    t.is(done.code, 1);
    t.regex(done.err, expected);
    t.false(done.err.includes(token));
  }
  const empty = await call({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, 'history', '--server', '');
  t.is(empty.code, 2);
  t.regex(empty.err, /--server must not be empty/);
  t.deepEqual(seen, []);
  t.deepEqual(ran, []);
});

test.serial('a server that is not a gateway cannot make the command write outside of the folder', async (t) => {
  const { token } = await start(t);
  const root = folder(t);
  let files: Record<string, string> = {};
  const url = await serve(
    t,
    createServer((_req, res) => {
      res.setHeader('x-request-id', 'x').end(JSON.stringify({ owner: 'default', files }));
    }),
  );
  for (const name of [
    'portcullis.yaml',
    '../evil.yaml',
    '/tmp/evil.yaml',
    'a/b.yaml',
    '.yaml',
    'evil.sh',
    'a.yaml/../../evil.yaml',
  ]) {
    files = { [name]: file() };
    const ran = await call(
      { PORTCULLIS_URL: url, PORTCULLIS_TOKEN: token },
      'export',
      '--dir',
      join(root, 'policies'),
      '--owner',
      'x',
    );
    t.is(ran.code, 1);
    t.regex(ran.err, /the gateway sent a file name that is not allowed/);
  }
  t.deepEqual(readdirSync(root), []);
});

test.serial('a process of the command has the right output, exit code and JSON', async (t) => {
  const { gateway, token } = await start(t);
  const dir = policyFolder(t);
  writeFileSync(join(dir, 'a.yaml'), file());
  const environment = { PORTCULLIS_URL: `${gateway.url}/`, PORTCULLIS_TOKEN: `${token}\n` };
  const changes = await portcullis(environment, 'policies', 'plan', '--dir', dir, '--json', '--detailed-exitcode');
  t.is(changes.code, 3);
  t.like(JSON.parse(changes.out), { revision: 0, changes: [{ action: 'create', file: 'a.yaml' }] });
  t.is(changes.err, '');
  t.is((await portcullis(environment, 'policies', 'show')).code, 2);
  t.is((await portcullis({ ...environment, PORTCULLIS_URL: 'http://127.0.0.1:1' }, 'policies', 'history')).code, 1);
});

test.serial('the schemas of the folder are printed without a gateway', async (t) => {
  for (const [schema, ...args] of [['policy.schema.json'], ['tests/test.schema.json', '--tests']] as const) {
    const committed = JSON.parse(readFileSync(join(starters, schema), 'utf8'));
    for (const json of [[], ['--json']]) {
      const ran = await call({}, 'schema', ...args, ...json);
      t.is(ran.code, 0);
      t.deepEqual(JSON.parse(ran.out), committed);
    }
  }
});

test.serial('docs/cli.md has every command and every option, and no other', async (t) => {
  const page = readFileSync(join(import.meta.dirname, '../../../docs/cli.md'), 'utf8');
  const [, docs = ''] = page.split('\n## `portcullis policies`\n');
  const cells = (head: string): string[][] =>
    (new RegExp(`\\n${head.replaceAll('|', '\\|')}\\n\\|[-|]+\\n((?:\\|.*\\n)+)`).exec(docs)?.[1] ?? '')
      .trim()
      .split('\n')
      .map((row) => row.split(' | ').map((cell) => cell.replaceAll(/^\| |\|$/g, '').trim()));
  const help = (...args: string[]) => call({}, ...args).then(({ out }) => out);
  const commands = [...(await help('--help')).matchAll(/^ {2}([a-z-]+)( .*?)? {3,}/gm)].map(([, name = '', takes = '']) => ({
    name,
    takes,
  }));
  t.deepEqual(
    cells('| Command | What it does |').map(([name]) => name),
    commands.map(({ name, takes }) => `\`${`${name}${takes}`.trim()}\``),
  );
  const documented = cells('| Option | Commands | |').flatMap(([option = '', of = '']) =>
    (of === 'all' ? commands.map(({ name }) => name) : [...of.matchAll(/`([a-z-]+)`/g)].map(([, name]) => name)).map(
      (name) => `${name} ${option}`,
    ),
  );
  const there: string[] = [];
  for (const { name } of commands) {
    for (const [, option = ''] of (await help(name, '--help')).matchAll(/^ {2}(--[a-z-]+(?: [A-Z,]+)?) {2,}/gm)) {
      there.push(`${name} \`${option}\``);
    }
  }
  t.deepEqual(documented.sort(), there.sort());
});

test.serial('history goes on if a page is shorter, because its revisions have many changes', async (t) => {
  const revisions = [9, 8, 7, 6].map((revision) => ({
    ...{ revision, at: '2026-01-01T00:00:00.000Z', actor: { id: 'a', email: 'a@b' }, request_id: 'r', reason: null },
    ...{ created: 5_000, updated: 0, deleted: 0, override: false, policy: null },
  }));
  const asked: string[] = [];
  const server = createServer((req, res) => {
    asked.push(req.url ?? '');
    const at = new URL(req.url ?? '', 'http://x').searchParams.get('cursor') === '8' ? 2 : 0;
    if (at === 0) res.setHeader('Link', '</api/policies/history?cursor=8&limit=3>; rel="next"');
    res.setHeader('x-request-id', 'x').end(JSON.stringify(revisions.slice(at, at + 2)));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => server.close());
  const { port } = server.address() as AddressInfo;
  const at = { PORTCULLIS_URL: `http://127.0.0.1:${port}`, PORTCULLIS_TOKEN: 'a.b.c' };
  const { out, err } = await call(at, 'history', '--limit', '3', '--json');
  t.is(err, '');
  t.deepEqual(
    (JSON.parse(out) as { revision: number }[]).map(({ revision }) => revision),
    [9, 8, 7],
  );
  t.is((JSON.parse((await call(at, 'history', '--limit', '1', '--json')).out) as object[]).length, 1);
  t.deepEqual(asked, [
    '/api/policies/history?limit=3',
    '/api/policies/history?cursor=8&limit=3',
    '/api/policies/history?limit=1',
  ]);
});
