/** Arguments in the audit log: how they are masked, cut, stored and chained. They are stored only if the target captures them. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf } from '../../../src/audit/chain/chain.ts';
import { chainStore } from '../../../src/audit/chain/tables/chain-store.ts';
import { literalId } from '../../../src/audit/chain/tables/log-tables.ts';
import {
  ALWAYS_MASKED,
  type CapturedArguments,
  captureArguments,
  MAX_ARGUMENT_BYTES,
} from '../../../src/audit/records/arguments.ts';
import { createErasure } from '../../../src/audit/upkeep/erasure.ts';
import { auditLines, lineText, readLine } from '../../../src/audit/verify/lines.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { JsonValue } from '../../../src/base/json/json.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { modernClient, sessionClient } from '../../support/mcp.ts';
import { world } from '../../support/world.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from '../records.ts';

const captured = (value: JsonValue, mask: readonly string[] = []): CapturedArguments => {
  const text = captureArguments(mask, 'tools/call', { name: 'x', arguments: value });
  if (text === null) throw new Error('nothing was captured');
  return JSON.parse(text) as CapturedArguments;
};
const maskedOf = (value: JsonValue, mask: readonly string[] = []): JsonValue => captured(value, mask).value;
/** Returns those of the names that are masked. */
const hidden = (names: readonly string[], mask: readonly string[] = []): string[] =>
  names.filter((name) => (maskedOf({ [name]: 'S' }, mask) as Record<string, unknown>)[name] === '***');

test.serial('only the arguments of calls and prompts are captured', (t) => {
  for (const method of ['tools/call', 'prompts/get']) {
    t.is(captureArguments([], method, { name: 'x', arguments: { a: 1 } }), '{"value":{"a":1},"cut":false}');
    t.is(captureArguments([], method, { name: 'x' }), null);
    t.is(captureArguments([], method, undefined), null);
  }
  for (const method of ['completion/complete', 'tools/list', 'acme/run', 'tasks/get', 'Tools/Call', 'initialize']) {
    t.is(captureArguments([], method, { arguments: { a: 1 }, context: { arguments: { a: 1 } } }), null, method);
  }
  const whole = { b: [1, -0.5, 1e21, 'é\u{1f600}\u0000"', null, true, [], {}], a: { '': '' } };
  t.deepEqual(captured(whole), { value: whole, cut: false });
  for (const odd of ['a text', 5, null, false, ['x', { token: 'S' }]] as JsonValue[]) {
    t.deepEqual(maskedOf(odd), Array.isArray(odd) ? ['x', { token: '***' }] : odd);
  }
});

test.serial('a masked value is removed completely, at any depth', (t) => {
  const secrets = {
    mine: { any: ['S1', { deep: 'S2' }] },
    list: [[{ mine: 'S3' }], { list: { mine: 4_004 } }],
    MINE: null,
    password: ['S5'],
    Authorization: { Bearer: 'S6' },
    kept: { mined: 'kept', examine: 'kept', tokens: 7, max_tokens: 8 },
  };
  const text = captureArguments(['mine'], 'tools/call', { arguments: secrets }) ?? '';
  t.notRegex(text, /S\d|4004/);
  t.deepEqual(JSON.parse(text).value, {
    mine: '***',
    list: [[{ mine: '***' }], { list: { mine: '***' } }],
    MINE: '***',
    password: '***',
    Authorization: '***',
    kept: secrets.kept,
  });
});

test.serial('masked names match regardless of case, separators and lookalike characters', (t) => {
  const always = [
    ...['password', 'PASSWORD', 'PassWord', 'new_password', 'db.password', 'pass_word', 'pass word', 'p\u0430ssword_token'],
    ...['apiKey', 'API-Key', 'x-api-key', 'API_KEYS', 'aws_secret_access_key', 'ssh-private-key', 'clientSecret', 'secrets'],
    ...['token', 'accessToken', 'X-Auth-Token', 'Authorization', 'proxy-authorization', 'Set-Cookie', 'credentials', 'pwd'],
    // U+017F, U+212A, full width, ß, a zero-width space, a combining grapheme joiner, a soft hyphen.
    ...['pa\u017f\u017fword', 'to\u212aen', '\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44', 'paßword'],
    ...['password1', 'Password 2', 'new_password_2', 'token\u2460', 'secret007'],
    ...['pass\u200bword', 'pass\u034fword', 'tok\u00aden', ' token ', '"token"', 'token:'],
  ];
  t.deepEqual(hidden(always), always);
  for (const name of ALWAYS_MASKED) t.deepEqual(hidden([name]), [name]);
  const not = [
    'tokens',
    'max_tokens',
    'tokenizer',
    'passwordless',
    'path',
    'key',
    'keys',
    'name',
    'author',
    '',
    '_',
    '***',
    '🔑',
  ];
  t.deepEqual(hidden([...not, 'constructor', 'toString', 'hasOwnProperty']), []);

  t.deepEqual(hidden(['pin', 'PIN', 'P.I.N.', 'p_i_n', 'spin', 'pint', 'pins', 'ping'], ['Pin']), [
    'pin',
    'PIN',
    'P.I.N.',
    'p_i_n',
  ]);
  const mark = ['caf\u00e9', 'cafe\u0301', 'CAF\u00c9', 'cafe'];
  t.deepEqual(hidden(mark, ['cafe\u0301']), mark.slice(0, 3));
  t.deepEqual(hidden(['🔑', '_', '', '-', '__'], ['🔑', '_']), ['🔑', '_'], 'a name of signs is no other name of signs');
  t.deepEqual(hidden(['constructor', 'a'], ['constructor']), ['constructor']);
  t.deepEqual(hidden(['की', 'का'], ['की']), ['की'], 'vowel signs are letters');
});

test.serial('the names that are always masked are documented', (t) => {
  const [, listed = ''] =
    /or ends with one of (.*?)\./s.exec(readFileSync(join(import.meta.dirname, '../../../docs/audit.md'), 'utf8')) ?? [];
  t.deepEqual(
    [...listed.matchAll(/`(\w+)`/g)].map(([, name]) => name),
    [...ALWAYS_MASKED],
  );
});

test.serial('a member called __proto__ is captured like any other', (t) => {
  const text = '{"__proto__":{"token":"S","polluted":1},"a":{"constructor":{"prototype":{"password":"S"}}}}';
  const json = captureArguments([], 'tools/call', { arguments: JSON.parse(text) });
  t.is(json, `{"value":${text.replaceAll('"S"', '"***"')},"cut":false}`);
  t.is(({} as Record<string, unknown>)['polluted'], undefined);
});

test.serial('too large arguments keep the beginnings of their texts, or only the fact that they existed', (t) => {
  const fits = { a: 'x'.repeat(MAX_ARGUMENT_BYTES - '{"a":""}'.length) };
  t.deepEqual(captured(fits), { value: fits, cut: false });
  const over = { a: `${fits.a}x`, path: '/etc/passwd', password: 'y'.repeat(100_000) };
  t.deepEqual(captured(over), { value: { a: `${'x'.repeat(256)}…`, path: '/etc/passwd', password: '***' }, cut: true });
  t.is((captured({ password: 'y'.repeat(100_000) }) as { cut: boolean }).cut, false, 'what is masked takes no room');
  const split = { a: `${'x'.repeat(255)}\u{1f600}${'x'.repeat(9_000)}` };
  t.deepEqual(captured(split).value, { a: `${'x'.repeat(255)}\ufffd…` });
  const nothing = { value: null, cut: true };
  for (const [what, value] of Object.entries<JsonValue>({
    'many members': Object.fromEntries(Array.from({ length: 2_000 }, (_, i) => [`member ${i}`, i])),
    'many items': Array(5_000).fill(1),
    'many texts': Array(40).fill('x'.repeat(300)),
    'a long name': { ['x'.repeat(9_000)]: 1 },
    'a name that escapes make long': { ['\u0001'.repeat(2_000)]: 1 },
    'a name that UTF-8 makes long': { ['€'.repeat(3_000)]: 1 },
    'empty lists': Array(3_000).fill([]),
    'a secret after all that': { fill: Array(5_000).fill(1), token: 'S' },
  })) {
    t.deepEqual(captured(value), nothing, what);
  }
});

test.serial('captured texts stay within their limit, and are cut only if necessary', (t) => {
  const pieces: JsonValue[] = ['é"\\\u0007', -1.5e-7, null, true, [], {}, { '"': [''] }, ['€', ['\u{1f600}']]];
  for (let size = 1; size < 3_000; size += 37) {
    const value = Array.from({ length: size }, (_, i) => pieces[i % pieces.length] ?? null);
    const bytes = Buffer.byteLength(JSON.stringify(value));
    t.is(captured(value).cut, bytes > MAX_ARGUMENT_BYTES, `${size} pieces of ${bytes} bytes`);
  }
});

test.serial('the capture reads no more than it may keep', (t) => {
  let looked = 0;
  const items = new Proxy(Array<JsonValue>(1_000_000).fill({ a: 1 }), {
    get(on, name, receiver) {
      looked++;
      return Reflect.get(on, name, receiver);
    },
  });
  t.deepEqual(captured(items), { value: null, cut: true });
  t.true(looked < 3 * MAX_ARGUMENT_BYTES, String(looked));
  t.deepEqual(captured({ a: items, b: { ['x'.repeat(4_000_000)]: items } }), { value: null, cut: true });
});

const ARGUMENTS = JSON.stringify({ value: { path: 'marker-π\u{1f600}' }, cut: false });

interface Version {
  readonly writerOf: (database: Database) => Pick<ReturnType<typeof legacyWriter>, 'decision' | 'close'>;
  argumentsAt(knex: Connection, id: string): ReturnType<Connection>;
  setArguments(knex: Connection, id: string, value: string | null): Promise<unknown>;
  removeByHand(knex: Connection): Promise<unknown>;
}

const legacy: Version = {
  writerOf: legacyWriter,
  argumentsAt: (knex, id) => knex('audit_decisions').where({ id }),
  setArguments: (knex, id, value) => knex('audit_decisions').where({ id }).update({ arguments: value }),
  removeByHand: (knex) => knex('audit_decisions').update({ user_email: '', user_groups: '[]', arguments: null, salt: null }),
};
const log: Version = {
  writerOf: quietWriter,
  argumentsAt: (knex, id) => knex('log_arguments').whereRaw(`id = ${literalId(id)}`),
  async setArguments(knex, id, arguments_) {
    const row = { hash: Buffer.alloc(32), arguments: arguments_ };
    if ((await log.argumentsAt(knex, id).update({ arguments: arguments_ })) > 0) return;
    await knex('log_arguments').insert({ ...row, id: knex.raw(literalId(id)) });
  },
  async removeByHand(knex) {
    await knex('log_principals').update({ user_email: '', user_groups: '[]', salt: null });
    await knex('log_arguments').update({ arguments: null, salt: null });
  },
};

for (const [version, { writerOf, argumentsAt, setArguments, removeByHand }] of Object.entries({ 1: legacy, 2: log })) {
  eachEngine(
    test.serial,
    `captured arguments are covered by the chain, and can be erased, in version ${version}`,
    async (t, at) => {
      const database = await openTestDatabase(t, at);
      const writer = writerOf(database);
      const plain = decision({ user_id: 'bob' });
      const some = [decision({ user_id: 'ann', arguments: ARGUMENTS }), decision({ user_id: 'bob', arguments: ARGUMENTS })];
      // All kinds are removed in one statement, and then each kind by itself.
      await Promise.all([plain, ...some].map((record) => writer.decision(record)));
      await writer.decision(decision({ user_id: 'ann' }));
      await writer.decision(decision({ user_id: 'ann', arguments: '{"value":null,"cut":true}' }));
      await writer.close();
      const store = auditStore(database.knex);
      const shown = async (id: string) => (await store.find(id))?.arguments;
      const [ann, bob] = [some[0]?.id ?? '', some[1]?.id ?? ''];
      t.deepEqual(await shown(ann), { value: { path: 'marker-π\u{1f600}' }, cut: false });
      t.is(await shown(plain.id), null);
      t.like(await verified(database), { intact: true, erased: 0, records: { decision: 5 } });

      for (const [id, value] of [
        [ann, null],
        [ann, ARGUMENTS.replace('marker', 'murker')],
        [ann, ''],
        [plain.id, ARGUMENTS],
        [plain.id, ''],
      ] as const) {
        const was = await argumentsAt(database.knex, id).first<{ arguments: string | null } | undefined>('arguments');
        await setArguments(database.knex, id, value);
        const { intact, problems } = await verified(database);
        t.false(intact);
        t.like(problems[0], { problem: 'altered', decision_id: id, record: 'decision' }, String(value));
        await (was === undefined ? argumentsAt(database.knex, id).delete() : setArguments(database.knex, id, was.arguments));
      }
      t.true((await verified(database)).intact);

      const erasure = createErasure({ database, key: KEY, now: Date.now });
      const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'ann'));
      // Ids tell milliseconds: one that is not over has rows that are not part of the erasure.
      t.true(ann < firstIdOf(result.erased_at));
      t.is(await erasure.finish(result), 3);
      t.is(await shown(ann), null);
      t.deepEqual(await shown(bob), { value: { path: 'marker-π\u{1f600}' }, cut: false });
      t.like(await verified(database), { intact: true, erased: 3, problems: [] });
      await setArguments(database.knex, ann, ARGUMENTS);
      const [problem] = (await verified(database)).problems;
      t.deepEqual([problem?.problem, problem?.decision_id], ['altered', ann]);
      t.regex(problem?.detail ?? '', /after an erasure/);
      // Arguments that came back are removed when the erasure runs again.
      t.is(await erasure.finish(result), 1);
      t.true((await verified(database)).intact);
    },
  );

  eachEngine(test.serial, `arguments that were removed by hand are reported as altered, in version ${version}`, async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = writerOf(database);
    const record = decision({ user_id: 'ann', arguments: ARGUMENTS });
    await writer.decision(record);
    await writer.close();
    await removeByHand(database.knex);
    const { problems } = await verified(database);
    t.like(problems[0], { problem: 'altered', decision_id: record.id });
    t.regex(problems[0]?.detail ?? '', /no erasure of this user/);
  });
}

test.serial('an export of an older version without arguments verifies', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const database = await openTestDatabase(t, at);
  const writer = legacyWriter(database);
  await writer.decision(decision());
  await writer.close();
  const verification = createVerification([KEY], LATER);
  for await (const line of auditLines(database.knex, Date.now(), null)) {
    const old = lineText(line).replace(',"arguments":null', '');
    t.notRegex(old, /arguments/);
    const read = readLine(old);
    if (read) verification.take(read);
  }
  t.like(verification.finish().report, { intact: true, records: { decision: 1 } });
  t.is((await chainStore(database.knex).chains()).length, 1);
});

interface Entry {
  readonly method: string;
  readonly resource_name: string | null;
  readonly effect: string;
  readonly arguments: CapturedArguments | null;
}

const MARKER = 'marker-of-an-argument';

/** Every file that the gateway has written. */
function stored(t: ExecutionContext, databaseUrl: string): string {
  const folder = dirname(databaseUrl.slice('sqlite:'.length));
  const files = readdirSync(folder);
  t.true(files.length > 0);
  return files.map((file) => readFileSync(join(folder, file), 'latin1')).join();
}

test.serial('arguments are stored only if the target captures them, and with its mask', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const { gateway, admin, user, token, target, mcp, allow } = await world(t, at.url);
  await allow({ name: 'echo', resource_type: 'tool', resource_pattern: '^echo$' });
  await allow({ name: 'prompts', resource_type: 'prompt' });
  const path = `/api/targets/${target.id}`;
  const put = (expected: number, capture_arguments: unknown) =>
    gateway.rest<{ capture_arguments: unknown; errors: { path: string }[] }>(expected, 'PUT', path, {
      token: admin.token,
      body: { capture_arguments },
    });
  const logs = async (): Promise<Entry[]> =>
    (await gateway.rest<Entry[]>(200, 'GET', '/api/logs', { token: admin.token })).body.filter(({ method }) =>
      ['tools/call', 'prompts/get'].includes(method),
    );
  const client = await sessionClient(t, mcp, token);
  const echo = (args: object) => client.callTool({ name: 'echo', arguments: { message: MARKER, ...args } });

  await echo({ password: `${MARKER}-secret` });
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: { message: MARKER } }));
  t.deepEqual(
    (await logs()).map((entry) => entry.arguments),
    [null, null],
  );
  t.false(stored(t, at.url).includes(MARKER));

  for (const [capture, wrong] of [
    [{}, 'capture_arguments.mask'],
    [true, 'capture_arguments'],
    [[], 'capture_arguments'],
    [{ mask: null }, 'capture_arguments.mask'],
    [{ mask: 'token' }, 'capture_arguments.mask'],
    [{ mask: ['a', ''] }, 'capture_arguments.mask.1'],
    [{ mask: ['a', 5] }, 'capture_arguments.mask.1'],
    [{ mask: ['a\u0000'] }, 'capture_arguments.mask.0'],
    [{ mask: ['a', 'b', 'a'] }, 'capture_arguments.mask.2'],
    [{ mask: ['x'.repeat(129)] }, 'capture_arguments.mask.0'],
    [{ mask: Array.from({ length: 65 }, (_, i) => `n${i}`) }, 'capture_arguments.mask'],
    [{ mask: [], also: 1 }, 'capture_arguments.also'],
  ] as const) {
    t.deepEqual(
      (await put(400, capture)).body.errors.map((error) => error.path),
      [wrong],
    );
  }
  const most = { mask: ['\u{1f600}'.repeat(128), ...Array.from({ length: 63 }, (_, i) => `n${i}`)] };
  t.deepEqual((await put(200, most)).body.capture_arguments, most);
  t.deepEqual((await put(200, { mask: ['pin'] })).body.capture_arguments, { mask: ['pin'] });
  const change = await gateway.rest<{ action: string; before: object; after: object }[]>(200, 'GET', '/api/changes?limit=1', {
    token: admin.token,
  });
  t.like(change.body[0], {
    action: 'target.update',
    before: { capture_arguments: most },
    after: { capture_arguments: { mask: ['pin'] } },
  });

  // The session continues, and the next call is recorded as the target is set up now.
  await echo({ password: `${MARKER}-secret`, deep: [{ PIN: `${MARKER}-secret` }] });
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: { pin: `${MARKER}-secret`, why: 'not' } }));
  await client.getPrompt({ name: 'simple-prompt', arguments: {} }).catch(() => undefined);
  const modern = await modernClient(t, mcp, token);
  await modern.callTool({ name: 'echo', arguments: { message: 'of another client', token: `${MARKER}-secret` } });
  t.deepEqual(
    (await logs()).slice(0, 4).map((entry) => [entry.resource_name, entry.effect, entry.arguments]),
    [
      ['echo', 'allow', { value: { message: 'of another client', token: '***' }, cut: false }],
      ['simple-prompt', 'allow', { value: {}, cut: false }],
      ['get-env', 'deny', { value: { pin: '***', why: 'not' }, cut: false }],
      ['echo', 'allow', { value: { message: MARKER, password: '***', deep: [{ PIN: '***' }] }, cut: false }],
    ],
  );
  // The standalone stream of the client may arrive at any time.
  const called = target.recorder.received.findLast(({ message }) => message?.method === 'tools/call');
  t.deepEqual(called?.message?.params?.['arguments'], {
    message: 'of another client',
    token: `${MARKER}-secret`,
  });
  t.true(stored(t, at.url).includes(MARKER));
  t.false(stored(t, at.url).includes(`${MARKER}-secret`));

  const raw = async (query: string) => {
    const answer = await fetch(`${gateway.url}/api/logs/export?${query}`, {
      headers: { authorization: `Bearer ${admin.token}` },
    });
    return (await answer.text()).trimEnd();
  };
  const csv = (await raw('format=csv&resource_name=echo')).split('\r\n');
  t.regex(csv[0] ?? '', /,chain_id,chain_seq,arguments$/);
  t.true(csv[1]?.endsWith(',"{""value"":{""message"":""of another client"",""token"":""***""},""cut"":false}"'), csv[1]);
  t.regex(csv[3] ?? '', /,\d+,$/);
  const [newest] = (await raw('format=ndjson&resource_name=echo')).split('\n');
  t.deepEqual((JSON.parse(newest ?? '') as Entry).arguments?.value, { message: 'of another client', token: '***' });

  const erased = await gateway.rest<{ erased: number }>(200, 'POST', '/api/logs/erase', {
    token: admin.token,
    body: { user_id: user.id },
  });
  t.true(erased.body.erased >= 2);
  t.true((await logs()).every((entry) => entry.arguments === null));
  t.false((await raw('format=ndjson')).includes(MARKER));

  t.is((await put(200, null)).body.capture_arguments, null);
  await echo({});
  t.is((await logs())[0]?.arguments, null);
});
