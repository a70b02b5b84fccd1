/** Records of outcomes: one record has those of several decisions. */
import test from 'ava';
import fc from 'fast-check';
import { auditStore } from '../../src/audit/audit-store.ts';
import { OUTCOMES_AT_ONCE, OUTCOMES_SPAN_MS, outcomeBytes, outcomesIn } from '../../src/audit/chain/binary-form.ts';
import { firstIdOf, timeOf } from '../../src/audit/chain/chain.ts';
import { outcomesByRecord } from '../../src/audit/records/log-rows.ts';
import type { OutcomeRecord } from '../../src/audit/records/records.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { decision, quietWriter, verified } from './records.ts';
import { idAt, NOW } from './upkeep/keeper.ts';

const outcome = fc.record({
  decision_id: fc.nat({ max: 5_000 }).map((ms) => idAt(NOW + ms)),
  outcome: fc.constantFrom(...(['ok', 'error', 'upstream_error', 'denied', 'cancelled'] as const)),
  duration_ms: fc.integer(),
});

test('outcomes are stored in records in the order of their decisions, and are read back unchanged', (t) => {
  fc.assert(
    fc.property(fc.array(outcome, { maxLength: 200 }), (outcomes) => {
      const groups = outcomesByRecord(outcomes);
      for (const group of groups) {
        const times = group.map(({ decision_id }) => timeOf(decision_id));
        t.true(group.length <= OUTCOMES_AT_ONCE && Math.max(...times) - Math.min(...times) < OUTCOMES_SPAN_MS);
      }
      const read = groups.flatMap((group) => outcomesIn(outcomeBytes(group) ?? Buffer.alloc(0)));
      t.deepEqual(read, groups.flat());
      t.deepEqual(
        read.map(({ decision_id }) => decision_id),
        outcomes.map(({ decision_id }) => decision_id).sort(),
      );
    }),
    { numRuns: 50 },
  );
});

test('an outcome that cannot be stored is alone in its record', (t) => {
  const ids = [1, 2, 3].map((ms) => firstIdOf(NOW + ms));
  const outcomes = ids.map((decision_id, i) => ({ decision_id, outcome: i === 1 ? null : 'ok', duration_ms: 1 }));
  t.is(outcomesByRecord(outcomes as OutcomeRecord[]).length, 3);
});

eachEngine(
  test.serial,
  'a page has the outcome of each decision, in whatever order and however late they came',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const records = Array.from({ length: 300 }, (_, i) => {
      // A hundred within each of three times: a few milliseconds, three seconds, and three hours.
      const after = [i % 100, 10_000 + i * 30, 60_000 + i * 100_000][Math.floor(i / 100)] as number;
      return decision({ id: idAt(NOW + after), created_at: NOW + after });
    });
    await Promise.all(records.map((record) => writer.decision(record)));
    const waiting = records.map(({ id }, i) => ({ decision_id: id, outcome: 'ok' as const, duration_ms: i }));
    const last = waiting.pop();
    while (waiting.length > 0) {
      for (const record of waiting.splice(0, 40)) writer.outcome(record);
      waiting.sort(() => Math.random() - 0.5);
      await writer.flush();
    }
    await writer.close();

    const store = auditStore(database.knex);
    for (const limit of [1_000, 7]) {
      for (let cursor: string | null = null, more = true; more; more = cursor !== null) {
        const page = await store.page({}, limit, cursor);
        for (const { id, duration_ms, outcome } of page.entries) {
          const i = records.findIndex((record) => record.id === id);
          t.deepEqual([outcome, duration_ms], id === last?.decision_id ? [null, null] : ['ok', i], String(i));
        }
        cursor = page.next;
      }
    }
    t.like(await verified(database), { intact: true, records: { decision: 300, outcome: 299 } });
  },
);

eachEngine(
  test.serial,
  'if a decision has two outcomes, a page has the first one, also if one record has both',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const [one, two] = [idAt(NOW), idAt(NOW + 1)];
    for (const id of [one, two]) await writer.decision(decision({ id }));
    // A client can leave a call, and get its answer when it comes back.
    for (const decision_id of [one, two]) writer.outcome({ decision_id, outcome: 'cancelled', duration_ms: 1 });
    writer.outcome({ decision_id: one, outcome: 'ok', duration_ms: 2 });
    await writer.flush();
    writer.outcome({ decision_id: two, outcome: 'ok', duration_ms: 2 });
    await writer.close();
    const { entries } = await auditStore(database.knex).page({}, 10, null);
    t.deepEqual(
      entries.map(({ outcome }) => outcome),
      ['cancelled', 'cancelled'],
    );
  },
);

eachEngine(test.serial, 'a page of the few decisions of one user leaves the outcomes of all others unread', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const own = Array.from({ length: 20 }, (_, i) => NOW + i * 900).flatMap((time) => [idAt(time), idAt(time + 10)]);
  await Promise.all(own.map((id) => writer.decision(decision({ id, user_id: 'rare' }))));
  const outcomes = own.map((decision_id) => ({ decision_id, outcome: 'ok' as const, duration_ms: 1 }));
  for (let ms = 0; ms < 18_000; ms += 3) outcomes.push({ decision_id: idAt(NOW + ms), outcome: 'ok', duration_ms: 2 });
  // Outcomes of a slow target come in a different order. Then records overlap, and each has few outcomes of a second.
  for (const lot of [0, 1, 2, 3]) {
    for (const outcome of outcomes.filter((_, i) => (i * 7) % 4 === lot)) writer.outcome(outcome);
    await writer.flush();
  }
  await writer.close();

  let read = 0;
  database.knex.on('query-response', (rows: readonly { lines?: string | null }[], { sql }: { sql: string }) => {
    if (sql.includes('log_outcomes')) read += rows.flatMap(({ lines }) => lines?.split('\n') ?? ['']).length;
  });
  const { entries } = await auditStore(database.knex).page({ user_id: 'rare' }, 100, null);
  t.deepEqual(
    entries.map(({ id, duration_ms }) => [id, duration_ms]),
    own
      .toSorted()
      .reverse()
      .map((id) => [id, 1]),
  );
  t.true(read > 0 && read <= own.length, `read ${read} records for ${own.length} outcomes`);
});
