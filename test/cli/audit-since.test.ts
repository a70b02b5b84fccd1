/** `portcullis audit verify`, as an operator runs it on the host. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { auditStore } from '../../src/audit/audit-store.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { rest } from '../support/gateway.ts';
import { post } from '../support/mcp.ts';
import { dataDir, runGateway } from '../support/process.ts';
import { portcullis } from './cli.ts';

const account = { email: 'admin@example.com', password: 'a long passphrase' };

test.serial('a verification from a checkpoint finds changed and hidden newer records, and reads no older ones', async (t) => {
  const folder = dataDir(t);
  const environment = { DATA_DIR: folder, LOG_LEVEL: 'silent' };
  const gateway = await runGateway(t, environment);
  await rest(gateway.url, 'POST', '/api/auth/register', { body: account });
  const { token } = (await rest<{ token: string }>(gateway.url, 'POST', '/api/auth/login', { body: account })).body;
  const target = { name: 't', transport: 'streamable-http', url: 'http://127.0.0.1:1/mcp' };
  await rest(gateway.url, 'POST', '/api/targets', { token, body: target });
  // No policy lets anybody use the target, and each denial is a record.
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
  const deny = () => post(`${gateway.url}/mcp/t`, token, { jsonrpc: '2.0', id: 1, method: 'initialize', params });
  await deny();
  const checkpoint = join(folder, 'checkpoint.json');
  writeFileSync(checkpoint, JSON.stringify((await rest(gateway.url, 'GET', '/api/logs/checkpoint', { token })).body));
  await deny();
  await deny();
  gateway.child.kill('SIGTERM');
  await gateway.ended;

  const verify = async () => {
    const { code, out, err } = await portcullis(environment, 'audit', 'verify', '--since', checkpoint, '--json');
    t.true(code === 0 || code === 1, err);
    return JSON.parse(out) as { intact: boolean; records: { decision: number }; problems: { detail: string }[] };
  };
  const alter = async (created: 'asc' | 'desc') => {
    const { knex, close } = await openDatabase(readConfig(environment).database, async () => {});
    const row = await knex('log_decisions').orderBy('seq', created).first('id');
    await knex('log_decisions').where('id', Buffer.from(row.id)).update({ created_at: 1 });
    await close();
  };
  t.like(await verify(), { intact: true, records: { decision: 2 } });

  // Pages read a forged decision by its id. An index that lacks it hides it from a reader of the chain.
  const forged = Buffer.alloc(16, 0xee);
  const edit = async (shown: number, ...statements: readonly string[]) => {
    const { knex, close } = await openDatabase(readConfig(environment).database, async () => {});
    for (const statement of statements) await knex.raw(statement);
    t.is((await auditStore(knex).page({}, 10, null)).entries.length, shown);
    await close();
  };
  const create = 'create index log_decisions_chain on log_decisions (chain, seq)';
  await edit(
    4,
    `insert into log_decisions select x'${forged.toString('hex')}', created_at, principal, object, verdict, name, chain, 999, mac
     from log_decisions limit 1`,
    'drop index log_decisions_chain',
    `${create} where seq < 999`,
    'pragma writable_schema = 1',
    `update sqlite_schema set sql = '${create}' where name = 'log_decisions_chain'`,
  );
  const damaged = await verify();
  t.false(damaged.intact);
  t.regex(damaged.problems[0]?.detail ?? '', /database file is damaged.*missing from index log_decisions_chain/);
  await edit(3, 'reindex log_decisions_chain', `delete from log_decisions where id = x'${forged.toString('hex')}'`);
  t.like(await verify(), { intact: true });
  await alter('asc');
  t.like(await verify(), { intact: true });
  await alter('desc');
  t.like(await verify(), { intact: false });
});
