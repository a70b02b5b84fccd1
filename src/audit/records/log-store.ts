/**
 * Writes the audit log, in version 2: short records, and the facts that they refer to. Ids, keys, hashes and MACs are binary in its
 * tables.
 */
import { batches, bytesOfRow, MAX_STATEMENT_BYTES, MAX_STATEMENT_ROWS } from '../../db/batches.ts';
import type { Connection } from '../../db/database.ts';
import { literalOf, statement, type Value } from '../../db/statement.ts';
import { TYPES } from '../chain/binary-form.ts';
import { type RecordKind, type Stamp, timeOf } from '../chain/chain.ts';
import { FACT_MEMBERS, type FactKind } from '../chain/facts.ts';
import {
  FACT_TABLES,
  hexOfBytes,
  LOG_TABLES,
  literalBytes,
  literalId,
  literalMac,
  TAIL_BYTES,
  tailOf,
} from '../chain/tables/log-tables.ts';
import type { Fact } from './fact-book.ts';
import type { Chained, LogDecision, LogList, LogOutcomes } from './log-rows.ts';

type WithFacts = readonly { readonly row: LogDecision | LogList }[];

/** Returns those facts of the rows that `isWanted` accepts, each once, in an order that is the same on all replicas. */
function factsOf(rows: WithFacts, isWanted: (fact: Fact) => boolean): Fact[] {
  const facts = new Map<string, Fact>();
  for (const { row } of rows) {
    for (const fact of row.kind === 'decision' ? [row.principal, row.object, row.verdict] : [row.names]) {
      if (isWanted(fact)) facts.set(`${fact.kind} ${fact.key}`, fact);
    }
  }
  return [...facts.keys()].sort().flatMap((name) => facts.get(name) ?? []);
}

/** The facts that a commit with these rows must store. */
const newFacts = (rows: WithFacts): Fact[] => factsOf(rows, ({ isStored }) => !isStored);

/** The rows of one commit. */
export interface LogRows {
  readonly decisions: readonly Chained<LogDecision>[];
  readonly shown: readonly Chained<LogList>[];
  readonly outcomes: readonly Chained<LogOutcomes>[];
}

export type LogStore = ReturnType<typeof logStore>;

export function logStore(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';
  const literal = literalOf(db);

  const stampOf = ({ chain_id, chain_seq, mac }: Stamp): string =>
    `${literalBytes(tailOf(chain_id), TAIL_BYTES)},${literal(chain_seq)},${literalMac(mac)}`;

  function* inserts<T extends { readonly bytes: number }>(
    table: string,
    columns: readonly string[],
    rows: readonly T[],
    values: (row: T) => string,
    end = '',
  ): Generator<string> {
    for (const batch of batches(rows, ({ bytes }) => bytes)) {
      yield `insert into ${table} (${columns.join()}) values (${batch.map(values).join('),(')})${end}`;
    }
  }

  function* factInserts(facts: readonly Fact[]): Generator<string> {
    if (facts.length === 0) return;
    for (const kind of Object.keys(FACT_TABLES) as FactKind[]) {
      const some = facts.filter((fact) => fact.kind === kind).map((fact) => ({ fact, bytes: bytesOfRow(fact.row) }));
      const columns = FACT_MEMBERS[kind];
      yield* inserts(
        FACT_TABLES[kind],
        ['id', ...columns],
        some,
        ({ fact }) => {
          const row = fact.row as unknown as Readonly<Record<string, Value>>;
          return [`x'${fact.key}'`, ...columns.map((column) => literal(row[column] as Value))].join();
        },
        // `insert ignore` hides every error in MySQL.
        isMysql ? ' on duplicate key update id = id' : ' on conflict (id) do nothing',
      );
    }
  }

  function* rowInserts({ decisions = [], shown = [], outcomes = [] }: Partial<LogRows>): Generator<string> {
    yield* factInserts(newFacts([...decisions, ...shown]));
    const withArguments = decisions.flatMap(({ row: { id, args }, bytes }) => (args === null ? [] : [{ id, args, bytes }]));
    yield* inserts(
      'log_arguments',
      ['id', 'hash', 'salt', 'arguments'],
      withArguments,
      ({ id, args }) => `${literalId(id)},x'${args.hash}',${literal(args.salt)},${literal(args.text)}`,
    );
    yield* inserts(
      'log_decisions',
      ['id', 'created_at', 'principal', 'object', 'verdict', 'name', 'chain', 'seq', 'mac'],
      decisions,
      ({ row: { id, created_at, principal, object, verdict, ownName }, stamp }) => {
        const time = created_at === timeOf(id) ? 'null' : literal(created_at);
        return `${literalId(id)},${time},x'${principal.key}',x'${object.key}',x'${verdict.key}',${literal(ownName)},${stampOf(stamp)}`;
      },
    );
    yield* inserts(
      'log_lists',
      ['id', 'type', 'shown', 'hidden', 'names', 'chain', 'seq', 'mac'],
      shown,
      ({ row: { decision_id, resource_type, shown: count, hidden, names }, stamp }) =>
        `${literalId(decision_id)},${TYPES.indexOf(resource_type)},${count},${hidden},x'${names.key}',${stampOf(stamp)}`,
    );
    yield* inserts(
      'log_outcomes',
      ['since', 'created_at', 'outcomes', 'chain', 'seq', 'mac'],
      outcomes,
      ({ row: { since, created_at, outcomes: some }, stamp }) =>
        `${literal(since)},${literal(created_at)},${some === null ? 'null' : `x'${some.toString('hex')}'`},${stampOf(stamp)}`,
    );
  }

  /** Runs the statements. SQLite stores all of them or none, also without a transaction: it gets them in one message if they are short. */
  async function run(statements: Iterable<string>): Promise<void> {
    const all = [...statements];
    const each = async (db: Connection): Promise<void> => {
      for (const sql of all) await statement(db, sql);
    };
    if (isMysql || 'isCompleted' in db || all.length < 2) return each(db);
    const isLarge = all.reduce((sum, { length }) => sum + length, 0) > 2 * MAX_STATEMENT_BYTES;
    if (isLarge) return db.transaction(each);
    await statement(db, `begin;${all.join(';')};commit`);
  }

  async function holds(kind: RecordKind, where: string, { mac }: Stamp): Promise<boolean> {
    const row = await db(LOG_TABLES[kind]).whereRaw(where).first<{ mac: unknown } | undefined>('mac');
    return row !== undefined && hexOfBytes(row.mac) === Buffer.from(mac, 'base64url').toString('hex');
  }

  return {
    /** Stores the facts of these rows again, if the database lacks them. */
    insertFacts: (rows: WithFacts): Promise<void> => run(factInserts(factsOf(rows, () => true))),

    insert: (rows: Partial<LogRows>): Promise<void> => run(rowInserts(rows)),

    /** Whether the table has exactly this row. The MAC shows it, because it covers the whole row. */
    holdsDecision: ({ row, stamp }: Chained<LogDecision>): Promise<boolean> =>
      holds('decision', `id = ${literalId(row.id)}`, stamp),
    holdsShown: ({ row, stamp }: Chained<LogList>): Promise<boolean> =>
      holds('shown', `id = ${literalId(row.decision_id)}`, stamp),
    holdsOutcomes: ({ stamp }: Chained<LogOutcomes>): Promise<boolean> =>
      holds('outcome', `chain = x'${tailOf(stamp.chain_id)}' and seq = ${literal(stamp.chain_seq)}`, stamp),

    /** Whether `insert` stores all of these rows or none, also without a transaction. */
    isAtomic({ decisions, shown, outcomes }: LogRows): boolean {
      if (!isMysql) return true;
      const rows = [...decisions, ...shown, ...outcomes];
      const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
      if (rows.length > MAX_STATEMENT_ROWS || bytes > MAX_STATEMENT_BYTES) return false;
      const isOneTable = rows.length === decisions.length && decisions.every(({ row }) => row.args === null);
      return isOneTable && newFacts(decisions).length === 0;
    },
  };
}
