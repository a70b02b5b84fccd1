/** The commands of the nouns against a real gateway: each noun's way, wrong input, and text that attacks the terminal. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import type { LogJson } from '../../../src/audit/search/log-json.ts';
import { runGroup, type Terminal } from '../../../src/cli/command.ts';
import { ENTRIES } from '../../../src/cli/entries.ts';
import { COVERED, groupOf } from '../../../src/cli/resources/groups.ts';
import { LEFT_OUT, NOUNS } from '../../../src/cli/resources/nouns.ts';
import { cardText, tableText } from '../../../src/cli/resources/table.ts';
import { OPERATIONS } from '../../../src/rest/contract.ts';
import { apiToken, person, startGateway } from '../../support/gateway.ts';
import { modernClient } from '../../support/mcp.ts';
import { program } from '../../support/process.ts';
import { world } from '../../support/world.ts';
import { command, folder, inProcess, portcullis } from '../cli.ts';

const CLI = join(import.meta.dirname, '../../../src/cli');
const PLAIN = { columns: null, colours: false };

/** A gateway with an administrator, and the commands of the nouns with a token. */
async function start(t: ExecutionContext, environment: Record<string, string> = {}) {
  const gateway = await startGateway(t, null, environment);
  const admin = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, admin);
  const run = async (code: number, line: string, more: Record<string, string> = {}) => {
    const [noun = '', ...words] = line.split(' ');
    const called = { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token, ...more };
    const ran = await inProcess(called, (terminal: Terminal) => runGroup(groupOf(noun), words.map(unquoted), terminal));
    t.is(ran.code, code, `${line}: ${ran.out}${ran.err}`);
    return code === 0 || ran.err === '' ? ran.out : ran.err;
  };
  const json = async (line: string, more: Record<string, string> = {}) => JSON.parse(await run(0, `${line} --json`, more));
  return { gateway, admin, token, run, json };
}

/** A word of a test has no spaces: `%20` stands for one, and `''` for nothing. */
const unquoted = (word: string): string => (word === "''" ? '' : word.replaceAll('%20', ' '));

test('every operation of the contract has a command, or a reason why it has none', (t) => {
  const sources = readdirSync(CLI, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && !name.startsWith('resources'))
    .map((name) => readFileSync(join(CLI, name), 'utf8'))
    .join('\n');
  /** Whether a command that is not of the table asks for the path: `/api/policies/drafts/${name}`, or `${path}/shadow`. */
  const isAsked = (path: string): boolean =>
    new RegExp(`${path.replaceAll(/\{\w+\}/g, '\\$\\{[^/]+?\\}')}(['"\`?]|\\$\\{(?!encode))`).test(sources) ||
    new RegExp(`['}]${/(?<=\})\/\w+$/.exec(path)?.[0] ?? ' '}['\`]`).test(sources);
  const ids = new Map(Object.entries(OPERATIONS).map(([key, { id }]) => [id, key]));
  const wrong: string[] = [];
  for (const [id, key] of ids) {
    const [, path = ''] = key.split(' ');
    const isOther = /^\/api\/(policies|owners|invariants|auth\/me)/.test(path) && isAsked(path);
    const [isCovered, isLeftOut] = [COVERED.has(key), Object.hasOwn(LEFT_OUT, id)];
    if (isCovered === isLeftOut && (isCovered || !isOther)) wrong.push(key);
  }
  t.deepEqual(wrong, [], 'add these to a noun of src/cli/resources/nouns.ts, or to LEFT_OUT with a reason');
  for (const id of Object.keys(LEFT_OUT)) t.true(ids.has(id), `${id} is left out, but there is no such operation`);
  for (const key of COVERED) t.true(key in OPERATIONS, `${key} is not in the contract`);
  for (const noun of Object.keys(NOUNS)) t.true(noun in ENTRIES, `${noun} is not in src/cli/entries.ts`);
});

test.serial('target: create, list, show, update, enable, disable, delete', async (t) => {
  const { run, json } = await start(t);
  t.is(await run(0, 'target list'), 'none\n');
  t.regex(
    await run(0, 'target create github --url http://127.0.0.1:1/mcp --may-ask sampling,roots --reason a%20test'),
    /^name +github$/m,
  );
  t.deepEqual((await json('target show github')).may_ask, ['sampling', 'roots']);
  t.regex(
    await run(0, 'target list'),
    /^NAME {4}TRANSPORT {8}URL {21}ENABLED {2}DESCRIPTION {2}ID\ngithub {2}streamable-http {2}http:\/\/127\.0\.0\.1:1\/mcp {2}yes {6}- {12}[0-9a-f-]{36}\n$/,
  );
  await run(0, 'target disable github');
  t.false((await json('target show github')).enabled);
  await run(0, 'target enable github');
  await run(0, "target update github --description Issues --timeout-ms 5000 --may-ask ''");
  t.like(await json('target show github'), { enabled: true, description: 'Issues', timeout_ms: 5000, may_ask: [] });
  await run(0, 'target update github --timeout-ms null');
  t.is((await json('target show github')).timeout_ms, null);
  const [change] = await json('change list --limit 1');
  t.is(change.action, 'target.update');
  t.is((await json('change list')).find(({ action }: { action: string }) => action === 'target.create').reason, 'a test');

  // What a person has read can be put back.
  const file = join(folder(t), 'target.json');
  writeFileSync(file, JSON.stringify({ ...(await json('target show github')), description: 'Again' }));
  await run(0, `target update github --file ${file}`);
  t.is((await json('target list'))[0].description, 'Again');

  t.regex(await run(1, 'target show gitlab'), /no target is called gitlab: portcullis target list lists them/);
  t.regex(await run(1, 'target create github --url http://127.0.0.1:1/mcp'), /github/);
  t.regex(await run(1, 'target create other --url nonsense'), /url/);
  t.regex(await run(2, 'target create other --enabled maybe'), /--enabled must be true or false, not maybe/);
  t.regex(await run(2, 'target create other --timeout-ms soon'), /--timeout-ms must be a number, not soon/);
  t.regex(await run(2, 'target create other --own-accounts {'), /--own-accounts must be JSON/);
  t.regex(await run(2, 'target create'), /create needs <name>/);
  t.regex(await run(2, 'target list --limit 0'), /--limit must be a number/);
  const refused = await inProcess({ PORTCULLIS_URL: 'http://127.0.0.1:1', PORTCULLIS_TOKEN: 'a.b.c' }, (terminal) =>
    runGroup(groupOf('target'), ['list', '--json'], terminal),
  );
  t.deepEqual([refused.code, JSON.parse(refused.out).error.code], [1, 'no_answer']);
  t.is(await run(0, 'target delete github'), 'done\n');
  t.deepEqual(await json('target list'), []);
});

test.serial('target health and target check show the fault, and the end of what the process printed', async (t) => {
  const { gateway, run, admin } = await start(t, { STDIO_ALLOWED: process.execPath });
  const script = `console.error('\\u001b[2J GITHUB_HOST is not set'); console.error('the last line'); process.exit(3)`;
  await run(
    0,
    `target create broken --transport stdio --command ${process.execPath} --args ["-e",${JSON.stringify(script).replaceAll(' ', '%20')}]`,
  );
  t.regex(await run(0, 'target health broken'), /^status +unknown$/m);
  await gateway.rest(201, 'POST', '/api/policies', {
    token: admin.token,
    body: { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] },
  });
  const client = modernClient(t, `${gateway.url}/mcp/broken`, admin.token);
  await t.throwsAsync(async () => (await client).listTools());
  const shown = await run(0, 'target health broken');
  t.regex(shown, /^status +(failing|suspended)$/m);
  t.regex(shown, /^ {2}kind {5}crashed$/m);
  t.regex(shown, /exit code 3/);
  t.true(shown.includes('\\u{1b}[2J GITHUB_HOST is not set\n'), shown);
  t.regex(shown, /^ {4}the last line$/m);
  t.false(shown.includes('\u001b'));

  const checked = await run(1, 'target check broken');
  t.regex(checked, /^ {2}kind {5}crashed$/m);
  t.true(checked.includes('\\u{1b}[2J GITHUB_HOST is not set\n'), checked);
  t.regex(checked, /^protocol_version +-$/m);
});

test.serial('user and group: create, list, role, groups, disable, enable, recycle', async (t) => {
  const { gateway, run, json, token } = await start(t);
  const file = join(folder(t), 'password');
  writeFileSync(file, '\uFEFFa long passphrase\r\n');
  await run(0, `user create Ann@example.com --role developer --groups a,b --password-file ${file}`);
  t.like(await json('user show ann@example.com'), { email: 'Ann@example.com', role: 'developer', groups: ['a', 'b'] });
  await gateway.rest(200, 'POST', '/api/auth/login', { body: { email: 'ann@example.com', password: 'a long passphrase' } });
  t.deepEqual(
    (await json('user list --role developer --group a,b')).map(({ email }: { email: string }) => email),
    ['Ann@example.com'],
  );
  t.deepEqual(await json('user list --group a,z'), []);
  t.regex(await run(0, 'user list'), /^EMAIL {14}ROLE {7}GROUPS {2}ENABLED {2}ISSUER {6}ID$/m);
  await run(0, 'user role ann@example.com auditor');
  await run(0, 'user groups ann@example.com ["x,y","z"]');
  t.like(await json('user show ann@example.com'), { role: 'auditor', groups: ['x,y', 'z'] });
  await run(0, "user groups ann@example.com ''");
  await run(0, 'group add ops ann@example.com');
  await run(0, 'group add web ann@example.com');
  t.regex(await run(0, 'group list'), /^GROUP {2}USERS\nops {4}1\nweb {4}1\n$/);
  await run(0, 'group remove web ann@example.com');
  t.deepEqual(await json('group list'), [{ group: 'ops', users: 1 }]);
  t.is((await json('group show ops'))[0].email, 'Ann@example.com');
  const atOnce = await inProcess({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, async (terminal) => {
    const added = ['a', 'b', 'c'].map((group) => ['add', group, 'ann@example.com']);
    const words = [...added, ['remove', 'ops', 'ann@example.com']];
    return Math.max(...(await Promise.all(words.map((some) => runGroup(groupOf('group'), some, terminal)))));
  });
  t.is(atOnce.code, 0, atOnce.err);
  t.deepEqual((await json('user show ann@example.com')).groups.toSorted(), ['a', 'b', 'c']);
  await run(0, 'user disable ann@example.com');
  await gateway.rest(401, 'POST', '/api/auth/login', { body: { email: 'ann@example.com', password: 'a long passphrase' } });
  await run(0, 'user enable ann@example.com');
  t.deepEqual(await json('user recycle ann@example.com'), { recycled: 0 });

  t.regex(await run(1, 'user role nobody@example.com x'), /no user is called nobody@example\.com/);
  t.regex(await run(1, 'user role admin@example.com user'), /last/);
  t.regex(await run(1, `user create ann@example.com --password-file ${file}`), /e-mail/i);
  t.regex(await run(1, 'user create x@example.com --password-file /nowhere'), /\/nowhere cannot be read \(ENOENT\)/);
  t.regex(await run(2, 'user create x@example.com --password secret'), /--password/);
});

test.serial('token: an access token cannot make one, and the command says what can', async (t) => {
  const { gateway, admin, run, json } = await start(t);
  const own = { PORTCULLIS_TOKEN: admin.token };
  const forbidden = await run(1, 'token create ci');
  t.regex(forbidden, /on the account page, http:\S+\/account, or set PORTCULLIS_TOKEN to the token of POST \/api\/auth\/login/);
  const { api_token, token } = await json('token create ci --expires-at 90d --limits {"rights":["read"]}', own);
  t.is(api_token.name, 'ci');
  t.true(Math.abs(Date.parse(api_token.expires_at) - Date.now() - 90 * 86_400_000) < 60_000);
  t.like(await json('token rights', { PORTCULLIS_TOKEN: token }), { admin: false });
  t.regex(await run(0, 'token list', own), /^ci +\S+ +\S+ +\{"rights":\["read"\]/m);
  await run(0, 'token revoke ci', own);
  await gateway.rest(401, 'GET', '/api/auth/me', { token });
  t.regex(await run(1, 'token revoke ci', own), /no token is called ci/);
});

test.serial('credential: the value comes from a file or standard input, and nothing shows it', async (t) => {
  const { gateway, token, run, json } = await start(t);
  await run(0, 'target create github --url http://127.0.0.1:1/mcp');
  const file = join(folder(t), 'value');
  writeFileSync(file, 'hunter2\n');
  const set = [
    await run(0, `credential set github --value-file ${file}`),
    await run(0, `credential set github --header x-api-key --group a/b --value-file ${file}`),
    await run(0, `credential set github --user admin@example.com --value-file ${file} --json`),
  ];
  t.false(set.join('').includes('hunter2'));
  const rows = await json('credential list github');
  t.deepEqual(rows.map((row: Record<string, unknown>) => [row['subject_type'], row['type'], row['name'], row['usable']]).sort(), [
    ['default', 'bearer', 'authorization', true],
    ['group', 'header', 'x-api-key', true],
    ['user', 'bearer', 'authorization', true],
  ]);
  t.is(rows.find((row: Record<string, unknown>) => row['subject_type'] === 'group').subject_value, 'a/b');
  await run(0, 'credential delete github --group a/b --name x-api-key');
  t.is((await json('credential list github')).length, 2);
  t.regex(await run(2, `credential set github --role .. --value-file ${file}`), /"\.\." cannot be the value/);
  t.regex(await run(2, `credential set github --role a --group b --value-file ${file}`), /only one of --user, --group, --role/);
  t.regex(await run(2, 'credential set github --value hunter2'), /--value/);
  // Standard input, in a process of its own.
  const piped = await portcullis({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, 'credential', 'set', 'github');
  t.deepEqual([piped.code, /value/.test(piped.err)], [1, true], 'the standard input of the test is empty');
  t.deepEqual(await json('credential own'), []);
});

/** Says on standard error when the process begins to read standard input. */
const SAYS_WHEN_IT_READS = `
  import fs from 'node:fs';
  import { syncBuiltinESMExports } from 'node:module';
  const { readSync } = fs;
  let isTold = false;
  fs.readSync = (...args) => {
    if (args[0] === 0 && !isTold) isTold = fs.writeSync(2, 'reads') > 0;
    return readSync(...args);
  };
  syncBuiltinESMExports();`;

test.serial('a secret arrives from standard input even if its writer is slower than the command', async (t) => {
  const { gateway, token, run, json } = await start(t);
  await run(0, 'target create github --url http://127.0.0.1:1/mcp');
  for (const line of ['credential set github', 'user create ann@example.com']) {
    const child = spawn(process.execPath, [...program('cli/portcullis'), ...line.split(' ')], {
      env: {
        ...{ PATH: process.env['PATH'], PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token },
        NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(SAYS_WHEN_IT_READS)}`,
      },
      stdio: ['pipe', 'ignore', 'pipe'],
    });
    let said = '';
    child.stdin.on('error', () => undefined);
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text;
      if (text === 'reads') child.stdin.end('a long passphrase');
    });
    t.deepEqual([await once(child, 'close'), said], [[0, null], 'reads'], line);
  }
  t.is((await json('credential list github')).length, 1);
  await gateway.rest(200, 'POST', '/api/auth/login', { body: { email: 'ann@example.com', password: 'a long passphrase' } });
});

test.serial('session, key, replica, client, provider, right, connection: lists and operations', async (t) => {
  const { run, json, admin } = await start(t);
  const own = { PORTCULLIS_TOKEN: admin.token };
  t.is(await run(0, 'session list'), 'none\n');
  t.deepEqual(await json('session recycle --all'), { recycled: 0 });
  t.regex(await run(1, 'session recycle'), /"all": true/);
  t.regex(await run(1, 'session end 00000000-0000-4000-8000-000000000000'), /session/i);
  t.deepEqual([await json('session browsers', own), await json('session grants', own)], [[], []]);
  t.deepEqual(await json('session browsers --user admin@example.com', own), []);
  t.is(await run(0, 'session end-browsers', own), 'done\n');
  const [{ kid }] = (await json('key list')).keys;
  const rotated = await json('key rotate');
  t.not(rotated.kid, kid);
  t.regex(await run(0, 'replica list'), /^THIS +STARTED AT .*\nyes/);
  t.regex(await run(0, 'key status'), /^KID +CREATED AT +RETIRED AT +API TOKENS$/m);
  t.regex(await run(0, 'key list'), /^KID +ALG +KTY +USE$/m);
  for (const noun of ['client', 'provider', 'connection']) t.deepEqual(await json(`${noun} list`), []);
  const right = await json('right give targets:operate --user admin@example.com');
  t.deepEqual((await json('right list')).length, 1);
  await run(0, `right take ${right.id}`);
  t.regex(await run(2, 'right give read'), /pass --user, --group or --role/);
});

test.serial('what answers 200 but is no gateway is no result', async (t) => {
  const { run, token } = await start(t);
  let [type, text, id] = ['', '', 'x'];
  const other = createServer((_req, res) => {
    if (id !== '') res.setHeader('x-request-id', id);
    res.setHeader('content-type', type).end(text);
  }).listen(0, '127.0.0.1');
  await once(other, 'listening');
  t.teardown(() => void other.close());
  const at = { PORTCULLIS_URL: `http://127.0.0.1:${(other.address() as AddressInfo).port}` };
  for (const answer of [
    ['text/html; charset=utf-8', '<html>Sign in'],
    ['application/json', 'null'],
    ['application/json', '1'],
  ]) {
    [type = '', text = ''] = answer;
    for (const line of ['target list', 'log list', 'token create x', ...(type.startsWith('text/html') ? ['log export'] : [])])
      t.regex(await run(1, line, at), /answered 200, but not as a Portcullis gateway does/, line);
  }
  const empty = folder(t);
  for (text of ['{"a":1}', '[null]']) {
    for (const line of [
      ...[
        'target list',
        'target show x',
        'user show x',
        'group list',
        'log list',
        'policies history',
        'policies who-can x tool y',
      ],
      ...[
        'invariants list',
        'owner list',
        'owner show x',
        'drafts list',
        'drafts show x',
        'drafts shadow x',
        'drafts activate x',
      ],
      ...[`invariants export --dir ${empty}`, `policies export --owner default --dir ${empty}`],
    ]) {
      const [name = '', ...words] = line.split(' ');
      const ran = await inProcess({ PORTCULLIS_TOKEN: token, ...at }, (terminal) => command(name)(words, terminal));
      t.is(ran.code, 1, `${line}: ${ran.err}`);
      t.regex(ran.err, /answered 200, but not as a Portcullis gateway does/, `${line}: ${text}`);
    }
  }
  [id, text] = ['', '{}'];
  for (const line of ['policies diff 0', 'policies compare 0', `bundle --out ${empty}/b`, 'status']) {
    const [name = '', ...words] = line.split(' ');
    const ran = await inProcess({ PORTCULLIS_TOKEN: token, ...at }, (terminal) => command(name)(words, terminal));
    t.is(ran.code, 1, `${line}: ${ran.err}`);
    t.regex(ran.err, /answered 200, but not as a Portcullis gateway does/, line);
  }
  t.deepEqual(readdirSync(empty), []);
});

test.serial('log: every filter, one decision, paging, export and checkpoint', async (t) => {
  const w = await world(t);
  const { token } = await apiToken(w.gateway, w.admin);
  const environment = { PORTCULLIS_URL: w.gateway.url, PORTCULLIS_TOKEN: token };
  const run = async (...words: string[]) => {
    const ran = await inProcess(environment, (terminal) => runGroup(groupOf('log'), words, terminal));
    t.is(ran.code, 0, ran.err);
    return ran;
  };
  const json = async (...words: string[]) => JSON.parse((await run(...words, '--json')).out);
  /** Without what becomes known later. */
  const list = async (...words: string[]): Promise<LogJson[]> =>
    (await json('list', ...words)).map((row: LogJson) => ({ ...row, outcome: null, duration_ms: null, shown: null }));
  await w.allow({ name: 'Everything' });
  const client = await modernClient(t, w.mcp, w.token);
  await client.listTools();
  for (let i = 0; i < 3; i++) await client.callTool({ name: 'echo', arguments: { message: 'x' } }).catch(() => undefined);
  const all = await list();
  t.true(all.length >= 4);
  const [first] = all;
  for (const [option, value] of [
    ['--from', '1h'],
    ['--to', new Date(Date.now() + 60_000).toISOString()],
    ['--user', 'user@example.com'],
    ['--target', 'everything'],
    ['--target-name', 'everything'],
  ] as const) {
    t.deepEqual(await list(option, value), all, option);
  }
  const row = all.find(({ resource_name }) => resource_name === 'echo') as LogJson;
  for (const [option, value, member] of [
    ['--id', row.id, 'id'],
    ['--method', 'tools/call', 'method'],
    ['--resource-type', 'tool', 'resource_type'],
    ['--resource-name', 'echo', 'resource_name'],
    ['--resource-name-prefix', 'ec', 'resource_name'],
    ['--effect', row.effect, 'effect'],
    ['--reason', row.reason, 'reason'],
  ] as const) {
    const wanted = all.filter((one) => one[member] === row[member]);
    t.deepEqual(await list(option, value), wanted, option);
  }
  t.deepEqual((await json('list', '--policy', 'Everything')).length, all.filter((one) => one.policy_id === row.policy_id).length);
  const cut = await run('list', '--limit', '1', '--json');
  t.is(JSON.parse(cut.out)[0].id, first?.id);
  t.regex(cut.err, /these are the first 1: pass a larger --limit for more/);
  t.is((await json('show', row.id)).resource_name, 'echo');
  t.regex((await run('show', row.id)).out, /^method +tools\/call$/m);
  t.regex((await json('checkpoint')).checkpoint, /^ey/);
  const out = join(folder(t), 'log.ndjson');
  await run('export', '--out', out);
  t.is((await portcullis({ MASTER_KEY: Buffer.alloc(32, 7).toString('base64') }, 'audit', 'verify', '--export', out)).code, 0);
  const child = spawn(process.execPath, [...program('cli/portcullis'), 'log', 'export'], {
    env: { PATH: process.env['PATH'], ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.stdout.destroy();
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  t.deepEqual([await once(child, 'close'), said], [[0, null], ''], 'a reader that ends early has read enough');
  await run('export', '--format', 'csv', '--effect', 'deny', '--out', out);
  t.regex(readFileSync(out, 'utf8'), /^id,/);
  const wrong = await inProcess(environment, (terminal) => runGroup(groupOf('log'), ['list', '--effect', 'maybe'], terminal));
  t.deepEqual([wrong.code, /effect/.test(wrong.err)], [1, true]);
});

test.serial('a last line says what the rows of an answer leave out', async (t) => {
  const { run } = await start(t);
  let answer = {};
  const server = createServer((_req, res) => {
    res.setHeader('content-type', 'application/json').setHeader('x-request-id', 'x').end(JSON.stringify(answer));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => void server.close());
  const at = { PORTCULLIS_URL: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
  const [id, time] = ['01a22de6-6170-704a-8b24-619372407659', '2026-01-01T00:00:00.000Z'];
  for (const [line, members, last] of [
    ['log count --by hour', { counts: [{ allowed: 7 }], more: true }, 'These are the first 1, and there are more.'],
    ['log count --by hour', { counts: [], more: false }, 'none'],
    [
      'log demand',
      { demand: [{ denials: 7 }], more: true, read_to: time },
      `These are the first 1, and there are more. Denials before ${time} are not counted.`,
    ],
    ['log demand', { demand: [], more: false, read_to: time }, `Denials before ${time} are not counted.`],
    ['log demand', { demand: [], more: false, read_to: null }, 'none'],
    [`target catalogue ${id}`, { names: [{ resource_name: 'a' }], names_count: 2 }, 'These are the first 1, and there are more.'],
  ] as const) {
    answer = members;
    t.is((await run(0, line, at)).trimEnd().split('\n').at(-1), last);
  }
});

const ESCAPES = '\u001b]0;owned\u0007\u001b[2J\u009b31m\u202egpj.exe\r\nfake  row';

test('text from others moves no cursor and makes no line, in a table, in a card and in JSON', async (t) => {
  const row = { name: ESCAPES, effect: 'deny', list: [ESCAPES], inner: { [`a`]: ESCAPES }, id: 'i' };
  const shown = [
    tableText([row, row], ['name', 'list', 'inner', 'effect', 'id'], PLAIN),
    tableText([row, row], ['name', 'list', 'inner', 'effect', 'id'], { columns: 60, colours: false }),
  ];
  for (const text of shown) {
    t.is(text.split('\n').length, 4, text);
    t.notRegex(text, /[^\P{Cc}\n]|\u202e/u);
  }
  const card = cardText(row);
  t.notRegex(card, /[^\P{Cc}\n]|\u202e/u);
  // Only a text of its own may have lines, which are indented below its name.
  t.notRegex(card, /^fake/m);
  const coloured = tableText([row], ['name', 'effect', 'id'], { columns: 60, colours: true });
  // biome-ignore lint/suspicious/noControlCharactersInRegex: that is what the test is about
  t.deepEqual(coloured.match(/\u001b\[\d+m/g), [
    ...Array(3)
      .fill('\u001b[1m')
      .flatMap((bold) => [bold, '\u001b[0m']),
    '\u001b[31m',
    '\u001b[0m',
  ]);
});

test.serial('a target name and an e-mail of an attacker arrive escaped in every form of output', async (t) => {
  const { gateway, admin, run, json } = await start(t);
  // The gateway refuses such e-mails and names; descriptions may have line breaks, and clients choose what they call themselves.
  await gateway.rest(400, 'POST', '/api/auth/register', {
    body: { email: `${ESCAPES}@example.com`, password: 'a long passphrase' },
  });
  await run(0, 'target create github --url http://127.0.0.1:1/mcp');
  const { body } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/targets', { token: admin.token });
  const description = 'one\n\tfake  streamable-http\u202e';
  await gateway.rest(200, 'PUT', `/api/targets/${body[0]?.id}`, { token: admin.token, body: { description } });
  const table = await run(0, 'target list');
  t.is(table.split('\n').length, 3);
  t.true(table.includes('one\\u{a}\\u{9}fake  streamable-http\\u{202e}'), table);
  t.is((await json('target show github')).description, description);
  t.notRegex(await run(0, 'target show github --json'), /[\t\u202e]/);
  await modernClient(t, `${gateway.url}/mcp/${'x'.repeat(10)}`, admin.token).catch(() => undefined);
  const named = await fetch(`${gateway.url}/mcp/github`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${admin.token}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id: 1,
      method: 'tools/call',
      params: { name: ESCAPES, arguments: {}, _meta: { 'io.modelcontextprotocol/protocolVersion': '2026-07-28' } },
    }),
  });
  await named.text();
  for (const line of ['log list', 'log list --json']) t.notRegex(await run(0, line), /[^\P{Cc}\n]|\u202e/u);
});

test('a table is aligned, cut to the width of the terminal, and never cuts an id', (t) => {
  const id = '019a8c1e-6f0c-7d3a-9c43-2f6f8a2d7b10';
  const rows = [
    { name: '漢字', note: 'x'.repeat(200), id },
    { name: 'cafe\u0301', note: null, id },
  ];
  const text = tableText(rows, ['name', 'note', 'id'], { columns: 70, colours: false });
  t.deepEqual(text.split('\n'), [
    `NAME  NOTE                        ID`,
    `漢字  ${'x'.repeat(25)}…  ${id}`,
    `cafe\u0301  -                           ${id}`,
    '',
  ]);
  t.true(tableText(rows, ['name', 'note', 'id'], PLAIN).includes('x'.repeat(200)));
  t.is(tableText([], ['name'], PLAIN), 'none\n');
});

test.serial('a command that waits longer than a second says so', async (t) => {
  const { createServer } = await import('node:http');
  const server = createServer((_req, res) =>
    setTimeout(() => res.setHeader('x-request-id', 'x').setHeader('content-type', 'application/json').end('[]'), 1_300),
  );
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => server.close());
  const address = server.address();
  const port = typeof address === 'object' ? address?.port : 0;
  const ran = await inProcess({ PORTCULLIS_URL: `http://127.0.0.1:${port}`, PORTCULLIS_TOKEN: 'a.b.c' }, (terminal) =>
    runGroup(groupOf('target'), ['list'], terminal),
  );
  t.deepEqual(ran, { code: 0, out: 'none\n', err: 'portcullis: waiting for the gateway\n' });
});
