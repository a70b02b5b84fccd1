/** What is kept between questions about policies is never older than the policies. */
import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { HeavyParts } from '../../src/policies/heavy/heavy.ts';
import type { HeavyAnswer } from '../../src/policies/heavy/jobs.ts';
import { createKeptLint } from '../../src/policies/heavy/kept-lint.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { policyBody } from './policies.ts';

interface Lint {
  readonly findings: readonly { readonly code: string; readonly witness: object | null }[];
}

eachEngine(test, 'an explanation is never older than the policies, also after a restore', async (t, { url }) => {
  let database = null as Database | null;
  const open: typeof openDatabase = async (...given) => {
    database = await openDatabase(...given);
    return database;
  };
  const gateway = await startGateway(t, url, {}, { open });
  const { token } = await person(gateway, 'admin@example.com');
  const target = (
    await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
      token,
      body: { name: 'files', transport: 'streamable-http', url: 'http://127.0.0.1:9/' },
    })
  ).body;
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', {
    token,
    body: policyBody({ name: 'First', target_id: target.id }),
  });
  const question = {
    principal: { role: 'user', groups: [], sub: 'somebody' },
    target: 'files',
    resource_type: 'tool',
    resource_name: 'read',
  };
  const decided = async () =>
    (await gateway.rest<{ policy: { name: string } | null }>(200, 'POST', '/api/policies/explain', { token, body: question }))
      .body.policy?.name;
  t.is(await decided(), 'First');
  t.is(await decided(), 'First', 'the kept policies answer');
  await gateway.rest(200, 'PUT', `/api/policies/${made.body.id}`, { token, body: { name: 'Second' } });
  t.is(await decided(), 'Second');
  await gateway.rest(200, 'PUT', `/api/targets/${target.id}`, { token, body: { description: 'x' } });
  t.is(await decided(), 'Second', 'after a change of something else');
  await gateway.rest(200, 'PUT', `/api/policies/${made.body.id}`, { token, body: { subjects: [{ subject_type: 'everyone' }] } });
  const found = async () =>
    JSON.stringify((await gateway.rest<Lint>(200, 'GET', '/api/policies/lint?kept=yes', { token })).body.findings);
  t.regex(await found(), /Second/);
  // A different history with the same revision, as a restore makes it.
  if (database === null) throw new Error('The gateway has opened no database');
  const { knex } = database as Database;
  await knex('policies').where({ id: made.body.id }).update({ name: 'Restored' });
  await knex('changes').update({ nonce: 'another history' });
  await knex('counter').update({ nonce: 'another history' });
  t.is(await decided(), 'Restored');
  t.regex(await found(), /Restored/, 'a kept analysis is not that of a different history');
});

eachEngine(test, 'lint can answer with a kept analysis of the same policies, and only then', async (t, { url }) => {
  const gateway = await startGateway(t, url);
  const { token } = await person(gateway, 'admin@example.com');
  const lint = async (query = '') =>
    (await gateway.rest<Lint>(200, 'GET', `/api/policies/lint${query}`, { token })).body.findings;
  const codes = (findings: Lint['findings']) => findings.map(({ code }) => code);
  const body = policyBody({ name: 'Open', subjects: [{ subject_type: 'everyone' }] });
  await gateway.rest(201, 'POST', '/api/policies', { token, body });
  const [whole, kept] = [await lint(), await lint('?kept=yes')];
  t.true(whole.length > 0 && whole.some(({ witness }) => witness !== null));
  t.deepEqual(codes(kept), codes(whole));
  t.true(kept.every(({ witness }) => witness === null));
  await gateway.rest(201, 'POST', '/api/policies', { token, body: { ...body, name: 'Once more' } });
  t.deepEqual(codes(await lint('?kept=yes')), codes(await lint('?kept=no')));
  t.true((await lint('?kept=yes')).length > kept.length);
  for (const query of ['?kept=maybe', '?kept=yes&kept=no', '?keep=yes'])
    await gateway.rest(400, 'GET', `/api/policies/lint${query}`, { token });
});

test('a kept analysis is shared by all who wait, ends after 10 minutes, and a failed one is not kept', async (t) => {
  let [now, glances, runs] = [0, 0, 0];
  let fails = false;
  const knex = () => ({});
  const position = { sequence: 0, nonce: '', revision: 0 };
  const database = {
    snapshot: async () => ({ glance: String(glances), guarded: false, position, isSame: true }),
    knex,
  } as unknown as HeavyParts['database'];
  const heavy = {
    answer: async (): Promise<HeavyAnswer> => {
      runs++;
      if (fails) throw new AppError('unavailable', 'busy');
      return { json: new Uint8Array([runs]), position };
    },
  };
  const kept = createKeptLint({ database, heavy, now: () => now });
  const ask = async () => (await kept('somebody')).json[0];
  t.deepEqual(await Promise.all([ask(), ask()]), [1, 1]);
  now = 600_000;
  t.is(await ask(), 1);
  now = 600_001;
  t.is(await ask(), 2);
  glances++;
  t.is(await ask(), 3);
  glances++;
  fails = true;
  await t.throwsAsync(ask(), { message: 'busy' });
  fails = false;
  t.is(await ask(), 5);
});
