/** The policies as they were read last, and what has changed since. */
import test from 'ava';
import fc from 'fast-check';
import { type Change, createChanges, readPosition } from '../../src/db/changes.ts';
import type { Connection } from '../../src/db/database.ts';
import { keepReading, knownReading } from '../../src/engine/compile/pattern.ts';
import { policyStore, type StoredChange } from '../../src/policies/policy-store.ts';
import { createStoredSet } from '../../src/policies/stored-set.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { policy, policyBody } from './policies.ts';

const ACTOR = { id: 'admin', email: 'a@example.com', request_id: 'r' };

eachEngine(test.serial, 'the set is what is stored, whatever has changed since it was read last', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const changes = await createChanges(database, Date.now);
  const id = fc.integer({ min: 0, max: 9 }).map((n) => `p${n}`);
  const step = fc.oneof(
    { weight: 4, arbitrary: fc.record({ kind: fc.constant('put' as const), id, subjects: fc.integer({ min: 0, max: 5 }) }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('delete' as const), id }) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('user' as const) }) },
    { weight: 4, arbitrary: fc.record({ kind: fc.constant('read' as const) }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant('restore' as const), id }) },
  );
  let time = 0;
  const store = (trx: Connection, { before, after }: StoredChange) => policyStore(trx).change([{ before, after }]);
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 30 }), async (steps) => {
      const [often, once] = [createStoredSet(), createStoredSet()];
      await database.snapshot(once);
      for (const step of steps) {
        if (step.kind === 'read') {
          const { policies, position } = await database.snapshot(often);
          t.deepEqual(policies, await policyStore(knex).all());
          t.deepEqual(position, await readPosition(knex));
        } else if (step.kind === 'restore') {
          // A different history with the same numbers.
          const name = `restored ${++time}`;
          await knex('policies').where({ id: step.id }).update({ name });
          await knex('changes').update({ nonce: name });
          await knex('counter').update({ nonce: name });
        } else {
          await changes.change(ACTOR, async (trx) => {
            if (step.kind === 'user') return { result: null, changes: [userChange] };
            const before = await policyStore(trx).find(step.id);
            const subjects = step.kind === 'put' ? Array.from({ length: step.subjects }, (_, i) => subject(step.id, i)) : [];
            const after = step.kind === 'put' ? policy(step.id, { name: `changed ${++time}`, subjects }) : null;
            if (before === null && after === null) return { result: null, changes: [] };
            await store(trx, { before, after });
            const action = before === null ? 'policy.create' : after === null ? 'policy.delete' : 'policy.update';
            return { result: null, changes: [{ action, object_id: step.id, before: null, after: null }] };
          });
        }
      }
      t.deepEqual((await database.snapshot(once)).policies, await policyStore(knex).all());
    }),
    { numRuns: 15 },
  );
});

const userChange: Change = { action: 'user.update', object_id: 'u', before: null, after: null };
const subject = (id: string, i: number) => ({ id: `${id}-${i}`, subject_type: 'role' as const, subject_value: `r${i}` });

eachEngine(test.serial, 'after a change of one policy only that policy is read', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const changes = await createChanges(database, Date.now);
  const ids = Array.from({ length: 300 }, (_, i) => `p${1_000 + i}`);
  await policyStore(knex).change(ids.map((id) => ({ before: null, after: policy(id) })));
  await changes.change(ACTOR, async () => ({ result: null, changes: [userChange] }));
  const read = createStoredSet();
  const { policies: first } = await database.snapshot(read);
  await changes.change(ACTOR, async (trx) => {
    await policyStore(trx).change([{ before: first[7] ?? null, after: policy('p1007', { name: 'changed' }) }]);
    return { result: null, changes: [{ action: 'policy.update', object_id: 'p1007', before: null, after: null }] };
  });
  let rows = 0;
  const note = (found: unknown, { sql }: { sql: string }): void => {
    if (/policies/.test(sql)) rows += (found as unknown[]).length;
  };
  database.reader.on('query-response', note);
  knex.on('query-response', note);
  const { policies } = await database.snapshot(read);
  database.reader.off('query-response', note);
  knex.off('query-response', note);
  t.deepEqual(
    policies.map(({ name }) => name),
    ids.map((id) => (id === 'p1007' ? 'changed' : id)),
  );
  t.is(policies[8], first[8], 'the others are the same objects');
  t.true(rows >= 1 && rows <= 2, String(rows));
});

eachEngine(test.serial, 'the patterns that a gateway decides by stay read, whatever else is read', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const { token } = await person(gateway, 'admin@example.com');
  const create = (resource_pattern: string, enabled = true) =>
    gateway.rest(201, 'POST', '/api/policies', { token, body: policyBody({ resource_pattern, enabled }) });
  await create('^stored_[a-z]+$');
  await create('^disabled_[a-z]+$', false);
  for (let i = 0; i < 60_000; i++) keepReading(`beside ${i}`, 'x'.repeat(1_000));
  t.not(knownReading('^stored_[a-z]+$'), undefined);
  t.is(knownReading('^disabled_[a-z]+$'), undefined);
});
