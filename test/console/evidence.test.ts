/** What the console shows as evidence: decisions made again, and whether the chain was verified. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { createChainKey } from '../../src/audit/chain/chain.ts';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import type { LogJson } from '../../src/audit/search/log-json.ts';
import type { Report } from '../../src/audit/verify/report.ts';
import { signed, statementJson } from '../../src/audit/verify/statement.ts';
import { createVault } from '../../src/auth/vault.ts';
import { uuidv7 } from '../../src/base/ids.ts';
import { auditGroup } from '../../src/cli/audit.ts';
import { runGroup } from '../../src/cli/command.ts';
import { loginFile } from '../../src/cli/sign-in/logins.ts';
import { chainConcern, chainState } from '../../src/console/log/chain.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { VerifiedJson } from '../../src/rest/audit/contract.ts';
import { storedDecision } from '../audit/legacy-rows.ts';
import { decision } from '../audit/records.ts';
import { browse, signIn } from '../browser/browser.ts';
import { folder, inProcess } from '../cli/cli.ts';
import { policyBody } from '../policies/policies.ts';
import { addTarget } from '../policies/sets.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person, startGateway } from '../support/gateway.ts';
import { post } from '../support/mcp.ts';

test.serial(
  'a decision is made again on its page: the same, different if the policies were altered, or not at all',
  async (t) => {
    let database: Database | null = null;
    const open: typeof openDatabase = async (...given) => {
      database = await openDatabase(...given);
      return database;
    };
    const gateway = await startGateway(t, null, {}, { open });
    const admin = await person(gateway, 'admin@example.com');
    const { token } = admin;
    const console_ = browse(gateway);
    await signIn(console_, admin);
    await addTarget(gateway, token, 'one');
    const body = policyBody({ name: 'First', resource_pattern: '^echo$' });
    const { id } = (await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', { token, body })).body;
    const ask = async (target: string, name: string): Promise<LogJson> => {
      const message = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: {} } };
      await post(`${gateway.url}/mcp/${target}`, token, message, { 'mcp-session-id': 'none' });
      const { body: rows } = await gateway.rest<LogJson[]>(200, 'GET', '/api/logs?limit=1', { token });
      return rows[0] as LogJson;
    };
    const again = async (decision: LogJson) => (await console_.get(`/console/log/${decision.id}?again=yes`)).text;
    const [allowed, denied, nowhere] = [await ask('one', 'echo'), await ask('one', 'other'), await ask('nowhere', 'echo')];
    t.deepEqual([allowed.effect, denied.effect, nowhere.reason], ['allow', 'deny', 'no_target']);
    // A later revision changes nothing about it.
    await gateway.rest(200, 'PUT', `/api/policies/${id}`, { token, body: { effect: 'deny' } });
    t.regex((await console_.get(`/console/log/${allowed.id}`)).text, /href="\?again=yes#again"/);
    for (const decision of [allowed, denied])
      t.regex(await again(decision), /Same: with the policies of revision 1, the engine made/);
    t.notRegex(await again(nowhere), /again=yes|Same|Differs/);
    const answer = async (decision: LogJson) =>
      (await gateway.rest<{ result: string }>(200, 'GET', `/api/logs/${decision.id}/reproduction`, { token })).body.result;
    t.is(await answer(nowhere), 'not_by_policy');
    await gateway.rest(404, 'GET', '/api/logs/00000000-0000-7000-8000-000000000000/reproduction', { token });
    const user = await person(gateway, 'user@example.com');
    await gateway.rest(403, 'GET', `/api/logs/${allowed.id}/reproduction`, { token: user.token });

    // Somebody with access to the tables alters the log.
    const { knex } = database as unknown as Database;
    const saved = async (table: string): Promise<object[]> =>
      (
        await knex(table)
          .orderBy(table === 'audit_chains' ? 'chain_id' : 'id')
          .select()
      ).map((row: object) =>
        Object.fromEntries(
          Object.entries(row).map(([name, value]) => [
            name,
            typeof value === 'object' && value !== null ? Buffer.from(value as Uint8Array) : value,
          ]),
        ),
      );
    for (const [table, change] of [
      ['log_objects', { resource_name: 'other' }],
      ['log_objects', { method: 'prompts/get' }],
      ['log_principals', { user_email: 'other@example.com' }],
      ['log_principals', { user_id: user.id }],
      ['log_principals', { user_groups: '["a"]' }],
      ['log_verdicts', { policy_priority: 7 }],
      ['log_decisions', { principal: Buffer.alloc(12, 1) }],
      ['log_decisions', { mac: Buffer.alloc(16, 1) }],
      ['log_decisions', { seq: knex.raw('seq + 1') }],
      ['audit_chains', { unchained: 1 }],
      ['audit_chains', { chain_id: uuidv7() }],
    ] as const) {
      const rows = await saved(table);
      await knex(table).update(change);
      for (const decision of [allowed, nowhere]) t.is(await answer(decision), 'damaged', `${table} ${Object.keys(change)}`);
      await knex(table).delete();
      await knex(table).insert(rows);
      t.is(await answer(allowed), 'same');
    }
    await knex('log_objects').update({ method: 'prompts/get' });
    t.regex(await again(allowed), /not what the gateway wrote, or parts of it are missing/);
    await knex('log_objects').update({ method: 'tools/call' });
    // A decision in the older table that belongs to no chain, as it was before there were chains.
    const { created_at: _, outcome: _outcome, duration_ms: _ms, shown: _shown, ...same } = allowed;
    const { row: forged } = storedDecision(decision({ ...same, id: uuidv7() } as Partial<DecisionRecord>));
    await knex('audit_decisions').insert(forged);
    t.is(await answer({ ...allowed, id: forged.id }), 'unproven');
    await knex('audit_decisions').delete();
    // Without a removal by age, the record before it must be there.
    const decisions = await saved('log_decisions');
    const { seq } = await knex('log_decisions')
      .where({ id: Buffer.from(denied.id.replaceAll('-', ''), 'hex') })
      .first('seq');
    t.is(
      await knex('log_decisions')
        .where({ seq: seq - 1 })
        .delete(),
      1,
    );
    t.is(await answer(denied), 'damaged');
    await knex('log_decisions').delete();
    await knex('log_decisions').insert(decisions);

    // Somebody alters what the history says of revision 1.
    const rows = await (database as unknown as Database).knex('changes').where({ object_id: id }).select('sequence', 'before');
    for (const { sequence, before } of rows as { sequence: number; before: string | null }[]) {
      if (before === null) continue;
      const altered = before.replace('^echo$', '^x$');
      t.not(altered, before);
      await (database as unknown as Database).knex('changes').where({ sequence }).update({ before: altered });
    }
    const page = await again(allowed);
    t.regex(page, /Differs: with the policies of revision 1/);
    for (const part of [/Effect.*allow.*deny/s, /Policy.*none/s, /Reason.*matched.*default/s, /Hash of the policies/])
      t.regex(page, part);
    t.notRegex(page, /Hash of the engine/);
    t.is(await answer(allowed), 'differs');

    await gateway.rest(200, 'POST', '/api/logs/erase', { token, body: { user_id: admin.id } });
    t.regex(await again(allowed), /have been erased, so the decision cannot be made again/);
    t.is(await answer(allowed), 'erased');
  },
);

eachEngine(
  test.serial,
  'the overview and the audit log say whether the chain was verified, until when and by nobody else',
  async (t, at) => {
    let database: Database | null = null;
    const open: typeof openDatabase = async (...given) => {
      database = await openDatabase(...given);
      return database;
    };
    const gateway = await startGateway(t, at.url, {}, { open });
    const admin = await person(gateway, 'admin@example.com');
    const { token } = await apiToken(gateway, admin);
    const console_ = browse(gateway);
    await signIn(console_, admin);
    const pages = async () =>
      Promise.all(
        ['overview', 'log'].map(async (page) => (await console_.get(`/console/${page}`)).text.replaceAll(/<[^>]*>/g, '')),
      );
    const decide = () =>
      post(
        `${gateway.url}/mcp/one`,
        token,
        { jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} },
        { 'mcp-session-id': 'none' },
      );
    const verified = async () =>
      (await gateway.rest<VerifiedJson>(200, 'GET', '/api/logs/verification', { token })).body.verification;

    t.is(await verified(), null);
    t.notRegex((await pages())[0] ?? '', /Audit chain/, 'a gateway that has decided nothing');
    await decide();
    // The overview knows of the decision when it is counted.
    while (!/Audit chain No verification of the chain was reported/.test((await pages())[0] ?? '')) await sleep(100);
    t.regex((await pages())[1] ?? '', /Chain No verification of the chain was reported/);

    const environment = {
      ...{ PORTCULLIS_TOKEN: token, MASTER_KEY: Buffer.alloc(32, 7).toString('base64') },
    };
    const file = join(folder(t), 'export.ndjson');
    const exported = async (): Promise<string> => {
      const headers = { authorization: `Bearer ${token}` };
      return (await fetch(`${gateway.url}/api/logs/export?format=ndjson`, { headers })).text();
    };
    const verify = async (text: string, more: Record<string, string> = {}) => {
      writeFileSync(file, text);
      return inProcess({ ...environment, ...more }, (terminal) =>
        runGroup(auditGroup, ['verify', '--export', file, '--report', '--server', gateway.url], terminal),
      );
    };
    const text = await exported();
    const intact = await verify(text);
    t.is(intact.code, 0, intact.err);
    const { body: rows } = await gateway.rest<LogJson[]>(200, 'GET', '/api/logs', { token });
    const first = await verified();
    t.like(first, { intact: true, decision_id: rows[0]?.id, since: null, problems: 0 });
    for (const [i, page] of (await pages()).entries()) {
      t.notRegex(page, /No verification|not intact/);
      if (i === 1)
        t.regex(
          page,
          new RegExp(`Chain Verified and intact at .*: ${first?.records} records, up to the decision ${rows[0]?.id}`),
        );
    }

    // Not with a different key, not without the right, and not altered.
    const other = await verify(text, { MASTER_KEY: Buffer.alloc(32, 8).toString('base64') });
    t.is(other.code, 2);
    // A damaged login says nothing about the log.
    const logins = folder(t);
    const login = loginFile(join(logins, 'portcullis', 'logins'), gateway.url);
    mkdirSync(dirname(login), { recursive: true });
    writeFileSync(login, 'damaged', { mode: 0o600 });
    const damaged = await verify(text, { PORTCULLIS_TOKEN: '', XDG_CONFIG_HOME: logins });
    t.is(damaged.code, 2, damaged.err);
    const stored = await (database as unknown as Database).knex('audit_verification').first<{ statement: string }>('statement');
    const { verified_at, ...signed } = JSON.parse(stored?.statement ?? '{}') as { verified_at: number };
    const body = { ...signed, verified_at: new Date(verified_at).toISOString() };
    await gateway.rest(200, 'PUT', '/api/logs/verification', { token, body });
    for (const forged of [
      { verified_at: '2126-01-01T00:00:00.000Z' },
      { records: 9 },
      { intact: false },
      { since: null, mac: 'x' },
    ])
      await gateway.rest(400, 'PUT', '/api/logs/verification', { token, body: { ...body, ...forged } });
    await gateway.rest(400, 'PUT', '/api/logs/verification', { token, body: {} });
    const user = await person(gateway, 'user@example.com');
    await gateway.rest(403, 'PUT', '/api/logs/verification', { token: user.token, body });
    await gateway.rest(403, 'GET', '/api/logs/verification', { token: user.token });
    t.deepEqual(await verified(), first);

    // A log that somebody has altered.
    const altered = await verify(text.replace(rows[0]?.target_name ?? '', 'two'));
    t.is(altered.code, 1, altered.out + altered.err);
    for (const page of await pages()) t.regex(page, /The log is not intact: the verification of .* found 1 problem\./);
    // An older statement does not replace it.
    await gateway.rest(200, 'PUT', '/api/logs/verification', { token, body });
    t.false((await verified())?.intact);

    // A row that nobody with the master key has written says nothing.
    const forged = JSON.stringify({ ...signed, verified_at: Date.now() });
    await (database as unknown as Database).knex('audit_verification').update({ statement: forged });
    t.is(await verified(), null);
    await (database as unknown as Database).knex('audit_verification').update({ statement: 'x' });
    t.is(await verified(), null);

    // It is told, and says what it found, also if the gateway does not take it.
    const untold = await verify(text, { PORTCULLIS_TOKEN: user.token });
    t.is(untold.code, 2);
    t.regex(untold.err, /The audit log is intact: .*The gateway was not told: /s);
  },
);

test('a report of a verification in the future is refused, because no later one could replace it', async (t) => {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'admin@example.com');
  const key = createChainKey(createVault(Buffer.alloc(32, 7)).derive('audit chain'));
  const found = { intact: true, newest: null, since: null, records: { decision: 0, shown: 0, outcome: 0 }, problems: [] };
  const report = (status: number, ahead: number) => {
    const body = statementJson(signed(key, Date.now() + ahead, found as unknown as Report));
    return gateway.rest(status, 'PUT', '/api/logs/verification', { token, body });
  };
  t.regex(JSON.stringify((await report(400, 10 * 60_000)).body), /verified_at.*in the future/);
  t.is((await report(200, 60_000)).status, 200);
});

eachEngine(
  test,
  'a verification from a checkpoint on takes back no problem that a verification of the whole log must clear',
  async (t, at) => {
    const gateway = await startGateway(t, at.url);
    const { token } = await person(gateway, 'admin@example.com');
    const key = createChainKey(createVault(Buffer.alloc(32, 7)).derive('audit chain'));
    const began = Date.now() - 60_000;
    const report = async (seconds: number, intact: boolean, since: number | null): Promise<VerifiedJson> => {
      const records = { decision: 0, shown: 0, outcome: 0 };
      const found = { intact, newest: null, since, records, problems: intact ? [] : [{}] } as unknown as Report;
      const body = statementJson(signed(key, began + seconds * 1_000, found));
      return (await gateway.rest<VerifiedJson>(200, 'PUT', '/api/logs/verification', { token, body })).body;
    };
    const time = (seconds: number): string => new Date(began + seconds * 1_000).toISOString();

    const partly = await report(1, true, began);
    t.like(partly, { verification: { verified_at: time(1), intact: true }, full: null });
    t.regex(String(chainConcern(partly)), /No verification of the whole chain was reported/);
    const altered = await report(2, false, null);
    t.like(altered, { verification: { verified_at: time(2), intact: false }, full: { verified_at: time(2) } });
    const daily = await report(3, true, began);
    t.deepEqual(daily, altered, 'a full verification found the problem');
    t.regex(String(chainConcern(daily)), /The log is not intact/);
    t.is(chainConcern(await report(4, true, null)), null);

    const later = await report(5, false, began);
    t.like(later, { verification: { verified_at: time(5), intact: false }, full: { verified_at: time(4), intact: true } });
    t.deepEqual(await report(6, true, began + 5_000), later, 'its checkpoint may be later than the problem');
    t.like(await report(7, true, null), { verification: { verified_at: time(7), intact: true }, full: { verified_at: time(7) } });
    t.like(await report(8, true, began), { verification: { verified_at: time(8) }, full: { verified_at: time(7) } });
  },
);

test('a log that was wholly verified longer than 31 days ago needs attention', (t) => {
  const at = (days: number) => new Date(Date.now() - days * 24 * 60 * 60_000).toISOString();
  const verification = { verified_at: at(30), intact: true, decision_id: null, since: at(60), records: 2, problems: 0 };
  const full = { ...verification, since: null };
  t.is(chainConcern({ verification, full }), null);
  t.regex(String(chainState({ verification, full })), /Only records after the checkpoint of/);
  t.regex(String(chainConcern({ verification, full: { ...full, verified_at: at(32) } })), /older than 31 days/);
});
