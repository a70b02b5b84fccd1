/** Replays and shadows count what the oracle counts: each recorded decision once, whichever replica follows the log. */
import test, { type ExecutionContext } from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import type { RecordedDecision } from '../../src/audit/search/recorded-store.ts';
import type { Administer } from '../../src/auth/caller.ts';
import type { Principal } from '../../src/auth/principal.ts';
import { type Change, createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { draftStore, shadowStore } from '../../src/policies/drafts/draft-store.ts';
import { createDrafts } from '../../src/policies/drafts/drafts.ts';
import { createShadows, newShadow, type ShadowParts } from '../../src/policies/drafts/shadow.ts';
import type { Moments } from '../../src/policies/heavy/moments.ts';
import { replay } from '../../src/policies/replay/replay.ts';
import { createTally, NOTHING_TALLIED, unreplayable } from '../../src/policies/replay/tally.ts';
import { draftHash } from '../../src/policies/sets/draft.ts';
import { ANY } from '../../src/policies/sets/planning.ts';
import type { PolicySets } from '../../src/policies/sets/sets.ts';
import { type ApplyTested, readTests } from '../../src/policies/sets/test-set.ts';
import { decision, quietWriter } from '../audit/records.ts';
import { matcher, world } from '../engine/arbitraries.ts';
import { decide, decideTarget } from '../engine/oracle.ts';
import { ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { policy } from './policies.ts';

const RUNS = Number(process.env['DIFFERENTIAL_RUNS'] ?? 200) / 10;
const forever = { by: 'ann', signal: new AbortController().signal };
const module = await loadPolicyModule();

/** A set that differs in some policies: gone, switched off, of the other effect. */
const changed = (policies: readonly Policy[]): fc.Arbitrary<Policy[]> =>
  fc
    .array(fc.constantFrom('same', 'same', 'gone', 'off', 'contrary'), { minLength: policies.length, maxLength: policies.length })
    .map((what) =>
      policies.flatMap((each, i): Policy[] => {
        switch (what[i]) {
          case 'gone':
            return [];
          case 'off':
            return [{ ...each, enabled: false }];
          case 'contrary':
            return [{ ...each, effect: each.effect === 'allow' ? 'deny' : 'allow' }];
          default:
            return [each];
        }
      }),
    );

test.serial('a replay of random decisions on a random change counts what the oracle counts', async (t) => {
  t.timeout(300_000);
  const at = await sqliteOf(t);
  let flipped = 0;
  await fc.assert(
    fc.asyncProperty(
      world({ maxPolicies: 10, requests: 30 }).chain((generated) =>
        fc.record({ generated: fc.constant(generated), after: changed(generated.policies) }),
      ),
      async ({ generated, after }) => {
        const { policies, requests, patterns } = generated;
        const matches = matcher(patterns);
        const writer = quietWriter(at);
        const before = Date.now() - 1;
        const expected = { grants: 0, refuses: 0, hides: 0 };
        const each = requests.map(async ({ principal, target, object }, i) => {
          const facts = { user_id: principal.sub, user_role: principal.role, user_groups: principal.groups, target_id: target };
          const isList = i % 5 === 4;
          const ask = (set: readonly Policy[]) =>
            isList ? decideTarget(set, principal, target) : decide(set, principal, target, object, matches);
          const [was, would] = [ask(policies), ask(after)];
          if (would.effect !== was.effect) expected[would.effect === 'allow' ? 'grants' : 'refuses']++;
          const named = isList ? { resource_type: null, resource_name: null } : object;
          const reason = was.policyId === null ? 'default' : 'matched';
          const id = uuidv7();
          await writer.decision(decision({ ...facts, ...named, id, effect: was.effect, reason, policy_id: was.policyId }));
          if (!isList) return;
          const isShown = (set: readonly Policy[]) => decide(set, principal, target, object, matches).effect === 'allow';
          const names = isShown(policies) ? [object.resource_name] : [];
          if (names.length > 0 && !isShown(after)) expected.hides++;
          await writer.shown({ decision_id: id, resource_type: object.resource_type, names, hidden: 1 });
        });
        await Promise.all(each);
        await writer.close();
        const candidate = await createEngine({ module, policies: after, revision: 0 });
        const now = await createEngine({ module, policies, revision: 0 });
        const parts = { candidate, now, refOf: () => null, changed: new Map<string, string>() };
        const { counts, flips } = await replay(at.knex, { from: before, to: Date.now() + 1 }, parts, () => {}, forever);
        t.deepEqual({ grants: counts.grants, refuses: counts.refuses, hides: counts.lists.hides }, expected);
        t.like(counts, { already: 0, unlisted: 0, decisions: requests.length, replayed: requests.length });
        const listed = flips.reduce((sum, { count }) => sum + count, 0);
        t.is(listed, counts.grants + counts.refuses + counts.lists.hides);
        flipped += counts.grants + counts.refuses;
        await at.knex('log_decisions').delete();
        await at.knex('log_lists').delete();
      },
    ),
    { numRuns: RUNS },
  );
  t.true(flipped > RUNS);
});

const ECHO = policy('11111111-1111-7111-8111-111111111111', {
  resource_pattern: '^echo$',
  subjects: [{ id: 's', subject_type: 'everyone', subject_value: null }],
});
const DRAFT = 'tighter';

/** Starts replicas that shadow one draft, which denies everything that is allowed now. */
async function shadowed(t: ExecutionContext, database: Database) {
  let clock = Date.now();
  const store = shadowStore(database.knex);
  await store.begin(await database.knex.transaction((trx) => newShadow(trx, DRAFT, clock)), 'a');
  const moments: Pick<Moments, 'of'> = {
    of: async () => ({
      position: { sequence: 0, nonce: '', revision: 0 },
      ...{ policies: [], stored: [ECHO], targets: [] },
      changes: [{ action: 'delete', file: 'echo.yaml', before: ECHO, after: null }],
    }),
  };
  const counted = new Map<string, number>();
  const replica = (replicaId: string, over: Partial<ShadowParts> = {}) => {
    const shadows = createShadows({
      ...{ database, module, moments, replicaId, log: { warn: (...args: unknown[]) => t.log(...args) }, now: () => clock },
      diverged: (_, effect, count) => void counted.set(effect, (counted.get(effect) ?? 0) + count),
      ...over,
    });
    t.teardown(() => shadows.stop());
    return shadows;
  };
  return {
    store,
    counted,
    moments,
    replica,
    pass: (ms: number) => {
      clock += ms;
    },
  };
}

const allowed = (): DecisionRecord =>
  decision({ id: uuidv7(), target_id: 'target', resource_name: 'echo', effect: 'allow', reason: 'matched', policy_id: ECHO.id });

eachEngine(test.serial, 'each decision is put to a shadowed draft once, whichever replica follows the log', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writers = [quietWriter(database), quietWriter(database)];
  await writers[0]?.decision(allowed());
  const { store, counted, replica, pass } = await shadowed(t, database);
  const replicas = [replica('a'), replica('b')];
  let recorded = 0;
  const record = async (count: number): Promise<void> => {
    await Promise.all(
      Array.from({ length: count }, async () => {
        const id = allowed();
        const writer = writers[recorded++ % 2];
        await writer?.decision(id);
        if (recorded % 3 === 0) writer?.outcome({ decision_id: id.id, outcome: 'ok', duration_ms: 1 });
      }),
    );
  };
  for (let round = 0; round < 5; round++) await Promise.all([record(100), ...replicas.map((one) => one.follow())]);
  // Either may have been the first.
  const row = await database.knex('policy_shadows').where({ draft: DRAFT }).first<{ holder: string }>('holder');
  const [holding, other] = row?.holder === 'b' ? replicas.toReversed() : replicas;
  if (holding === undefined || other === undefined) throw new Error('no replicas');
  await holding.follow();
  t.like((await store.find(DRAFT))?.progress.counts, { decisions: recorded, refuses: recorded, grants: 0 });

  // When a replica stops, another one continues at its position after a while. A new writer begins after that.
  await holding.stop();
  const late = quietWriter(database);
  await record(30);
  await late.decision(allowed());
  recorded++;
  await other.follow();
  t.is((await store.find(DRAFT))?.progress.counts.decisions, recorded - 31);
  pass(31_000);
  await other.follow();
  const after = await store.find(DRAFT);
  t.like(after?.progress.counts, { decisions: recorded, refuses: recorded, unlisted: 0 });
  t.deepEqual(
    after?.flips.map(({ count, would_be }) => [count, would_be.reason]),
    [[recorded, 'default']],
  );
  t.deepEqual(after?.progress.exercised, ['echo.yaml']);
  t.deepEqual([...counted], [['deny', recorded]]);
  for (const writer of [...writers, late]) await writer.close();
});

test.serial('a replica that counts for an old shadow does not change the new shadow', async (t) => {
  const database = await sqliteOf(t);
  const writer = quietWriter(database);
  const { store, counted, moments, replica } = await shadowed(t, database);
  await writer.decision(allowed());
  const slow = replica('a', {
    moments: {
      ...moments,
      async of(source, by) {
        await store.begin(await database.knex.transaction((trx) => newShadow(trx, DRAFT, Date.now())), 'a');
        return moments.of(source, by);
      },
    },
  });
  await slow.follow();
  t.is((await store.find(DRAFT))?.progress.counts.decisions, 0);
  t.is(counted.size, 0);
  await writer.decision(allowed());
  await replica('a').follow();
  t.is((await store.find(DRAFT))?.progress.counts.decisions, 1);
  await writer.close();
});

test.serial('one user cannot fill the list of changed decisions, and long lists of names do not block other work', async (t) => {
  const candidate = await createEngine({ module, policies: [ECHO], revision: 0 });
  const parts = { candidate, now: null, refOf: () => null, changed: new Map<string, string>() };
  const tally = createTally({ ...parts, maxFlips: { all: 20, perUser: 5 } }, NOTHING_TALLIED);
  const record = (user_id: string, resource_name: string): RecordedDecision => {
    const { user_groups, ...rest } = { ...allowed(), user_id, resource_name };
    return { ...rest, user_groups: JSON.stringify(user_groups) };
  };
  const decisions = Array.from({ length: 1_000 }, (_, n) => record('flooder', `tool-${n}`));
  const others = Array.from({ length: 3 }, () => record('somebody', 'their-tool'));
  const list = { decision: record('reader', 'echo'), resource_type: 'tool', shown: 10_000, hidden: 0, set_hash: 'h' } as const;
  const names = Array.from({ length: 10_000 }, (_, n) => `name-${n}`);
  let pauses = 0;
  for (const _ of tally.take({ decisions: [...decisions, ...others], lists: [list], damaged: 0 }, new Map([['h', names]])))
    pauses++;
  const { counts, flips } = tally.state();
  t.deepEqual(
    flips.filter(({ user_id }) => user_id === 'somebody').map(({ count }) => count),
    [3],
  );
  t.is(flips.filter(({ user_id }) => user_id === 'flooder').length, 5);
  t.is(counts.unlisted, 995 + 9_995);
  t.is(counts.refuses + counts.lists.hides, 11_003);
  t.true(pauses > 1_003 + 100, String(pauses));
});

test.serial('a replay ends when its client disconnects', async (t) => {
  const database = await sqliteOf(t);
  const writer = quietWriter(database);
  await Promise.all(Array.from({ length: 1_500 }, () => writer.decision(allowed())));
  await writer.close();
  const engine = await createEngine({ module, policies: [ECHO], revision: 0 });
  const parts = { candidate: engine, now: null, refOf: () => null, changed: new Map<string, string>() };
  const leaving = new AbortController();
  const left = new Error('left');
  const range = { from: 0, to: Date.now() + 1 };
  await t.throwsAsync(
    replay(database.knex, range, parts, () => leaving.abort(left), { by: 'ann', signal: leaving.signal }),
    { is: left },
  );
  const progress: number[] = [];
  const { counts } = await replay(database.knex, range, parts, ({ done }) => progress.push(done), forever);
  t.deepEqual([counts.decisions, progress.length, progress.at(-1)], [1_500, 6, 1_500]);
});

eachEngine(test.serial, 'a draft that is deleted or replaced during its activation is not applied', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const administer: Administer = (_, __, work) =>
    changes.change({ id: 'a', email: 'a@b', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
  const content = { owner: 'default', prune: false, adopt: false, files: {}, tests: {} };
  const draft = {
    ...content,
    name: DRAFT,
    hash: draftHash(content),
    author: { id: 'a', email: 'a@b' },
    created_at: 1,
    updated_at: 1,
  };
  let meanwhile = async (): Promise<void> => {};
  let applied = 0;
  const applyTested: ApplyTested = async (caller, _, __, alongside) => {
    await meanwhile();
    const { position } = await administer(caller, 'admin', async (trx) => ({
      result: null,
      changes: (await alongside?.(trx, ALL_RIGHTS)) ?? [],
    }));
    applied++;
    const plan = { changes: [], unchanged: 0, left: [], unmanaged: 0, candidate: [], ownerRevision: 0, targetsHash: '' };
    return { result: { plan, targets: [] }, position };
  };
  const sets = {} as PolicySets;
  const drafts = createDrafts({
    administer,
    sets,
    applyTested,
    checkTests: async (texts) => void (await readTests(texts)),
    database,
    now: Date.now,
  });
  const caller = { principal: {} as Principal, requestId: 'r' };
  const activate = () => drafts.activate(caller, DRAFT, { ifMatch: undefined, expected: ANY });

  await draftStore(database.knex).put(draft);
  meanwhile = () => draftStore(database.knex).put({ ...draft, prune: true, hash: draftHash({ ...content, prune: true }) });
  await t.throwsAsync(activate, { name: 'AppError', code: 'precondition_failed' });
  meanwhile = () => draftStore(database.knex).delete(DRAFT);
  await t.throwsAsync(activate, { name: 'AppError', code: 'not_found' });
  t.is(applied, 0);
  await draftStore(database.knex).put(draft);
  meanwhile = async () => {};
  await activate();
  t.is(applied, 1);
  t.is(await draftStore(database.knex).find(DRAFT), null);
});

test.serial('changes that are already live are reported as such, and a failing draft does not delay others', async (t) => {
  const database = await sqliteOf(t);
  const writer = quietWriter(database);
  const { store, moments, replica } = await shadowed(t, database);
  // Before `tighter`, by name.
  await store.begin(await database.knex.transaction((trx) => newShadow(trx, 'broken', Date.now())), 'a');
  await writer.decision(allowed());
  const warned: unknown[] = [];
  let faults = 0;
  await replica('a', {
    log: { warn: (record: object) => void warned.push((record as { draft?: string }).draft) },
    moments: {
      ...moments,
      // The policy that allowed it is gone from the live set, too.
      of: async (source, by) => {
        if (source.draft === 'broken') {
          faults++;
          throw new Error('a fault');
        }
        return { ...(await moments.of(source, by)), stored: [] };
      },
    },
  }).follow();
  t.like((await store.find(DRAFT))?.progress.counts, { decisions: 1, refuses: 1, already: 1 });
  t.is((await store.find('broken'))?.progress.counts.decisions, 0);
  // Once each time that it is tried: what follows by itself may have tried it again.
  t.true(faults > 0);
  t.deepEqual(
    warned,
    Array.from({ length: faults }, () => 'broken'),
  );
  await writer.close();
});

test.serial('a draft is planned again only after a change that may concern it', async (t) => {
  const database = await sqliteOf(t);
  const changes = await createChanges(database, Date.now);
  const { moments, replica } = await shadowed(t, database);
  let planned = 0;
  const shadows = replica('a', {
    moments: {
      ...moments,
      of(source, by) {
        planned++;
        return moments.of(source, by);
      },
    },
  });
  const actor = { id: 'a', email: 'a@example.com', request_id: 'r' };
  const plannedAfter = async (...actions: Change['action'][]): Promise<number> => {
    const made = actions.map((action) => ({ action, object_id: 'x', before: null, after: null }));
    await changes.change(actor, async () => ({ result: null, changes: made }));
    await shadows.follow();
    return planned;
  };
  t.is(await plannedAfter('policy.create'), 1);
  t.is(await plannedAfter('token.create', 'user.update', 'grant.create', 'session.end'), 1);
  let expected = 1;
  for (const type of ['policy', 'target', 'owner', 'draft', 'invariant'] as const) {
    t.is(await plannedAfter('token.create', `${type}.update`, 'token.revoke'), ++expected, type);
  }
  t.is(await plannedAfter('sometype.create' as Change['action']), ++expected, 'a type of a newer version');
});

async function sqliteOf(t: ExecutionContext): Promise<Database> {
  const at = await createSqlite();
  t.teardown(at.drop);
  return openTestDatabase(t, at);
}

test('what the gateway never writes counts as damage', (t) => {
  const record = { ...decision(), target_id: 't', user_groups: '["staff"]' } as unknown as RecordedDecision;
  t.is(unreplayable(record), null);
  t.is(unreplayable({ ...record, reason: 'invented' } as unknown as RecordedDecision), 'damaged');
  for (const user_groups of ['', '[', '{}', '"staff"', '[1]', 'null']) t.is(unreplayable({ ...record, user_groups }), 'damaged');
});

eachEngine(test.serial, 'a decision whose facts are missing is counted, and hides no decision after it', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const others = 1_100;
  const who = { effect: 'allow', reason: 'matched', target_id: 't', policy_id: 'p' } as const;
  const records = Array.from({ length: others + 1 }, (_, n) =>
    decision({ ...who, id: uuidv7(), created_at: Date.now(), ...(n === 3 ? { user_id: 'damaged' } : {}) }),
  );
  await Promise.all(records.map((record) => writer.decision(record)));
  await writer.close();
  await database.knex('log_principals').where('user_id', 'damaged').delete();
  const parts = {
    candidate: await createEngine({ module, policies: [], revision: 0 }),
    now: null,
    refOf: () => null,
    changed: new Map(),
  };
  const progress: number[] = [];
  const { counts } = await replay(
    database.knex,
    { from: 0, to: Date.now() + 60_000 },
    parts,
    ({ done }) => progress.push(done),
    forever,
  );
  t.like(counts, { decisions: others + 1, replayed: others, refuses: others });
  t.is(counts.not_replayed.damaged, 1);
  t.deepEqual(progress, [250, 500, 750, 1_000]);
});
