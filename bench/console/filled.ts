/** A gateway's database with 10,000 policies, 5,000 users, and a log of any size whose decisions are counted. */
import { copyFileSync, existsSync } from 'node:fs';
import { v7 as uuidv7 } from 'uuid';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import { HOUR_MS } from '../../src/audit/search/count-store.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { LOCAL_ISSUER, userStore } from '../../src/users/user-store.ts';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import { fillLog, user } from '../audit/log-rows.ts';
import { apiAt, startProcess } from '../gateway/own.ts';
import { createWorkload, MIXES, TARGETS } from '../workload.ts';

const POLICIES = 10_000;
const USERS = 5_000;
const USERS_AT_ONCE = 500;
const COUNTS_AT_ONCE = 500;
const DECIDING = 40;

/** A database that is kept must open again. */
export const ENVIRONMENT = { MASTER_KEY: Buffer.alloc(32, 7).toString('base64') };

/** Returns the hour, effect, policy and target by which the gateway counts. */
const keyOf = ({ created_at, effect, policy_id, target_id }: DecisionRecord): string =>
  [Math.floor(created_at / HOUR_MS), effect, policy_id ?? '', target_id ?? ''].join(' ');

/** Makes the database in `file`. `keep`: a copy that an earlier run has left there, or where this one leaves its own. */
export async function makeFilled(guardian: Guardian, file: string, rows: number, keep: string | null): Promise<void> {
  if (keep !== null && existsSync(keep)) return copyFileSync(keep, file);
  const url = `sqlite:${file}`;
  const targetIds = await targetsIn(guardian, url);
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, async () => undefined);
  const { knex } = database;
  await knex.raw('pragma synchronous = off');
  const workload = createWorkload(MIXES.mixed, POLICIES).policies;
  const places = [...new Set(workload.flatMap(({ target_id }) => target_id ?? []))];
  const policies = workload.map((policy) => ({
    ...policy,
    target_id: policy.target_id && (targetIds[places.indexOf(policy.target_id)] ?? null),
    subjects: policy.subjects.map((subject) => ({ ...subject, id: uuidv7() })),
    ...{ managed_as: null, drift_since: null },
  }));
  await knex.transaction((trx) => policyStore(trx).change(policies.map((after) => ({ before: null, after }))));
  for (let first = 0; first < USERS; first += USERS_AT_ONCE) {
    await knex.transaction(async (trx) => {
      for (let n = first; n < first + USERS_AT_ONCE; n++) {
        const who = { id: user(n), issuer: LOCAL_ISSUER, subject: user(n), email: `user-${n}@example.com`, facts: null };
        const what = { role: `role-${n % 10}`, groups: [`team-${n % 200}`, 'engineering'], valid_after: null, enabled: true };
        await userStore(trx).insert({ ...who, ...what, created_at: 0, updated_at: 0 }, null);
      }
    });
  }
  const counts = new Map<string, number>();
  await fillLog(database, rows, (record, i) => {
    const n = Number.parseInt(record.target_id?.slice(24) ?? '', 16);
    // As many policies decide as in a log that is searched by them.
    const rule = policies[i % DECIDING];
    const adapted = {
      ...{ ...record, target_id: targetIds[n % TARGETS] ?? null, target_name: `target-${n % TARGETS}` },
      ...(record.policy_id === null ? {} : { policy_id: rule?.id ?? null, policy_name: rule?.name ?? null }),
    };
    counts.set(keyOf(adapted), (counts.get(keyOf(adapted)) ?? 0) + 1);
    return adapted;
  });
  // The gateway would count for many minutes.
  await knex.transaction(async (trx) => {
    const rows = [...counts].map(([key, decisions]) => {
      const [hour, effect, policy_id, target_id] = key.split(' ');
      return { hour: Number(hour), effect, policy_id, target_id, decisions };
    });
    for (let i = 0; i < rows.length; i += COUNTS_AT_ONCE) await trx('log_counts').insert(rows.slice(i, i + COUNTS_AT_ONCE));
    const chains: { chain_id: string }[] = await trx('audit_chains').select('chain_id');
    for (const { chain_id } of chains) await trx('log_counted').insert({ chain_id, seq: 2 ** 31 - 1 });
  });
  await knex.raw('pragma synchronous = full');
  await database.close();
  if (keep !== null) copyFileSync(file, keep);
}

/** Makes the tables, an administrator and targets over the API. Returns the ids of the targets. */
async function targetsIn(guardian: Guardian, url: string): Promise<string[]> {
  const { pid, origin } = await startProcess(guardian, url, { env: ENVIRONMENT });
  const api = apiAt(origin);
  const { token } = await api.logIn('admin@example.com');
  const ids: string[] = [];
  for (let n = 0; n < TARGETS; n++) {
    const body = { name: `target-${n}`, transport: 'streamable-http', url: `http://127.0.0.1:9/${n}` };
    ids.push((await api.call<{ id: string }>('POST', '/api/targets', token, body)).id);
  }
  const gone = new Promise<void>((resolve) => {
    const look = setInterval(() => {
      try {
        process.kill(pid, 0);
      } catch {
        clearInterval(look);
        resolve();
      }
    }, 50);
  });
  killGroup(pid, 'SIGTERM');
  await gone;
  return ids;
}
