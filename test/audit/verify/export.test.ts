/** The log over HTTP and on the host: filters, exports, checkpoints, erasure, and what `portcullis audit verify` says of them. */
import { execFile } from 'node:child_process';
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { compactVerify, createLocalJWKSet, type JSONWebKeySet } from 'jose';
import { createChainKey } from '../../../src/audit/chain/chain.ts';
import { createVault } from '../../../src/auth/vault.ts';
import type { Log } from '../../../src/base/log.ts';
import { readConfig } from '../../../src/config/config.ts';
import { makeCounter } from '../../../src/db/changes.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { browse, signIn } from '../../browser/browser.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import type { TestDatabase } from '../../support/databases/engines.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { program } from '../../support/process.ts';
import { decision, quietWriter } from '../records.ts';

const MASTER_KEY = Buffer.alloc(32, 7);
const TARGET = '0190163d-8694-739b-aea5-966c26f8ad90';
const POLICY = '0190163d-8694-739b-aea5-966c26f8ad91';

interface Row {
  readonly id: string;
  readonly user_id: string;
  readonly user_email: string;
  readonly user_groups: readonly string[];
}

function portcullis(environment: Record<string, string>, ...args: string[]) {
  return new Promise<{ code: number; out: string; err: string }>((resolve) => {
    const env = { PATH: process.env['PATH'], MASTER_KEY: MASTER_KEY.toString('base64'), ...environment };
    execFile(process.execPath, [...program('cli/portcullis'), ...args], { env }, (error, out, err) => {
      resolve({ code: typeof error?.code === 'number' ? error.code : error ? -1 : 0, out, err });
    });
  });
}

const records = [
  decision({ user_id: 'ann', resource_name: 'echo' }),
  decision({
    user_id: 'ann',
    resource_name: 'echo-2',
    effect: 'allow',
    reason: 'matched',
    policy_id: POLICY,
    policy_name: '=1+1',
  }),
  decision({ user_id: 'bob', resource_name: 'echo', target_id: TARGET, target_name: 'other' }),
  decision({
    user_id: 'bob',
    method: 'tools/list',
    resource_type: null,
    resource_name: null,
    effect: 'allow',
    reason: 'matched',
  }),
  decision({
    user_id: 'cyd',
    resource_type: 'resource',
    resource_name: 'file:///a',
    reason: 'not_canonical',
    user_email: '@x,"y"',
  }),
];
const ids = (...which: number[]): string[] => which.map((i) => records[i]?.id ?? '').reverse();

async function gatewayWithLog(t: ExecutionContext, at: TestDatabase) {
  // Written before the gateway starts: SQLite serves one process.
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
  const writer = quietWriter(database, { key: createChainKey(createVault(MASTER_KEY).derive('audit chain')) });
  for (const record of records) await writer.decision(record);
  await writer.shown({ decision_id: records[3]?.id ?? '', resource_type: 'tool', names: ['echo'], hidden: 2 });
  writer.outcome({ decision_id: records[3]?.id ?? '', outcome: 'ok', duration_ms: 3 });
  await writer.close();
  await database.close();
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-audit-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const checkpoints = join(folder, 'checkpoints.jsonl');
  const gateway = await startGateway(t, at.url, { AUDIT_CHECKPOINTS: checkpoints });
  const admin = await person(gateway, 'admin@example.com');
  const raw = (path: string) => fetch(gateway.url + path, { headers: { authorization: `Bearer ${admin.token}` } });
  return { gateway, admin, raw, folder, checkpoints };
}

eachEngine(test.serial, 'the log can be filtered by each member, and read page by page', async (t, at) => {
  const { gateway, admin } = await gatewayWithLog(t, at);
  const read = async (query: string): Promise<string[]> => {
    const { body } = await gateway.rest<Row[]>(200, 'GET', `/api/logs?${query}`, { token: admin.token });
    return body.map(({ id }) => id);
  };
  const first = records[0]?.id ?? '';
  const all = ids(0, 1, 2, 3, 4);
  for (const [query, expected] of [
    ['', all],
    ['user_id=ann', ids(0, 1)],
    ['user_id=nobody', []],
    [`target_id=${TARGET}`, ids(2)],
    ['target_name=other', ids(2)],
    ['method=tools/list', ids(3)],
    ['resource_type=resource', ids(4)],
    ['resource_name=echo', ids(0, 2)],
    ['resource_name=ECHO', []],
    ['resource_name_prefix=echo', ids(0, 1, 2)],
    ['resource_name_prefix=file%3A%2F%2F', ids(4)],
    ['resource_name_prefix=%25', []],
    ['effect=deny', ids(0, 2, 4)],
    [`policy_id=${POLICY}`, ids(1)],
    ['reason=not_canonical', ids(4)],
    [`id=${first}`, ids(0)],
    ['user_id=ann&effect=deny&resource_name=echo', ids(0)],
    ['user_id=ann&target_name=other', []],
    ['from=2020-01-01T00:00:00Z&to=2999-01-01T00:00:00%2B01:00', all],
    ['to=2020-01-01T00:00:00.000Z', []],
    ['from=2999-01-01T00:00:00Z&user_id=ann', []],
  ] as const) {
    t.deepEqual(await read(query), [...expected], query);
  }
  const page = await gateway.rest<Row[]>(200, 'GET', '/api/logs?user_id=ann&limit=1', { token: admin.token });
  const next = /^<(.*)>; rel="next"$/.exec(page.headers.get('link') ?? '')?.[1] ?? '';
  t.regex(next, /user_id=ann/);
  const second = await gateway.rest<Row[]>(200, 'GET', next, { token: admin.token });
  t.deepEqual(
    [...page.body, ...second.body].map(({ id }) => id),
    ids(0, 1),
  );
  t.is(second.headers.get('link'), null);

  for (const [query, path] of [
    ['from=yesterday', 'from'],
    ['to=2026-13-01T00:00:00Z', 'to'],
    ['from=2026-01-01', 'from'],
    ['effect=maybe', 'effect'],
    ['reason=x', 'reason'],
    ['id=x', 'id'],
    ['policy_id=X', 'policy_id'],
    ['resource_type=all', 'resource_type'],
    ['user_id=', 'user_id'],
    ['user_email=a', 'user_email'],
    ['user_id=a&user_id=b', 'user_id'],
    [`resource_name=${'x'.repeat(2049)}`, 'resource_name'],
  ]) {
    const { body } = await gateway.rest<{ errors: { path: string }[] }>(400, 'GET', `/api/logs?${query}`, { token: admin.token });
    t.deepEqual(
      body.errors.map((error) => error.path),
      [path ?? ''],
      query,
    );
  }
});

test.serial('an export breaks off when its reader may no longer read the log', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-export-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const url = `sqlite:${join(folder, 'log.db')}`;
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, makeCounter);
  const writer = quietWriter(database, { key: createChainKey(createVault(MASTER_KEY).derive('audit chain')) });
  const name = (at: number): string => `file:///${'x'.repeat(8_000)}/${at}`;
  // More than fits into the buffers between gateway and client.
  for (let at = 0; at < 2_500; at += 500) {
    const some = Array.from({ length: 500 }, (_, i) => decision({ resource_type: 'resource', resource_name: name(at + i) }));
    await Promise.all(some.map((record) => writer.decision(record)));
  }
  await writer.close();
  await database.close();

  const gateway = await startGateway(t, url);
  const admin = await person(gateway, 'admin@example.com');
  const auditor = await person(gateway, 'auditor@example.com');
  const setRole = (role: string) => gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { token: admin.token, body: { role } });
  const exported = async (format: string, token: string, then: () => Promise<unknown>): Promise<string> => {
    const answer = await fetch(`${gateway.url}/api/logs/export?format=${format}`, {
      headers: { authorization: `Bearer ${token}` },
    });
    t.is(answer.status, 200);
    let read = 0;
    try {
      for await (const chunk of answer.body ?? []) {
        if (read === 0) await then();
        read += (chunk as Uint8Array).length;
      }
      return `whole, ${read > 20_000_000}`;
    } catch {
      return 'broken off';
    }
  };
  await setRole('auditor');
  for (const format of ['ndjson', 'csv', 'ndjson&effect=deny']) {
    t.is(await exported(format, auditor.token, () => setRole('user')), 'broken off', format);
    await setRole('auditor');
  }
  t.is(await exported('ndjson', auditor.token, async () => undefined), 'whole, true');
  const browser = browse(gateway);
  await signIn(browser, admin);
  const { status, text } = await browser.get('/console/log/export?format=ndjson');
  t.deepEqual([status, text.length > 20_000_000], [200, true], 'a page gives the whole log, too');
  const disabled = () => gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { token: admin.token, body: { enabled: false } });
  t.is(await exported('ndjson', auditor.token, disabled), 'broken off');
});

eachEngine(test.serial, 'an export, a checkpoint and the database are verified on the host', async (t, at, engine) => {
  const { gateway, admin, raw, folder, checkpoints } = await gatewayWithLog(t, at);
  const { body: made } = await gateway.rest<{ checkpoint: string }>(200, 'GET', '/api/logs/checkpoint', { token: admin.token });
  const { body: jwks } = await gateway.rest<JSONWebKeySet>(200, 'GET', '/.well-known/jwks.json');
  const { payload, protectedHeader } = await compactVerify(made.checkpoint, createLocalJWKSet(jwks));
  t.is(protectedHeader['typ'], 'portcullis-audit-checkpoint');
  const { heads } = JSON.parse(Buffer.from(payload).toString()) as { heads: unknown[] };
  t.is(heads.length, 1, 'the gateway has recorded nothing yet, and so has no chain');
  await gateway.rest(401, 'GET', '/api/auth/me', { token: made.checkpoint });

  const answer = await raw('/api/logs/export?format=ndjson');
  t.is(answer.headers.get('content-type'), 'application/x-ndjson');
  t.regex(answer.headers.get('content-disposition') ?? '', /^attachment; filename="audit-.*\.ndjson"$/);
  const file = join(folder, 'export.ndjson');
  const text = await answer.text();
  writeFileSync(file, text);
  const whole = await portcullis({}, 'audit', 'verify', '--export', file, '--json');
  t.is(whole.code, 0, whole.out + whole.err);
  t.like(JSON.parse(whole.out), { intact: true, chains: 1, records: { decision: 5, shown: 1, outcome: 1 } });
  const data = join(folder, 'data');
  mkdirSync(data);
  writeFileSync(join(data, 'master.key'), `${MASTER_KEY.toString('base64')}\n`, { mode: 0o600 });
  const { mtimeMs } = statSync(data);
  const byFile = await portcullis({ MASTER_KEY: '', DATA_DIR: data }, 'audit', 'verify', '--export', file);
  t.is(byFile.code, 0, byFile.out + byFile.err);
  t.is(statSync(data).mtimeMs, mtimeMs, 'nothing was written next to the master key');
  const since = join(folder, 'since.json');
  writeFileSync(since, JSON.stringify(made));
  for (const checkpoint of [since, made.checkpoint]) {
    const later = await portcullis({}, 'audit', 'verify', '--export', file, '--since', checkpoint);
    t.is(later.code, 0, later.out + later.err);
    t.regex(later.out, /0 decisions, 0 lists, 0 outcomes\.\n {2}checked only records after the checkpoint of /);
  }
  writeFileSync(since, `${JSON.stringify(made)}\n`.repeat(2));
  t.regex((await portcullis({}, 'audit', 'verify', '--since', since)).err, /takes one checkpoint, but .* has 2/);
  // A rotation or a wrong mount leaves such a file, and the check could not notice that the newest records were cut off.
  for (const content of ['', '\n', JSON.stringify(made).slice(0, -60)]) {
    writeFileSync(since, content);
    const none = await portcullis({}, 'audit', 'verify', '--export', file, '--checkpoints', since);
    t.is(none.code, 2, none.out);
    t.regex(none.err, /has no checkpoint/, content);
  }

  writeFileSync(file, text.replace('"resource_name":"echo-2"', '"resource_name":"echo-3"'));
  const edited = await portcullis({}, 'audit', 'verify', '--export', file);
  t.is(edited.code, 1);
  t.regex(edited.out, new RegExp(`NOT intact[^]*altered: chain .*record 2, decision of decision ${records[1]?.id}`));
  t.is((await portcullis({ MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }, 'audit', 'verify', '--export', file)).code, 2);
  writeFileSync(file, 'nothing\n');
  t.regex((await portcullis({}, 'audit', 'verify', '--export', file)).err, /line 1: this is not an export/);
  const missing = await portcullis({}, 'audit', 'verify', '--export', join(folder, 'none'));
  t.is(missing.code, 2);
  t.is((await portcullis({}, 'audit', 'verify', '--exprt', file)).code, 2);
  t.is((await portcullis({}, 'audit', 'check')).code, 2);
  t.regex((await portcullis({}, 'audit', '--help')).out, /Exit code: 0/);

  const running = await portcullis({ DATABASE_URL: at.url }, 'audit', 'verify');
  if (engine === 'sqlite') {
    t.is(running.code, 2);
    t.regex(running.err, /in use by another process/);
  } else t.is(running.code, 0, running.err);

  await gateway.gateway.close();
  t.regex(readFileSync(checkpoints, 'utf8'), /^\{"checkpoint":"[^"]+"\}\n$/);
  const closed = await portcullis({ DATABASE_URL: at.url }, 'audit', 'verify', '--checkpoints', checkpoints);
  t.is(closed.code, 0, closed.out + closed.err);
  appendFileSync(checkpoints, '{"checkpoint":"eyJhbGciOi');
  const cut = await portcullis({ DATABASE_URL: at.url }, 'audit', 'verify', '--checkpoints', checkpoints);
  t.is(cut.code, 0, cut.out + cut.err);
  t.regex(cut.err, /checkpoints\.jsonl, line 2: the checkpoint is cut off, so it is skipped/);
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => {});
  for (const table of ['audit_chains', 'log_decisions', 'log_lists', 'log_outcomes']) await database.knex(table).delete();
  await database.close();
  t.is((await portcullis({ DATABASE_URL: at.url }, 'audit', 'verify')).code, 0);
  const gone = await portcullis({ DATABASE_URL: at.url }, 'audit', 'verify', '--checkpoints', checkpoints);
  t.is(gone.code, 1);
  t.regex(gone.out, /missing: chain .*the whole chain is missing; the checkpoint of /);
});

eachEngine(
  test.serial,
  'filtered exports and CSV hold the requested rows, and nothing that a spreadsheet would execute',
  async (t, at) => {
    const { gateway, admin, raw } = await gatewayWithLog(t, at);
    const lines = (await (await raw('/api/logs/export?format=ndjson&user_id=ann')).text()).trimEnd().split('\n');
    t.deepEqual(
      lines.map((line) => JSON.parse(line).id),
      ids(0, 1),
    );
    const answer = await raw('/api/logs/export?format=csv');
    t.is(answer.headers.get('content-type'), 'text/csv; charset=utf-8');
    const rows = (await answer.text()).split('\r\n');
    t.is(rows.length, 1 + records.length + 1);
    t.regex(rows[0] ?? '', /^id,created_at,user_id,/);
    t.true(rows[1]?.includes(`"'@x,""y"""`));
    t.true(rows[4]?.includes(`"'=1+1"`));
    for (const query of ['', 'format=xml', 'format=csv&limit=1', 'format=csv&effect=x', 'format=csv&format=csv']) {
      await gateway.rest(400, 'GET', `/api/logs/export?${query}`, { token: admin.token });
    }
    await gateway.rest(401, 'GET', '/api/logs/export?format=csv');
  },
);

eachEngine(test.serial, 'a client that reads an export slowly, or disconnects, does not delay others', async (t, at) => {
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
  // All of them wait from the beginning.
  const writer = quietWriter(database, { timeoutMs: 120_000 });
  await Promise.all(Array.from({ length: 8_000 }, () => writer.decision(decision({ resource_name: 'x'.repeat(2_000) }))));
  await writer.close();
  await database.close();
  const warnings: object[] = [];
  const keep = (record: object): void => void warnings.push(record);
  const gateway = await startGateway(
    t,
    at.url,
    {},
    { log: { debug: () => {}, info: () => {}, warn: keep, error: keep } as unknown as Log },
  );
  const admin = await person(gateway, 'admin@example.com');
  const leave = new AbortController();
  const headers = { authorization: `Bearer ${admin.token}` };
  const answer = await fetch(`${gateway.url}/api/logs/export?format=ndjson`, { headers, signal: leave.signal });
  const reader = answer.body?.getReader();
  await reader?.read();
  // The rest, some 18 MB, is neither read nor made.
  for (let i = 0; i < 5; i++) await gateway.rest(200, 'GET', '/api/logs?limit=10', { token: admin.token });
  leave.abort();
  await t.throwsAsync(async () => reader?.read(), { any: true });
  const whole = await fetch(`${gateway.url}/api/logs/export?format=ndjson`, { headers });
  const lines = (await whole.text()).trimEnd().split('\n');
  t.is(JSON.parse(lines.at(-1) ?? '').records, 8_000);
  t.deepEqual(warnings, []);
});

eachEngine(test.serial, 'administrators can erase personal data, and the log still verifies', async (t, at) => {
  const { gateway, admin, raw, folder } = await gatewayWithLog(t, at);
  const auditor = await person(gateway, 'auditor@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { token: admin.token, body: { role: 'auditor' } });
  const erase = (expected: number, token: string, body: unknown) =>
    gateway.rest<{ erased: number }>(expected, 'POST', '/api/logs/erase', { token, body });
  await erase(403, auditor.token, { user_id: 'ann' });
  await erase(400, admin.token, {});
  await erase(400, admin.token, { user_id: 'ann', more: 1 });
  // Both decisions of ann share one row with personal data.
  t.deepEqual((await erase(200, admin.token, { user_id: 'ann' })).body, { erased: 1 });
  t.deepEqual((await erase(200, admin.token, { user_id: 'ann' })).body, { erased: 0 });
  const { body } = await gateway.rest<Row[]>(200, 'GET', '/api/logs', { token: admin.token });
  for (const { user_id, user_email, user_groups } of body) {
    if (user_id === 'ann') t.deepEqual([user_email, user_groups], ['', []]);
    else t.not(user_email, '');
  }
  const changes = await gateway.rest<{ action: string; after: object }[]>(200, 'GET', '/api/changes?limit=1', {
    token: admin.token,
  });
  t.like(changes.body[0], { action: 'user.erase', after: { user_id: 'ann' } });
  const text = await (await raw('/api/logs/export?format=ndjson')).text();
  t.is(text.split('Someone@example.com').length - 1, 2);
  const file = join(folder, 'export.ndjson');
  writeFileSync(file, text);
  const { code, out } = await portcullis({}, 'audit', 'verify', '--export', file);
  t.is(code, 0, out);
  t.regex(out, /the personal data of 2 decisions has been erased/);
});
