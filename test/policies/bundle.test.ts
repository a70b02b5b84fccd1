/** Recorded decisions are reproduced by stock OPA from a bundle, and by the command (law 3). */
import { execFile, execFileSync } from 'node:child_process';
import { createPublicKey } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { request } from 'undici';
import type { LogJson } from '../../src/audit/search/log-json.ts';
import { auditGroup } from '../../src/cli/audit.ts';
import { bundleGroup } from '../../src/cli/bundle.ts';
import { runGroup } from '../../src/cli/command.ts';
import { askedIn } from '../../src/policies/reproduction.ts';
import { inProcess } from '../cli/cli.ts';
import { apiToken, person, startGateway, type TestGateway } from '../support/gateway.ts';
import { post } from '../support/mcp.ts';
import { findOpa, OPA_HINT } from '../support/opa.ts';
import { program } from '../support/process.ts';
import { policyBody } from './policies.ts';
import { addTarget } from './sets.ts';

const found = findOpa();
const opa = 'path' in found ? found.path : null;
const withOpa = opa === null ? test.skip : test;
if ('missing' in found) test(`bundles are not tested with stock OPA: ${found.missing} (${OPA_HINT})`, (t) => t.pass());

const DECISIONS = 1_000;
const REVISIONS = 10;
const AT_ONCE = 20;
const UNLIMITED = {
  MCP_RATE_LIMIT: '1000000',
  API_RATE_LIMIT: '1000000',
  DENIAL_RATE_LIMIT: '1000000',
  LOGIN_RATE_LIMIT: '1000',
};

const NAMES = ['read', 'read_all', 'write', 'delete_user', 'Lesen', 'naïve', 'a"b\\c\u202e', 'x'] as const;
const PATTERNS = [null, '^read', 'e$', '^(read|write)$', 'l', '^[a-z_]+$', '(?i)LESEN', '.', 'a"b', 'ï', '\u2028'] as const;
const SUBJECTS = [
  { subject_type: 'everyone' },
  ...['user', 'dev'].map((subject_value) => ({ subject_type: 'role', subject_value })),
  ...['red', 'blue'].map((subject_value) => ({ subject_type: 'group', subject_value })),
];

const someone = fc.record({ role: fc.constantFrom('user', 'dev', 'other'), groups: fc.subarray(['red', 'blue', 'green']) });
const somePolicy = (targets: readonly string[]) =>
  fc.record({
    name: fc.constant('p'),
    priority: fc.integer({ min: 0, max: 3 }),
    effect: fc.constantFrom('allow', 'allow', 'deny'),
    resource_type: fc.constantFrom('tool', 'tool', 'all', 'prompt', 'resource'),
    resource_pattern: fc.constantFrom(...PATTERNS),
    target_id: fc.constantFrom(null, ...targets),
    subjects: fc.uniqueArray(fc.constantFrom(...SUBJECTS), { minLength: 1, maxLength: 2 }),
  });
const someMessage = fc.oneof(
  ...[
    fc.constantFrom(...NAMES).map((name) => ({ method: 'tools/call', params: { name, arguments: {} } })),
    fc.constantFrom(...NAMES).map((name) => ({ method: 'prompts/get', params: { name } })),
    fc.constantFrom('file:///read', 'file:///etc/x').map((uri) => ({ method: 'resources/read', params: { uri } })),
    fc.constant({ method: 'tools/list', params: {} }),
  ].map((arbitrary) => arbitrary as fc.Arbitrary<{ method: string; params: object }>),
);

interface Scene {
  readonly gateway: TestGateway;
  readonly admin: string;
  readonly environment: Record<string, string>;
}

async function begin(t: ExecutionContext): Promise<Scene> {
  const gateway = await startGateway(t, null, UNLIMITED);
  const administrator = await person(gateway, 'admin@example.com');
  const { token } = await apiToken(gateway, administrator);
  return { gateway, admin: administrator.token, environment: { PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token } };
}

/** Makes decisions of random callers with random policies. The sessions are unknown, so each call is refused after its decision. */
async function decideAtRandom(t: ExecutionContext, { gateway, admin }: Scene, decisions: number): Promise<LogJson[]> {
  const seed = Number(process.env['PORTCULLIS_TEST_SEED'] ?? Date.now());
  t.log(`seed ${seed}`);
  let drawn = seed;
  const draw = <T>(arbitrary: fc.Arbitrary<T>): T => fc.sample(arbitrary, { numRuns: 1, seed: drawn++ })[0] as T;
  const targets = [await addTarget(gateway, admin, 'one'), await addTarget(gateway, admin, 'two')];
  const tokens: string[] = [];
  for (let n = 0; n < 6; n++) {
    const account = { email: `user-${n}@example.com`, password: 'a long passphrase' };
    await gateway.rest(201, 'POST', '/api/users', { token: admin, body: { ...account, ...draw(someone) } });
    const { body } = await gateway.rest<{ token: string }>(200, 'POST', '/api/auth/login', { body: account });
    tokens.push(body.token);
  }
  for (let round = 0; round < REVISIONS; round++) {
    for (let n = 0; n < 3; n++) {
      await gateway.rest(201, 'POST', '/api/policies', { token: admin, body: policyBody(draw(somePolicy(targets))) });
    }
    const messages = Array.from({ length: decisions / REVISIONS }, () => draw(someMessage));
    for (let from = 0; from < messages.length; from += AT_ONCE) {
      await Promise.all(
        messages.slice(from, from + AT_ONCE).map((message, n) => {
          const target = draw(fc.constantFrom('one', 'two'));
          const token = draw(fc.constantFrom(...tokens));
          return post(`${gateway.url}/mcp/${target}`, token, { jsonrpc: '2.0', id: n, ...message }, { 'mcp-session-id': 'none' });
        }),
      );
    }
  }
  const rows: LogJson[] = [];
  for (let path: string | undefined = '/api/logs?limit=500'; path !== undefined; ) {
    const { body, headers }: { body: LogJson[]; headers: Headers } = await gateway.rest<LogJson[]>(200, 'GET', path, {
      token: admin,
    });
    rows.push(...body);
    path = /<[^>]*(\/api\/[^>]*)>; rel="next"/.exec(headers.get('link') ?? '')?.[1];
  }
  return rows;
}

const inputOf = ({
  user_id: sub,
  user_role: role,
  user_groups: groups,
  target_id: target,
  resource_type,
  resource_name,
}: LogJson) => ({
  ...{ sub, role, groups, target },
  ...(resource_type === null ? {} : { type: resource_type, name: resource_name }),
});

function folderOf(t: ExecutionContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-bundle-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

async function download({ gateway, admin }: Scene, query: string): Promise<{ bytes: Buffer; headers: Headers }> {
  const answer = await fetch(`${gateway.url}/api/policies/bundle?${query}`, { headers: { authorization: `Bearer ${admin}` } });
  if (answer.status !== 200) throw new Error(await answer.text());
  return { bytes: Buffer.from(await answer.arrayBuffer()), headers: answer.headers };
}

withOpa(`stock OPA reproduces ${DECISIONS} recorded decisions with the bundle of their revision`, async (t) => {
  t.timeout(300_000);
  const scene = await begin(t);
  const rows = await decideAtRandom(t, scene, DECISIONS);
  t.is(rows.length, DECISIONS);
  const byRevision = new Map<number, LogJson[]>();
  for (const row of rows) byRevision.set(row.revision, [...(byRevision.get(row.revision) ?? []), row]);
  t.is(byRevision.size, REVISIONS);
  t.true(
    rows.some(({ effect }) => effect === 'allow') && rows.some(({ reason, effect }) => effect === 'deny' && reason === 'matched'),
  );

  const folder = folderOf(t);
  const answers = ['reference', 'gateway'].map((rules) => {
    const ask = (rule: string): string => `data.portcullis.${rules}.${rule} with input as asked`;
    return `[answer | some asked in input; answer := {"object": {x | asked.name; x := ${ask('decision')}}, "target": {x | not asked.name; x := ${ask('target')}}}]`;
  });
  for (const [revision, decided] of byRevision) {
    const bundle = join(folder, `${revision}.tar.gz`);
    writeFileSync(bundle, (await download(scene, `revision=${revision}`)).bytes);
    writeFileSync(join(folder, 'input.json'), JSON.stringify(decided.map(inputOf)));
    for (const query of answers) {
      const out = execFileSync(opa ?? '', ['eval', '-b', bundle, '-i', join(folder, 'input.json'), '-f', 'values', query], {
        encoding: 'utf8',
        maxBuffer: 2 ** 28,
      });
      type Verdict = { effect: string; policy: string | null; reason: string };
      const [verdicts = []] = JSON.parse(out) as { object: Verdict[]; target: Verdict[] }[][];
      t.deepEqual(
        verdicts.map(({ object, target }) =>
          [...object, ...target].map(({ effect, policy, reason }) => [effect, policy, reason]),
        ),
        decided.map(({ effect, policy_id, reason }) => [[effect, policy_id, reason]]),
        `revision ${revision}`,
      );
    }
  }
});

test.serial(
  'the command and the gateway reproduce decisions, and the command shows how to do it without the gateway',
  async (t) => {
    const scene = await begin(t);
    const rows = await decideAtRandom(t, scene, 40);
    const run = (...args: string[]) =>
      inProcess(scene.environment, (terminal) => runGroup(auditGroup, ['reproduce', ...args], terminal));
    for (const row of rows) {
      const { code, out, err } = await run(row.id, '--json');
      t.is(code, 0, err);
      const { effect, policy_id, reason, input } = JSON.parse(out) as LogJson & { input: object };
      t.deepEqual({ effect, policy_id, reason }, { effect: row.effect, policy_id: row.policy_id, reason: row.reason });
      t.deepEqual(input, inputOf(row));
      const path = `/api/logs/${row.id}/reproduction`;
      const { body: again } = await scene.gateway.rest<LogJson & { result: string }>(200, 'GET', path, { token: scene.admin });
      const { revision, data_hash, engine_hash } = row;
      t.deepEqual(again as object, {
        ...{ id: row.id, revision, result: 'same', effect, policy_id, reason, data_hash, engine_hash, differences: [] },
      });
    }
    // A shell reads the printed command as the original arguments, with backslashes and quotes.
    const odd = rows.find(({ resource_name }) => resource_name?.includes('\\')) ?? rows[0];
    if (odd === undefined) throw new Error('nothing was decided');
    const { out } = await run(odd.id);
    const command = out.split('\n').find((line) => line.endsWith(' > input.json')) ?? '';
    const written = execFileSync('sh', ['-c', command.replace(/ > input\.json$/, '')], { encoding: 'utf8' });
    t.deepEqual(JSON.parse(written), inputOf(odd));
    t.regex(out, /opa eval -b portcullis\.tar\.gz -i input\.json data\.portcullis\.reference\.(decision|target)/);
  },
);

test.serial('the command says why a decision cannot be reproduced', async (t) => {
  const scene = await begin(t);
  const { gateway, admin, environment } = scene;
  await addTarget(gateway, admin, 'one');
  await gateway.rest(201, 'POST', '/api/policies', { token: admin, body: policyBody() });
  const ask = (target: string) =>
    post(
      `${gateway.url}/mcp/${target}`,
      admin,
      { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'x' } },
      { 'mcp-session-id': 'none' },
    );
  await ask('nowhere');
  const latest = async () => (await gateway.rest<LogJson[]>(200, 'GET', '/api/logs?limit=1', { token: admin })).body[0]?.id ?? '';
  const run = (...args: string[]) => inProcess(environment, (terminal) => runGroup(auditGroup, ['reproduce', ...args], terminal));
  const nowhere = await run(await latest());
  t.is(nowhere.code, 1);
  t.regex(nowhere.err, /no policy made this decision.*no_target/);

  t.is((await run('x')).code, 2);
  t.is((await run()).code, 2);
  const unknown = await run('00000000-0000-7000-8000-000000000000');
  t.is(unknown.code, 1);
  t.regex(unknown.err, /no recorded decision has the id/);

  await ask('one');
  const id = await latest();
  t.is((await run(id)).code, 0);
  const [row] = (await gateway.rest<LogJson[]>(200, 'GET', '/api/logs?limit=1', { token: admin })).body;
  for (const lost of ['user_id', 'method', 'reason', 'target_id'] as const)
    t.is(askedIn({ ...row, [lost]: null } as unknown as LogJson), 'damaged', lost);
  await gateway.rest(200, 'POST', '/api/logs/erase', { token: admin, body: { user_id: row?.user_id } });
  const erased = await run(id);
  t.is(erased.code, 1);
  t.regex(erased.err, /erased/);
});

test.serial('a bundle always has the same bytes, names its revision, and is for administrators only', async (t) => {
  const scene = await begin(t);
  const { gateway, admin } = scene;
  for (let n = 0; n < 2; n++) await gateway.rest(201, 'POST', '/api/policies', { token: admin, body: policyBody() });
  const [one, two] = [await download(scene, 'revision=1'), await download(scene, '')];
  t.deepEqual(one.bytes, (await download(scene, 'revision=1')).bytes);
  t.notDeepEqual(one.bytes, two.bytes);
  t.is(two.headers.get('portcullis-revision'), '2');
  // Not with fetch, which adds `Cache-Control: no-cache`.
  const again = await request(`${gateway.url}/api/policies/bundle`, {
    headers: { authorization: `Bearer ${admin}`, 'if-none-match': two.headers.get('etag') ?? '' },
  });
  t.is(again.statusCode, 304);

  const user = await person(gateway, 'user@example.com');
  for (const path of ['bundle', 'rego']) {
    t.is((await fetch(`${gateway.url}/api/policies/${path}`)).status, 401);
    await gateway.rest(403, 'GET', `/api/policies/${path}`, { token: user.token });
    await gateway.rest(404, 'GET', `/api/policies/${path}?revision=3`, { token: admin });
    await gateway.rest(400, 'GET', `/api/policies/${path}?revision=x`, { token: admin });
    await gateway.rest(400, 'GET', `/api/policies/${path}?other=1`, { token: admin });
  }
  const { body } = await gateway.rest<{ data: { policies: unknown[] }; data_hash: string; rego: Record<string, string> }>(
    200,
    'GET',
    '/api/policies/rego?revision=1',
    { token: admin },
  );
  t.is(body.data.policies.length, 1);
  t.regex(body.data_hash, /^[0-9a-f]{64}$/);
  t.regex(body.rego['reference.rego'] ?? '', /^package portcullis\.reference$/m);
});

withOpa('stock OPA accepts a signed bundle, and refuses one that was changed', async (t) => {
  const scene = await begin(t);
  const { gateway, admin, environment } = scene;
  const patterns = ['a\u2028b', '<&>', 'naïve \u{1f600}', '\\t'];
  for (const resource_pattern of patterns) {
    await gateway.rest(201, 'POST', '/api/policies', { token: admin, body: policyBody({ resource_pattern }) });
  }
  const folder = folderOf(t);
  const out = join(folder, 'signed.tar.gz');
  const ran = await inProcess(environment, (terminal) => runGroup(bundleGroup, ['bundle', '--signed', '--out', out], terminal));
  t.is(ran.code, 0, ran.err);
  t.regex(ran.out, /revision 4, \d+ bytes/);
  const { keys } = (await (await fetch(`${gateway.url}/.well-known/jwks.json`)).json()) as { keys: { kid: string }[] };
  const [jwk] = keys;
  const pem = join(folder, 'key.pem');
  writeFileSync(pem, createPublicKey({ key: jwk as never, format: 'jwk' }).export({ type: 'spki', format: 'pem' }));
  const verify = (bundle: string): string =>
    execFileSync(
      opa ?? '',
      [
        'build',
        '-b',
        bundle,
        '--verification-key',
        pem,
        '--verification-key-id',
        jwk?.kid ?? '',
        '--signing-alg',
        'ES256',
        '-o',
        join(folder, 'out.tar.gz'),
      ],
      { encoding: 'utf8', stdio: 'pipe' },
    );
  t.notThrows(() => verify(out));

  // The commands of the page, as they stand.
  const page = readFileSync(new URL('../../docs/policies.md', import.meta.url), 'utf8');
  const [, commands = ''] = /```sh\n(portcullis bundle --signed\n.*?)```/s.exec(page) ?? [];
  const words = [process.execPath, ...program('cli/portcullis')].map((word) => JSON.stringify(word)).join(' ');
  const here = process.cwd();
  const script = `set -eu\nportcullis() { (out=$PWD; cd ${JSON.stringify(here)}; ${words} "$@" --out "$out/portcullis.tar.gz"); }\n${commands}`;
  const { stdout: printed } = await promisify(execFile)('bash', ['-c', script], {
    cwd: folder,
    encoding: 'utf8',
    env: { ...environment, PATH: `${dirname(opa ?? '')}${delimiter}${process.env['PATH']}` },
  });
  t.regex(printed, /"effect": "(allow|deny)"/);

  execFileSync('tar', ['-xzf', out], { cwd: folder });
  writeFileSync(join(folder, 'data.json'), JSON.stringify({ policies: [], index: {}, order: [], unmatched: 0 }));
  const files = ['.manifest', '.signatures.json', 'data.json', 'portcullis'];
  execFileSync('tar', ['-czf', 'changed.tar.gz', ...files], { cwd: folder });
  const refused = t.throws(() => verify(join(folder, 'changed.tar.gz')));
  t.regex((refused as Error & { stdout: string }).stdout, /digest mismatch/);
});

test.serial('the command explains requests that it cannot serve', async (t) => {
  const { environment } = await begin(t);
  const run = (...args: string[]) => inProcess(environment, (terminal) => runGroup(bundleGroup, ['bundle', ...args], terminal));
  t.is((await run('--revision', 'x')).code, 2);
  t.is((await run('extra')).code, 2);
  t.is((await run('--help')).code, 0);
  const missing = await run('--revision', '7');
  t.is(missing.code, 1);
  t.regex(missing.err, /Revision 7 does not exist: the newest is 0/);
  const nowhere = await run('--out', join(import.meta.filename, 'x.tar.gz'));
  t.is(nowhere.code, 1);
  t.regex(nowhere.err, /cannot be written/);
});
