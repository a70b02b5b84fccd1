import test from 'ava';
import fc from 'fast-check';
import { v7 as uuidv7 } from 'uuid';
import { argumentsHash } from '../../../src/audit/chain/binary-form.ts';
import { createChainKey, firstIdOf, personHash } from '../../../src/audit/chain/chain.ts';
import { COVERED, digestOf, firstKeyOf, keyOf } from '../../../src/audit/chain/facts.ts';
import { recordMac } from '../../../src/audit/chain/record-mac.ts';
import { FactBook } from '../../../src/audit/records/fact-book.ts';
import { createRowMaker, type LogDecision, nextStamp } from '../../../src/audit/records/log-rows.ts';
import type { DecisionRecord } from '../../../src/audit/records/records.ts';
import { decision, KEY } from '../records.ts';

const DAY = 24 * 60 * 60 * 1000;
const HEAD = { chain_id: uuidv7(), seq: 6, mac: 'A'.repeat(22) };

const text = fc.string({ maxLength: 12, unit: 'binary' });
const orNull = <T>(of: fc.Arbitrary<T>) => fc.option(of, { nil: null });
const record: fc.Arbitrary<DecisionRecord> = fc
  .record({
    created_at: fc.nat(),
    issuer: text,
    user_id: text,
    user_email: text,
    user_role: text,
    user_groups: fc.array(text, { maxLength: 3 }),
    target_id: orNull(text),
    target_name: text,
    method: text,
    resource_type: orNull(fc.constantFrom('tool' as const, 'resource' as const, 'prompt' as const)),
    resource_name: orNull(text),
    arguments: orNull(text),
    effect: fc.constantFrom('allow' as const, 'deny' as const),
    reason: fc.constantFrom('matched' as const, 'default' as const, 'error' as const),
    policy_id: orNull(text),
    policy_name: orNull(text),
    policy_priority: orNull(fc.integer()),
    revision: fc.nat(),
    data_hash: text,
    engine_hash: text,
  })
  .map((members) => decision(members));

/** The row as readers get it, with the members of the facts in it. */
function flat({ id, created_at, principal, object, verdict, ownName, args }: LogDecision) {
  return {
    ...{ id, created_at, ...principal.row, ...object.row, ...verdict.row },
    resource_name: ownName ?? object.row.resource_name,
    named: ownName === null ? 0 : 1,
    args_hash: args?.hash ?? null,
  };
}

const macOf = (row: object, seq = 7, chain = HEAD.chain_id, previous = HEAD.mac, key = KEY) =>
  recordMac(key, 2, chain, seq, previous, { kind: 'decision', row });

test('the MAC that a reader computes is the one that the writer stored, and every changed member changes it', (t) => {
  fc.assert(
    fc.property(record, fc.boolean(), (written, again) => {
      const rows = createRowMaker(KEY);
      if (again) rows.decision(written);
      const { row } = rows.decision(written);
      const { mac } = nextStamp(KEY, HEAD, row);
      const read: Record<string, unknown> = flat(row);
      t.is(macOf(read), mac);
      t.is(Buffer.from(mac, 'base64url').length, 16);
      // These are covered by a hash, which `contents.ts` checks.
      const beside = ['salt', 'user_email', 'user_groups', 'named'];
      t.not(macOf({ ...read, named: 1 - Number(read['named']) }), mac);
      for (const member of Object.keys(read).filter((name) => !beside.includes(name))) {
        for (const value of [null, 'other', 3, uuidv7(), 'ab'.repeat(32)]) {
          if (value === read[member]) continue;
          t.not(macOf({ ...read, [member]: value }), mac, `${member} = ${value}`);
        }
      }
      if (read['args_hash'] !== null) t.not(macOf({ ...read, args_hash: `${read['args_hash']} and more` }), mac);
      t.not(macOf(read, 8), mac);
      t.not(macOf(read, 7, uuidv7()), mac);
      t.not(macOf(read, 7, HEAD.chain_id, 'B'.repeat(22)), mac);
      t.not(macOf(read, 7, HEAD.chain_id, HEAD.mac, createChainKey(Buffer.alloc(32, 8))), mac);
    }),
    { numRuns: 200 },
  );
});

test('a record that refers to a different fact, or to two facts exchanged, has a different MAC', (t) => {
  fc.assert(
    fc.property(record, record, (one, two) => {
      const rows = createRowMaker(KEY);
      const [a, b] = [rows.decision(one).row, rows.decision(two).row];
      const { mac } = nextStamp(KEY, HEAD, a);
      for (const part of ['principal', 'object', 'verdict'] as const) {
        if (a[part].key === b[part].key) continue;
        t.not(nextStamp(KEY, HEAD, { ...a, [part]: b[part] } as LogDecision).mac, mac, part);
      }
      t.not(nextStamp(KEY, HEAD, { ...a, id: b.id }).mac, mac);
    }),
  );
});

test('lists and outcomes have the MAC that a reader computes, and no record can be read as one of another kind', (t) => {
  const rows = createRowMaker(KEY);
  const decision_id = uuidv7();
  const { row: list } = rows.shown({ decision_id, resource_type: 'prompt', names: ['b', 'a'], hidden: 2 });
  const read = { decision_id, resource_type: 'prompt', shown: 2, hidden: 2, set_hash: list.names.row.set_hash };
  const { mac } = nextStamp(KEY, HEAD, list);
  const of = (kind: 'shown' | 'outcome', row: object) => recordMac(KEY, 2, HEAD.chain_id, 7, HEAD.mac, { kind, row });
  t.is(of('shown', read), mac);
  for (const change of [{ resource_type: 'tool' }, { shown: 1 }, { hidden: 1 }, { set_hash: 'x' }, { decision_id: uuidv7() }]) {
    t.not(of('shown', { ...read, ...change }), mac);
  }
  const ended = [
    { decision_id, outcome: 'denied' as const, duration_ms: 3 },
    { decision_id: uuidv7(), outcome: 'ok' as const, duration_ms: -4 },
  ];
  const { row: outcomes } = rows.outcomes(ended, 5);
  const last = nextStamp(KEY, HEAD, outcomes).mac;
  const ends = (first: object, ...others: unknown[]) =>
    of('outcome', { created_at: 5, outcomes: [{ ...ended[0], ...first }, ...others] });
  t.is(ends({}, ended[1]), last);
  t.not(of('outcome', { created_at: 6, outcomes: ended }), last);
  t.not(of('outcome', { created_at: 5, outcomes: ended.toReversed() }), last);
  t.not(ends({}), last);
  t.not(ends({}, ended[1], ended[1]), last);
  for (const change of [{ outcome: 'ok' }, { duration_ms: 4 }, { decision_id: uuidv7() }]) {
    t.not(ends(change, ended[1]), last);
  }
  for (const bad of [
    { outcome: 'x' },
    { duration_ms: 1.5 },
    { duration_ms: 2 ** 31 },
    { duration_ms: 'x' },
    { decision_id: 'x' },
  ]) {
    t.is(ends(bad, ended[1]), null, 'the gateway never writes it');
  }
  for (const bad of [[], [null], 'x', undefined, Array.from({ length: 33 }, () => ended[0])]) {
    t.is(of('outcome', { created_at: 5, outcomes: bad }), null, 'the gateway never writes it');
  }
});

test('a fact has one key on a day for all replicas, and a different one on the next day and under a different master key', (t) => {
  const written = decision();
  const facts = (book: FactBook, over: object = {}) => book.decision({ ...written, user_groups: '[]', ...over });
  const [one, two] = [facts(new FactBook(KEY)), facts(new FactBook(KEY))];
  t.is(one.verdict.key, two.verdict.key);
  t.is(one.object.key, two.object.key);
  t.not(one.principal.key, two.principal.key, 'a salt makes each process use its own');
  const tomorrow = facts(new FactBook(KEY), { id: firstIdOf(Date.now() + DAY) });
  t.true(tomorrow.verdict.key > one.verdict.key, 'keys begin with the day');
  t.not(facts(new FactBook(createChainKey(Buffer.alloc(32, 8)))).verdict.key, one.verdict.key);
  const day = Math.floor(Date.now() / DAY);
  t.true(firstKeyOf(day) <= one.verdict.key && one.verdict.key < firstKeyOf(day + 1));
  t.is(keyOf(KEY, day, digestOf('verdict', one.verdict.row)), one.verdict.key);
});

test('a million random names make no facts, and a name that comes again makes one', (t) => {
  const book = new FactBook(KEY);
  const keys = new Set<string>();
  for (let i = 0; i < 1_000_000; i++) {
    const { object, ownName } = book.decision({ ...NAMELESS, resource_name: `name ${i}` });
    keys.add(object.key);
    if (ownName !== `name ${i}`) t.fail(`name ${i} is not in its record`);
  }
  t.is(keys.size, 1);
  const [first, second, third] = [1, 2, 3].map(() => book.decision({ ...NAMELESS, resource_name: 'echo' }));
  t.deepEqual([first?.ownName, second?.ownName, third?.ownName], ['echo', null, null]);
  t.is(second?.object.row.resource_name, 'echo');
  t.is(second?.object, third?.object);
});

const NAMELESS = { ...decision(), user_groups: '[]' };

test('a forgotten principal comes back under a new key, so that an erased fact is not used again', (t) => {
  const book = new FactBook(KEY);
  const before = book.decision(NAMELESS).principal;
  before.isStored = true;
  t.is(book.decision(NAMELESS).principal, before);
  book.forget(new Set(['other']));
  t.is(book.decision(NAMELESS).principal, before);
  book.forget(new Set([NAMELESS.user_id]));
  const after = book.decision(NAMELESS).principal;
  t.not(after.key, before.key);
  t.false(after.isStored);
  t.is(personHash(after.row.salt ?? '', after.row.user_email, after.row.user_groups, null), after.row.person_hash);
});

test('every member of a decision is covered by a fact or by the record', (t) => {
  const covered: string[] = [...COVERED.principal, ...COVERED.object, ...COVERED.verdict];
  const beside = ['id', 'created_at', 'arguments', 'user_email', 'user_groups'];
  t.deepEqual(
    Object.keys(decision()).filter((member) => !covered.includes(member) && !beside.includes(member)),
    [],
  );
  t.not(argumentsHash('a', 'b'), argumentsHash('a', 'c'));
  t.not(argumentsHash('a', 'b'), argumentsHash('c', 'b'));
});

test('long lists that never repeat do not stay in memory', (t) => {
  const book = new FactBook(KEY);
  const list = (i: number) => book.names(uuidv7(), JSON.stringify([`${i} ${'x'.repeat(250_000)}`]));
  const first = list(0);
  first.isStored = true;
  t.is(list(0), first, 'a list that repeats is stored once');
  for (let i = 1; i < 100; i++) list(i);
  t.false(list(0).isStored);
});
