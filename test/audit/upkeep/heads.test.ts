import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { checkpointLine, isCutOff, readCheckpoint } from '../../../src/audit/chain/checkpoint.ts';
import { createHeads } from '../../../src/audit/upkeep/heads.ts';
import { createKeyRing, makeKeys } from '../../../src/auth/keys.ts';
import { createVault } from '../../../src/auth/vault.ts';
import { openTestDatabase } from '../../support/database.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, quietWriter, verified } from '../records.ts';

/** A database with signing keys, and a folder for checkpoints. */
async function setUp(t: ExecutionContext) {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const vault = createVault(Buffer.alloc(32, 7));
  await makeKeys(database.knex, vault);
  const keys = await createKeyRing(database.knex, vault);
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-heads-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  return { database, keys, folder };
}

test.serial('a moved head is written to the log, and to a file that only its owner can read', async (t) => {
  const { database, keys, folder } = await setUp(t);
  const writer = quietWriter(database);
  await writer.start();
  const said: { seq?: number; mac?: string }[] = [];
  const errors: object[] = [];
  const log = { info: (record: object) => void said.push(record), error: (record: object) => void errors.push(record) };
  const open = (file: string) =>
    createHeads({ database, key: KEY, keys, writer, file, checkpointMs: 3_600_000, log, now: () => 77 });

  const file = join(folder, 'deep', 'checkpoints.jsonl');
  const heads = open(file);
  await writer.decision(decision());
  await heads.stop();
  t.deepEqual(
    said.map(({ seq }) => seq),
    [1],
  );
  t.is(statSync(file).mode & 0o777, 0o600);
  const second = open(file);
  await second.stop();
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean);
  t.is(lines.length, 2);
  const checkpoint = readCheckpoint(lines[0] ?? '');
  t.like(checkpoint, { time: 77, heads: [[writer.head()?.chain_id, 1, writer.head()?.mac]] });
  t.is(said.length, 2, 'once more when it starts, and not again when nothing moved');
  if (checkpoint) t.true((await verified(database, [checkpoint])).intact);

  // A full disk, or the end of a process.
  appendFileSync(file, (lines[0] ?? '').slice(0, 90));
  const third = open(file);
  await third.stop();
  const [, , cut = '', next = '', ...more] = readFileSync(file, 'utf8').split('\n').filter(Boolean);
  t.true(isCutOff(cut));
  t.truthy(readCheckpoint(next), 'it begins in a line of its own');
  t.deepEqual(more, []);

  writeFileSync(join(folder, 'no folder'), '');
  await open(join(folder, 'no folder', 'file')).stop();
  t.is(errors.length, 1);
  await writer.close();
});

test.serial('a forged record without a MAC does not hide a chain from the checkpoints', async (t) => {
  const { database, keys, folder } = await setUp(t);
  const [ended, writer] = [legacyWriter(database), legacyWriter(database)];
  await ended.decision(decision());
  await writer.decision(decision());
  const [other, own] = [ended.head(), writer.head()];
  await ended.close();
  const forged = [];
  for (const { chain_id } of await database.knex('audit_decisions').select('chain_id')) {
    const row = await database.knex('audit_decisions').where({ chain_id }).first();
    forged.push({ ...row, id: decision().id, chain_seq: 1000, mac: null });
  }
  await database.knex('audit_decisions').insert(forged);
  const log = { info: () => {}, error: () => {} };
  const file = join(folder, 'checkpoints.jsonl');
  const heads = createHeads({ database, key: KEY, keys, writer, file, checkpointMs: 3_600_000, log, now: () => 77 });
  const checkpoint = readCheckpoint(await heads.checkpoint());
  await heads.stop();
  await writer.close();
  const named = new Map(checkpoint?.heads.map(([chain, ...head]) => [chain, head]));
  t.deepEqual(named.get(own?.chain_id ?? ''), [1, own?.mac ?? '']);
  t.deepEqual(named.get(other?.chain_id ?? ''), [1000, '']);
  // The attacker takes the forged records away, and the newest real ones with them.
  await database.knex('audit_decisions').delete();
  t.false((await verified(database, checkpoint === null ? [] : [checkpoint])).intact);
});

test.serial('other text is not accepted as a checkpoint', (t) => {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  const payload = { time: 1, revision: 1, heads: [['c', 1, 'm']], key_id: 'k', mac: 'm' };
  const jws = (typ: string, value: unknown): string => `${part({ alg: 'ES256', typ })}.${part(value)}.x`;
  t.deepEqual(readCheckpoint(jws('portcullis-audit-checkpoint', payload)), payload as never);
  for (const line of [
    'x',
    '{}',
    '{"checkpoint":1}',
    jws('JWT', payload),
    ...Object.keys(payload).map((name) => jws('portcullis-audit-checkpoint', { ...payload, [name]: undefined })),
    jws('portcullis-audit-checkpoint', { ...payload, heads: [['c', '1', 'm']] }),
  ]) {
    t.is(readCheckpoint(line), null, line);
  }
});

test('exactly the beginnings of a checkpoint count as cut off', (t) => {
  const line = checkpointLine('eyJ0-_.eyJ1.c2ln');
  for (let length = 0; length < line.length; length++) t.true(isCutOff(line.slice(0, length)), line.slice(0, length));
  for (const other of [
    line,
    `${line}x`,
    line.slice(1),
    `${line.slice(0, 20)}${line}`,
    'x',
    '{}',
    '{"checkpoint":1',
    '{"checkpoint":"a b',
  ]) {
    t.false(isCutOff(other), other);
  }
});
