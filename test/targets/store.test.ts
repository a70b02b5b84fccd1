import test from 'ava';
import { createVault } from '../../src/auth/vault.ts';
import { openCredential, routedTargets, sealCredential } from '../../src/targets/credentials.ts';
import { DEFAULT_CREDENTIAL, targetStore } from '../../src/targets/store.ts';
import type { Target } from '../../src/targets/target.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/engines.ts';

const vault = createVault(Buffer.alloc(32, 1));
const times = { created_at: 1, updated_at: 2 };
const secret = { header: 'Authorization', value: 'Bearer secret' };
const target = (id: string, over: Partial<Target> = {}): Target => ({
  id,
  name: `target-${id}`,
  description: null,
  transport: 'streamable-http',
  url: `https://${id}.example.com/mcp`,
  enabled: true,
  created_at: 1,
  updated_at: 2,
  ...over,
});

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
  t.deepEqual(await store.enabled(), [a]);
  await t.throwsAsync(store.insert(target('c', { name: 'target-a' })));

  const row = sealCredential(vault, a, DEFAULT_CREDENTIAL, secret, times);
  await store.putCredential(row);
  await store.putCredential({ ...row, updated_at: 3 });
  t.deepEqual(await store.credentials('a'), [{ ...row, updated_at: 3 }]);
  t.deepEqual(await store.findCredential('a', DEFAULT_CREDENTIAL), { ...row, updated_at: 3 });
  await store.update({ ...a, url: 'https://other.example.com/' });
  t.is((await store.find('a'))?.url, 'https://other.example.com/');
  await store.delete('a');
  t.deepEqual(await store.credentials(null), []);
  t.deepEqual(await store.page(null, null), [b]);
});

eachEngine(test.serial, 'the request path gets enabled targets with their credentials opened', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = targetStore(knex);
  const [a, b, c] = [target('a'), target('b'), target('c')];
  for (const one of [a, b, c, target('d', { enabled: false })]) await store.insert(one);
  await store.putCredential(sealCredential(vault, a, DEFAULT_CREDENTIAL, secret, times));
  await store.putCredential(sealCredential(vault, b, DEFAULT_CREDENTIAL, secret, times));
  await store.disableCredentials('b');
  t.deepEqual(
    await routedTargets(knex, vault),
    new Map([
      ['target-a', { ...a, credential: secret }],
      ['target-b', { ...b, credential: 'unusable' as const }],
      ['target-c', { ...c, credential: 'none' as const }],
    ]),
  );
});

test('a credential opens for its own row, target and origin alone', (t) => {
  const a = target('a');
  const row = sealCredential(vault, a, DEFAULT_CREDENTIAL, secret, times);
  t.false(JSON.stringify(row).includes('secret'));
  t.deepEqual(openCredential(vault, a, row), secret);
  t.deepEqual(openCredential(vault, { ...a, url: `${a.url}/elsewhere` }, row), secret);
  const evil = target('a', { url: 'https://evil.example/' });
  const b = target('b', { url: a.url });
  for (const [why, where, what] of [
    ['the target moved', evil, row],
    ['the target and the row were changed to agree', evil, { ...row, origin: 'https://evil.example' }],
    ['the row was copied to another target', b, { ...row, target_id: 'b' }],
    ['another header', a, { ...row, header: 'x-leak' }],
    ['altered', a, { ...row, sealed: Buffer.from(row.sealed, 'base64').fill(0, 20, 24).toString('base64') }],
    ['garbage', a, { ...row, sealed: 'zz' }],
  ] as const) {
    t.is(openCredential(vault, where, what), 'unusable', why);
  }
  t.is(openCredential(createVault(Buffer.alloc(32, 2)), a, row), 'unusable');
});
