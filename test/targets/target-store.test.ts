import { createHash } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { createVault } from '../../src/auth/vault.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { ASKABLE } from '../../src/protocol/capabilities.ts';
import { DEFAULT_SUBJECT } from '../../src/targets/credential-document.ts';
import {
  hasMoved,
  openCredential,
  resealCredentials,
  routedTargets,
  type Setting,
  sealCredential,
} from '../../src/targets/credentials.ts';
import type { HttpTarget, StdioTarget } from '../../src/targets/target.ts';
import { type CredentialRow, targetStore } from '../../src/targets/target-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';

const vault = createVault(Buffer.alloc(32, 1));
const bearer = { type: 'bearer', name: 'authorization', value: 'secret' } as const;
const setting = (over: Partial<Setting> = {}): Setting => ({
  subject: DEFAULT_SUBJECT,
  credential: bearer,
  supplied_by: 'administrator',
  created_at: 1,
  updated_at: 2,
  ...over,
});
const base = (id: string) =>
  ({
    id,
    name: `target-${id}`,
    description: null,
    enabled: true,
    denials: 'shown',
    may_ask: ASKABLE,
    extension_methods: [],
    user_credentials: [],
    capture_arguments: null,
    own_accounts: null,
    timeout_ms: null,
    created_at: 1,
    updated_at: 2,
  }) as const;
const target = (id: string, over: Partial<HttpTarget> = {}): HttpTarget => ({
  ...base(id),
  transport: 'streamable-http',
  url: `https://${id}.example.com/mcp`,
  ...over,
});
const stdio = (id: string, over: Partial<StdioTarget> = {}): StdioTarget => ({
  ...base(id),
  transport: 'stdio',
  command: '/bin/server',
  args: ['-x', ''],
  cwd: null,
  env: { A: 'b\n' },
  isolation: 'per_group',
  ...over,
});
const alice = { sub: 'alice', role: 'dev', groups: ['g/\u{1f600}'] };

eachEngine(test.serial, 'targets are stored, found, changed and deleted with their credentials', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const a = target('a', { description: 'ä "x" \\ \u{1f600}' });
  const b = target('b', { enabled: false });
  await store.insert(b);
  await store.insert(a);
  t.deepEqual(await store.page(null, null), [a, b]);
  t.deepEqual(await store.page(1, null), [a]);
  t.deepEqual(await store.page(5, 'a'), [b]);
  t.deepEqual(await store.find('a'), a);
  t.deepEqual(await store.findByName('target-b'), b);
  t.is(await store.findByName('Target-b'), null);
  t.deepEqual(await store.enabled(null), [a]);
  await t.throwsAsync(store.insert(target('c', { name: 'target-a' })));

  const row = sealCredential(vault, a, setting());
  await store.putCredential(row);
  await store.putCredential({ ...row, updated_at: 3 });
  t.deepEqual(await store.credentials(['a']), [{ ...row, updated_at: 3 }]);
  t.deepEqual(await store.credentialsOf('a', DEFAULT_SUBJECT), [{ ...row, updated_at: 3 }]);
  await store.update({ ...a, url: 'https://other.example.com/' });
  t.like(await store.find('a'), { url: 'https://other.example.com/' });
  await store.delete('a');
  t.deepEqual(await store.credentials(null), []);
  t.deepEqual(await store.page(null, null), [b]);
});

eachEngine(test.serial, 'every kind of target is read as it was written', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const all = [
    target('a', { transport: 'sse', denials: 'hidden', may_ask: ['sampling'] }),
    target('b', {
      extension_methods: [{ method: 'acme/run', resource_type: 'tool', param: 'name' }],
      user_credentials: [{ type: 'bearer', name: 'authorization' }],
    }),
    stdio('c', { user_credentials: [{ type: 'env', name: 'TOKEN' }] }),
    stdio('d', { args: [], env: {}, cwd: '/srv', isolation: 'shared' }),
    target('e', { capture_arguments: { mask: [] } }),
    stdio('f', { capture_arguments: { mask: ['p\u{1f600}', 'b'] } }),
  ];
  for (const one of all) await store.insert(one);
  t.deepEqual(await store.page(null, null), all);
  const moved = target('c', { transport: 'sse' });
  await store.update(moved);
  t.deepEqual(await store.find('c'), moved);
  await store.update(stdio('c'));
  t.deepEqual(await store.find('c'), stdio('c'));

  for (const [column, value] of [
    ['transport', 'carrier-pigeon'],
    ['stdio', null],
    ['stdio', '{"command":"/bin/server"}'],
    ['stdio', 'nonsense'],
    ['options', '{"denials":"maybe","may_ask":[],"extension_methods":[],"user_credentials":[]}'],
    ['options', '{"denials":"shown","may_ask":["all"],"extension_methods":[],"user_credentials":[]}'],
    ['options', '{"denials":"shown","may_ask":[],"extension_methods":[],"user_credentials":[{"type":"any"}]}'],
    ['options', '{"denials":"shown","may_ask":[],"extension_methods":[],"user_credentials":[],"capture_arguments":{}}'],
    ['options', '{"denials":"shown","may_ask":[],"extension_methods":[],"user_credentials":[],"capture_arguments":{"mask":[1]}}'],
    ['options', '{"denials":"shown","extension_methods":[],"user_credentials":[]}'],
    ['options', '{}'],
    ['options', 'null'],
  ] as const) {
    await store.update(stdio('c'));
    await knex('targets')
      .where('id', 'c')
      .update({ [column]: value });
    await t.throwsAsync(routedTargets(knex, vault, null), undefined, `${column} ${value}`);
  }
  // A row from before `capture_arguments` existed.
  const before = '{"denials":"hidden","may_ask":[],"extension_methods":[],"user_credentials":[]}';
  await store.update(stdio('c'));
  await knex('targets').where('id', 'c').update({ options: before });
  t.deepEqual(await store.find('c'), stdio('c', { denials: 'hidden', may_ask: [] }));
});

eachEngine(test.serial, 'a credential belongs to its target, subject and name, byte for byte', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const a = target('a');
  await store.insert(a);
  const long = 'ä'.repeat(256);
  const rows: CredentialRow[] = [];
  for (const [subject_type, subject_value] of [
    ['default', ''],
    ['role', 'dev'],
    ['role', 'Dev'],
    ['role', 'dev '],
    ['group', 'dev'],
    ['group', 'g/\u{1f600}'],
    ['group', long],
    ['user', 'alice'],
  ] as const) {
    for (const name of ['authorization', 'x-key', 'x'.repeat(256)]) {
      const credential = { type: 'header', name, value: `${subject_type} ${subject_value} ${name}` } as const;
      const row = sealCredential(vault, a, setting({ subject: { subject_type, subject_value }, credential }));
      await store.putCredential(row);
      rows.push(row);
    }
  }
  const all = await store.credentials(['a']);
  t.is(all.length, rows.length);
  for (const row of rows) {
    const those = await store.credentialsOf('a', row);
    t.is(those.length, 3);
    t.deepEqual(
      those.find(({ key_name }) => key_name === row.key_name),
      row,
    );
  }
  t.is((await store.credentialsOfUser('alice')).length, 3);
  t.is((await store.credentialsOfUser('Alice')).length, 0);
  const one = rows.find(({ subject_value, key_name }) => subject_value === 'dev ' && key_name === 'x-key') as CredentialRow;
  await store.deleteCredential(one);
  t.is((await store.credentials(['a'])).length, rows.length - 1);
  t.deepEqual(
    (await store.credentialsOf('a', one)).map(({ key_name }) => key_name),
    ['authorization', 'x'.repeat(256)],
  );
});

eachEngine(test.serial, 'the request path gets the enabled targets with the credentials of each caller', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const [a, b, c] = [target('a'), target('b'), target('c')];
  for (const one of [a, b, c, target('d', { enabled: false })]) await store.insert(one);
  await store.putCredential(sealCredential(vault, a, setting()));
  await store.putCredential(sealCredential(vault, b, setting()));
  await store.disableCredentials('b');
  const routed = await routedTargets(knex, vault, null);
  t.deepEqual([...routed.keys()], ['target-a', 'target-b', 'target-c']);
  const reached = (name: string) => routed.get(name)?.accessOf(alice).credentials;
  t.like(reached('target-a'), { headers: [['authorization', 'Bearer secret']] });
  t.is(reached('target-b'), 'unusable');
  t.like(reached('target-c'), { headers: [] });
  t.like(routed.get('target-c'), c);
});

eachEngine(test.serial, 'a value of a user is used as long as the target accepts such values', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const a = target('a', { user_credentials: [{ type: 'bearer', name: 'authorization' }] });
  await store.insert(a);
  await store.putCredential(sealCredential(vault, a, setting()));
  const subject = { subject_type: 'user', subject_value: 'alice' } as const;
  const own = sealCredential(vault, a, setting({ subject, supplied_by: 'user', credential: { ...bearer, value: 'mine' } }));
  await store.putCredential(own);
  const reached = async () => (await routedTargets(knex, vault, null)).get('target-a')?.accessOf(alice).credentials;
  t.like(await reached(), { headers: [['authorization', 'Bearer mine']] });
  for (const user_credentials of [[], [{ type: 'header', name: 'authorization' }], [{ type: 'header', name: 'x' }]] as const) {
    await store.update({ ...a, user_credentials });
    t.like(await reached(), { headers: [['authorization', 'Bearer secret']] });
  }
  // A change in the table does not turn a value of a user into one of an administrator.
  await store.putCredential({ ...own, supplied_by: 'administrator' });
  t.is(await reached(), 'unusable');
  await store.putCredential(sealCredential(vault, a, setting({ subject, credential: { ...bearer, value: 'given' } })));
  t.like(await reached(), { headers: [['authorization', 'Bearer given']] });
});

test.serial('a credential opens only for its own row, target and origin', (t) => {
  const a = target('a');
  const row = sealCredential(vault, a, setting({ subject: { subject_type: 'group', subject_value: 'g' } }));
  t.false(JSON.stringify(row).includes('secret'));
  t.is(openCredential(vault, a, row), 'secret');
  t.is(openCredential(vault, { ...a, name: 'other' }, row), 'secret');
  const evil = target('a', { url: 'https://evil.example/' });
  const b = target('b', { url: a.url });
  for (const [why, where, what] of [
    ['the target moved', evil, row],
    ['another tenant of the same host', { ...a, url: `${a.url}/elsewhere` }, row],
    ['another query', { ...a, url: `${a.url}?to=elsewhere` }, row],
    ['the other transport of URLs', { ...a, transport: 'sse' as const }, row],
    ['the target and the row were changed to agree', evil, { ...row, origin: 'https://evil.example' }],
    ['the row was copied to another target', b, { ...row, target_id: 'b' }],
    ['another header', a, { ...row, key_name: 'x-leak' }],
    ['another type', a, { ...row, key_type: 'header' as const }],
    ['another group', a, { ...row, subject_value: 'h' }],
    ['another kind of subject', a, { ...row, subject_type: 'role' as const }],
    ['another supplier', a, { ...row, supplied_by: 'user' as const }],
    ['altered', a, { ...row, sealed: Buffer.from(row.sealed, 'base64').fill(0, 20, 24).toString('base64') }],
    ['garbage', a, { ...row, sealed: 'zz' }],
  ] as const) {
    t.is(openCredential(vault, where, what), null, why);
  }
  t.is(openCredential(createVault(Buffer.alloc(32, 2)), a, row), null);
});

test.serial('a credential of a process is bound to its command, arguments and whole environment', (t) => {
  const before = stdio('a');
  const row = sealCredential(vault, before, setting({ credential: { type: 'env', name: 'TOKEN', value: 'secret' } }));
  t.is(openCredential(vault, before, row), 'secret');
  for (const after of [
    stdio('a', { command: '/bin/other' }),
    stdio('a', { args: ['-x'] }),
    stdio('a', { args: ['-x', '', ''] }),
    stdio('a', { cwd: '/srv' }),
    stdio('a', { env: { A: 'b\n', LD_PRELOAD: '/evil.so' } }),
    stdio('a', { env: { A: 'b\n', GITHUB_HOST: 'evil.example' } }),
    stdio('a', { env: { A: 'c' } }),
    stdio('a', { env: {} }),
    target('a'),
  ]) {
    t.true(hasMoved(before, after));
    t.is(openCredential(vault, after, row), null);
  }
  for (const after of [stdio('a', { isolation: 'shared' }), stdio('a', { name: 'other' })]) {
    t.false(hasMoved(before, after));
    t.is(openCredential(vault, after, row), 'secret');
  }
  t.true(hasMoved(target('a'), target('a', { transport: 'sse' })));
});

async function migrated(t: ExecutionContext, at: TestDatabase, cutShort: boolean): Promise<void> {
  const first = await openTestDatabase(t, at);
  const [a, b, c] = [target('a'), target('b'), target('c')];
  for (const one of [a, b, c]) await targetStore(first.knex).insert(one);
  const old = (one: HttpTarget, header: string, value: string, origin = new URL(one.url).origin) => ({
    ...{ target_id: one.id, subject_type: 'default', subject_value: '', header, origin, created_at: 5, updated_at: 6 },
    sealed: vault.seal(
      `credential:${one.id}:default:`,
      Buffer.from(JSON.stringify({ origin: new URL(one.url).origin, header, value })),
    ),
  });
  await first.knex.schema.createTable('credentials', (table) => {
    for (const column of ['target_id', 'subject_type', 'subject_value', 'header', 'origin']) table.string(column, 100);
    table.text('sealed', 'mediumtext');
    for (const column of ['created_at', 'updated_at']) table.bigInteger(column);
  });
  await first
    .knex('credentials')
    .insert([old(a, 'Authorization', 'Bearer secret'), old(b, 'authorization', 'Basic eA=='), old(c, 'x-key', 'moved', '')]);
  await first.knex('migrations').whereIn('name', ['0002-targets', '0011-credential-bindings']).delete();
  if (cutShort) {
    const { header: _, ...done } = old(a, 'Authorization', 'Bearer secret');
    const row = { ...done, key_type: 'bearer', key_name: 'authorization', version: '', supplied_by: 'administrator' };
    await first.knex('target_credentials').insert(row);
    await first.knex.raw('alter table targets drop column options');
  } else {
    await first.knex.schema.dropTable('target_credentials');
    for (const column of ['stdio', 'options']) await first.knex.raw(`alter table targets drop column ${column}`);
  }
  await first.close();

  const config = readConfig({ DATABASE_URL: at.url }).database;
  const { knex, close } = await openDatabase(config, (db) => resealCredentials(db, vault));
  t.teardown(close);
  t.deepEqual(await targetStore(knex).enabled(null), [a, b, c]);
  const reached = [...(await routedTargets(knex, vault, null)).values()].map((one) => {
    const { credentials } = one.accessOf(alice);
    return credentials === 'unusable' ? credentials : String(credentials.headers);
  });
  t.deepEqual(reached, ['authorization,Bearer secret', 'authorization,Basic eA==', 'unusable']);
  const rows = await targetStore(knex).credentials(null);
  t.like(rows[0], { key_type: 'bearer', supplied_by: 'administrator', created_at: 5, updated_at: 6 });
  t.is(new Set(rows.map(({ version }) => version)).size, 3);
  t.false(await knex.schema.hasTable('credentials'));
}

for (const cutShort of [false, true]) {
  const when = cutShort ? 'where the migration was cut short' : 'by the migration';
  eachEngine(test.serial, `credentials of the first schema are kept ${when}`, (t, at) => migrated(t, at, cutShort));
}

eachEngine(test.serial, 'values that are sealed under a previous master key are sealed again', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const [a, b] = [target('a'), stdio('b')];
  for (const one of [a, b]) await store.insert(one);
  await store.putCredential(sealCredential(vault, a, setting()));
  await store.putCredential(sealCredential(vault, b, setting({ credential: { type: 'env', name: 'T', value: 'secret' } })));
  const [newKey, stranger] = [Buffer.alloc(32, 2), Buffer.alloc(32, 3)];
  const before = await store.credentials(null);
  await resealCredentials(knex, createVault(stranger, [newKey]));
  t.deepEqual(await store.credentials(null), before, 'what cannot be opened stays as it is');
  const both = createVault(newKey, [stranger, Buffer.alloc(32, 1)]);
  t.is(openCredential(both, a, before[0] as CredentialRow), 'secret');
  await resealCredentials(knex, both);
  const after = await store.credentials(null);
  t.is(openCredential(createVault(newKey), a, after[0] as CredentialRow), 'secret');
  t.is(openCredential(createVault(newKey), b, after[1] as CredentialRow), 'secret');
  t.is(openCredential(vault, a, after[0] as CredentialRow), null);
  const versions = (rows: CredentialRow[]) => rows.map(({ version }) => version);
  t.deepEqual(versions(after), versions(before), 'the values are the same, and so are sessions that were opened with them');
  await resealCredentials(knex, both);
  t.deepEqual(await store.credentials(null), after);
  // A value that was set in the meantime is not overwritten.
  await store.replaceSealed(before[0] as CredentialRow, { sealed: 'old', version: 'old', origin: 'old' });
  t.deepEqual(await store.credentials(null), after);
});

/** Binds a credential as the gateway did before migration 0011. */
function formerRow(one: HttpTarget | StdioTarget, value: string, over: Partial<CredentialRow> = {}): CredentialRow {
  const credential = one.transport === 'stdio' ? { type: 'env' as const, name: 'T', value } : { ...bearer, value };
  const row = sealCredential(vault, one, setting({ credential }));
  const steering = one.transport === 'stdio' ? Object.entries(one.env).filter(([name]) => name === 'LD_PRELOAD') : [];
  const place = one.transport === 'stdio' ? JSON.stringify([one.command, one.args, one.cwd, steering]) : '';
  const hash = createHash('sha256').update(place).digest('hex');
  const origin = one.transport === 'stdio' ? `stdio:${hash}` : new URL(one.url).origin;
  const identity = JSON.stringify(['credential', one.id, 'default', '', row.key_type, row.key_name, 'administrator']);
  return { ...row, origin, sealed: vault.seal(identity, Buffer.from(JSON.stringify({ origin, value }))), ...over };
}

eachEngine(
  test.serial,
  'credentials of an older version are bound once, at the upgrade, to their stored targets',
  async (t, at) => {
    const first = await openTestDatabase(t, at);
    const whole = stdio('a', { env: { GITHUB_HOST: 'git.example', LD_PRELOAD: '/lib.so' } });
    const [url, moved, back] = [target('b'), stdio('c'), target('d')];
    for (const one of [whole, url, moved, back]) await targetStore(first.knex).insert(one);
    const former = [formerRow(whole, 'a'), formerRow(url, 'b'), formerRow({ ...moved, args: ['-y'] }, 'c')];
    for (const row of [...former, formerRow(back, 'd', { origin: '' })]) await targetStore(first.knex).putCredential(row);
    await first.knex('migrations').where('name', '0011-credential-bindings').delete();
    await first.close();

    const config = readConfig({ DATABASE_URL: at.url }).database;
    // The first start ends before any credential is bound. The next start binds them.
    await (await openDatabase(config, async () => undefined)).close();
    const { knex, close } = await openDatabase(config, (db) => resealCredentials(db, vault));
    t.teardown(close);
    const rows = await targetStore(knex).credentials(null);
    const values = () => rows.map((row, index) => openCredential(vault, [whole, url, moved, back][index] ?? whole, row));
    t.deepEqual(values(), ['a', 'b', null, null]);
    t.deepEqual(
      rows.map(({ version }) => version).slice(0, 2),
      former.map(({ version }) => version).slice(0, 2),
      'sessions that were opened with them go on',
    );
    t.is(openCredential(vault, { ...whole, env: { ...whole.env, GITHUB_HOST: 'evil.example' } }, rows[0] as CredentialRow), null);

    // A target that is changed in the database afterwards is not what they are bound to, and no further start binds them again.
    await knex('targets')
      .where('id', 'a')
      .update({ stdio: JSON.stringify({ ...whole, env: { GITHUB_HOST: 'evil.example' } }) });
    await resealCredentials(knex, vault);
    t.deepEqual(await targetStore(knex).credentials(null), rows);
    t.is((await routedTargets(knex, vault, null)).get('target-a')?.accessOf(alice).credentials, 'unusable');
  },
);
