/** An audit log of version 1 is upgraded while calls go on. Afterwards both parts are one log. */
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import test from 'ava';
import { createChainKey } from '../../src/audit/chain/chain.ts';
import { readLine } from '../../src/audit/verify/lines.ts';
import { createVerification } from '../../src/audit/verify/verify.ts';
import { createVault } from '../../src/auth/vault.ts';
import { readConfig } from '../../src/config/config.ts';
import { makeCounter } from '../../src/db/changes.ts';
import { openDatabase } from '../../src/db/database.ts';
import { fillLegacy, legacyWriter, removeLogTables } from '../audit/legacy-writer.ts';
import { decision } from '../audit/records.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { MASTER_KEY, startLoad } from '../support/load.ts';

const ROWS = Number(process.env['PORTCULLIS_TEST_OLD_ROWS'] ?? 3_000);
const SERVED = 500;
const DAY = 24 * 60 * 60 * 1000;
const KEY = createChainKey(createVault(MASTER_KEY).derive('audit chain'));

eachEngine(
  test.serial,
  `a log with ${ROWS} old rows is upgraded while calls go on, and is read, exported, replayed and verified as one`,
  async (t, at, engine) => {
    t.timeout(600_000 + ROWS);
    const old = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
    const older = legacyWriter(old, { key: KEY });
    const olderIds: string[] = [];
    const record = async (): Promise<void> => {
      const made = decision({ created_at: Date.now() });
      await older.decision(made);
      olderIds.push(made.id);
    };
    // The code of this version reads the new tables when it begins a chain.
    if (engine !== 'sqlite') await record();
    await removeLogTables(old);
    if (engine === 'sqlite') await old.knex.raw('pragma synchronous = off');
    const from = Date.now() - 30 * DAY;
    await fillLegacy(old, ROWS, from, Date.now() - DAY, KEY);

    // With a server, a replica of the older version goes on to write while the first new one migrates the database.
    let isOver = engine === 'sqlite';
    if (isOver) await old.close();
    else t.teardown(() => old.close());
    const writing = (async () => {
      while (!isOver) await record();
    })();
    const load = await startLoad(t, { DATABASE_URL: at.url });
    load.begin(8, 0);
    await load.next(SERVED, 'allowed', 'denied', 'listed');

    const { url } = load.gateway;
    const account = { email: 'admin@example.com', password: 'a long passphrase' };
    const { token } = (await rest<{ token: string }>(url, 'POST', '/api/auth/login', { body: account })).body;
    const everything = { from: new Date(from - DAY).toISOString() };
    const replayed = await rest<{ decisions: number }>(url, 'POST', '/api/policies/replay', { token, body: everything });
    t.is(replayed.status, 200);
    t.true(replayed.body.decisions >= ROWS + SERVED, `${replayed.body.decisions} decisions replayed`);

    await load.next(SERVED, 'allowed', 'denied', 'listed');
    isOver = true;
    await writing;
    await load.halt();

    const verification = createVerification([KEY], Date.now());
    const exported = await fetch(`${url}/api/logs/export?format=ndjson`, { headers: { authorization: `Bearer ${token}` } });
    for await (const text of createInterface({ input: Readable.fromWeb(exported.body as never) })) {
      const line = readLine(text);
      if (line !== null) verification.take(line);
    }
    const { report } = verification.finish();
    t.deepEqual(report.problems, []);
    t.is(report.chains, engine === 'sqlite' ? 2 : 3);

    const forwarded = new Set(
      load.upstream.received.flatMap(({ message }) => (message?.method === 'tools/call' ? [message.params?.['name']] : [])),
    );
    const rows = { all: 0, ofUser: 0, older: new Set<string>(), versions: new Set<string>() };
    let last = '';
    for (let path: string | undefined = '/api/logs?limit=1000'; path !== undefined; ) {
      const page: { body: Row[]; headers: Headers } = await rest<Row[]>(url, 'GET', path, { token });
      for (const { id, resource_name, effect, user_id } of page.body) {
        if (last !== '' && id >= last) t.fail(`${id} comes after ${last}`);
        last = id;
        rows.all++;
        if (user_id === 'user 7') rows.ofUser++;
        if (effect === 'allow') forwarded.delete(resource_name);
        if (user_id === 'u1') rows.older.add(id);
      }
      path = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
    }
    t.is(rows.all, report.records.decision, 'the pages have every decision of the export');
    t.is(rows.ofUser, Math.floor((ROWS + 192) / 200));
    t.deepEqual([...forwarded], [], 'forwarded without a row');
    t.deepEqual(
      olderIds.filter((id) => !rows.older.has(id)),
      [],
    );
    const ofUser = await rest<Row[]>(url, 'GET', '/api/logs?limit=10&user_id=user%207', { token });
    t.is(ofUser.body.length, 10);
    t.log(`${report.records.decision} decisions in ${report.chains} chains, ${olderIds.length} of the older replica`);
  },
);

interface Row {
  readonly id: string;
  readonly user_id: string;
  readonly resource_name: string | null;
  readonly effect: string;
}
