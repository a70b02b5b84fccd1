/** What the console shows as evidence: decisions made again. */
import test from 'ava';
import type { LogJson } from '../../src/audit/search/log-json.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { browse, signIn } from '../browser/browser.ts';
import { policyBody } from '../policies/policies.ts';
import { addTarget } from '../policies/sets.ts';
import { person, startGateway } from '../support/gateway.ts';
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

    // Somebody with access to the tables alters what the history says of revision 1.
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
