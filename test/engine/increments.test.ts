/** The state that a replica keeps current from the feed of changes equals the state that it would load from nothing (law 4). */
import { isDeepStrictEqual } from 'node:util';
import test, { type ExecutionContext } from 'ava';
import { createVault } from '../../src/auth/vault.ts';
import { type Position, readPosition } from '../../src/db/changes.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { sessionRules } from '../../src/sessions/rules.ts';
import type { Snapshot } from '../../src/state/admission.ts';
import { readIdentities } from '../../src/state/identity-store.ts';
import { type Current, createCurrent } from '../../src/state/live-state.ts';
import { routedTargets } from '../../src/targets/credentials.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { type Administration, administration, randomFrom } from './increments.ts';

const BATCHES = Number(process.env['INCREMENT_BATCHES'] ?? 20);
const SEED = Number(process.env['INCREMENT_SEED'] ?? Date.now() % 1_000_000);
/** The vault of the test gateways. */
const vault = createVault(Buffer.alloc(32, 7));
const module = await loadPolicyModule();

/** What the feed has changes of. */
const TYPES = ['credential', 'draft', 'key', 'policy', 'session', 'target', 'token', 'user'];

async function tried({ knex }: Database): Promise<string[]> {
  const types: { object_type: string }[] = await knex('changes').distinct('object_type').select('object_type');
  return types.map(({ object_type }) => object_type).sort();
}

interface Replica extends Current {
  /** How often it has loaded everything. */
  readonly whole: number;
}

function replica(database: Database): Replica {
  let whole = 0;
  const current = createCurrent({
    database,
    changes: { position: () => readPosition(database.knex), known: () => null } as never,
    policies: (db) => policyStore(db).all(),
    targets: (db, ids) => {
      if (ids === null) whole++;
      return routedTargets(db, vault, ids);
    },
    sessions: (db) => sessionRules(db, Date.now()),
    rights: async () => [],
    clock: () => Date.now(),
    providers: async () => new Map(),
    identities: readIdentities,
    build: (policies, revision) => createEngine({ module, policies, revision }),
    gateTimeoutMs: 60_000,
    boundMs: 0,
    now: () => performance.now(),
  });
  return {
    ...current,
    get whole() {
      return whole;
    },
  };
}

/** Returns everything that a caller can learn about a state. */
async function pictureOf(current: Current, { accounts, tokens, targetIds }: Administration): Promise<object> {
  const callers: Record<string, unknown> = {};
  for (const claims of tokens) {
    const admitted = await current.admit(claims);
    callers[claims.jti] = 'refused' in admitted ? admitted.refused : admitted.principal;
  }
  const { sequence, engine, targets, sessions }: Snapshot = await current.fresh();
  const principals = accounts.flatMap(({ id }) =>
    [['red', 'blue'], ['green'], []].map((groups) => ({ sub: id, role: groups.length > 0 ? 'operator' : 'user', groups })),
  );
  return {
    sequence,
    engine: { revision: engine.revision, dataHash: engine.dataHash },
    targets: [...targets].map(([name, { accessOf, ...target }]) => ({ name, target, access: principals.map(accessOf) })),
    ended: [...sessions.ended].sort(),
    epochs: accounts.flatMap(({ id }) => [...targetIds, 'another'].map((target) => sessions.epochOf(id, target))),
    callers,
  };
}

async function start(t: ExecutionContext, url: string) {
  let database = null as Database | null;
  const gateway = await startGateway(
    t,
    url,
    { CHANGE_RATE_LIMIT: '1000000', API_TOKEN_LIMIT: '1000000' },
    {
      open: async (...given) => {
        database = await openDatabase(...given);
        return database;
      },
    },
  );
  if (database === null) throw new Error('The gateway has opened no database');
  const admin = await person(gateway, 'admin@example.com');
  const made = await administration(gateway.url, database, { ...admin, login: admin.token }, randomFrom(SEED));
  return { database, made };
}

eachEngine(test.serial, 'after any changes a replica that followed the feed equals one that loaded everything', async (t, at) => {
  t.timeout(1_200_000);
  t.log(`INCREMENT_SEED=${SEED}`);
  const random = randomFrom(SEED + 1);
  const { database, made } = await start(t, at.url);
  const following = replica(database);
  async function compare(): Promise<void> {
    const [followed, loaded] = [await pictureOf(following, made), await pictureOf(replica(database), made)];
    if (!isDeepStrictEqual(followed, loaded)) t.deepEqual(followed, loaded);
  }
  await compare();

  for (let kind = 0; kind < made.kinds; kind++) {
    await made.change(kind);
    await compare();
  }
  // A change may be refused: a disabled user revokes no token.
  for (let more = 0; more < 300 && (await tried(database)).length < TYPES.length; more++) await made.change();
  t.deepEqual(await tried(database), TYPES);
  await compare();
  t.is(following.whole, 1, 'no change makes a replica load everything');

  let broken = 0;
  for (let batch = 0; batch < BATCHES && t.passed; batch++) {
    // Some changes arrive one by one, some together, some while callers are being looked up.
    for (let more = Math.ceil(random() * 4); more > 0; more--) {
      const changing = Promise.all(Array.from({ length: random() < 0.3 ? 2 : 1 }, () => made.change()));
      if (random() < 0.4) await Promise.all(made.tokens.slice(-6).map((claims) => following.admit(claims)));
      await changing;
    }
    if (random() < 0.1) {
      await following.fresh();
      await breakHistory(database, random, made);
      broken++;
    }
    await compare();
  }
  t.true(following.whole <= 1 + broken, `everything was loaded ${following.whole} times, and ${1 + broken} were needed`);
  t.log(`${(await readPosition(database.knex)).sequence} changes, ${made.tokens.length} tokens, ${broken} breaks`);
});

/** Damages the feed as retention, a failover or a restore would, and makes a change that the feed does not contain. */
async function breakHistory(database: Database, random: () => number, { accounts, change }: Administration): Promise<void> {
  const { knex } = database;
  const { id } = accounts[Math.floor(random() * accounts.length)] ?? { id: '' };
  await knex('users')
    .where({ id })
    .update({ role: `restored ${Math.floor(random() * 1_000)}` });
  const { sequence } = await readPosition(knex);
  // Never the nonce of the break before: without a change in between, nothing could tell the two histories apart.
  const nonce = `another history ${Math.floor(random() * 1_000_000)}`;
  switch (Math.floor(random() * 3)) {
    case 0: {
      // A backup, and perhaps as many changes after it as there were.
      const at = await knex('changes')
        .where('sequence', sequence - 3)
        .first<Position>('sequence', 'nonce', 'revision');
      await knex('changes').where('sequence', '>', at.sequence).delete();
      await knex('counter').update(at);
      for (let more = random() < 0.5 ? 6 : 0; more > 0; more--) await change();
      return;
    }
    case 1:
      // Another history of the same length.
      await knex('changes').where({ sequence }).update({ nonce });
      await knex('counter').update({ nonce });
      return;
    default:
      // Another history that is longer by now, and holds none of the replica's numbers.
      await knex('changes').update({ nonce });
      await knex('counter').update({ nonce });
  }
}
