/**
 * Reads version 2 of the audit log. The database returns each record as one line of text. This is many times as fast as a row of many
 * columns, because each value that the database returns costs as much as the MAC of a record. Facts are read once and kept.
 */
import { isUtf8 } from 'node:buffer';
import { bytesOfRow } from '../../../db/batches.ts';
import type { Connection } from '../../../db/database.ts';
import { idOf, OUTCOME_BYTES, OUTCOMES_AT_ONCE, TYPES } from '../binary-form.ts';
import { type RecordKind, timeOf } from '../chain.ts';
import { FACT_MEMBERS, type FactKind, KEY_BYTES } from '../facts.ts';
import { type ChainedRecord, FACTS_OF, KnownFact } from '../known-facts.ts';
import { FACT_TABLES, hexOfBytes, LOG_TABLES, literalId, TAIL_BYTES, tailOf, unknownChain } from './log-tables.ts';

type Query = ReturnType<Connection>;
type Among = (query: Query) => Query;

export type LogReader = ReturnType<typeof logReader>;

/** A record without the content of its facts. */
export interface StoredRecord extends ChainedRecord {
  readonly row: Record<string, string | number | null> & ChainedRecord['row'];
  /** The keys of its facts, in hexadecimal digits. Records of version 1 have none. */
  readonly keys?: readonly string[];
}

/** Columns of integers, in the order of a line. */
const NUMBERS = {
  decision: ['seq', 'created_at'],
  shown: ['seq', 'type', 'shown', 'hidden'],
  outcome: ['seq', 'created_at', 'since'],
} as const satisfies Record<RecordKind, readonly string[]>;

/** Stands for a value that its column should not have. SQLite accepts every type in every column. */
const STRANGE = '-';

/** A line begins with hexadecimal digits of the id (at 0), the tail of the chain, the MAC, and the keys: their positions. */
const TAIL_AT = 32;
const MAC_AT = TAIL_AT + 2 * TAIL_BYTES;
const KEYS_AT = MAC_AT + 32;
const tailIn = (line: string): string => line.slice(TAIL_AT, MAC_AT);

/** How many records get their facts at once: a list of names can be long. */
const AT_ONCE = 500;
/** The young half of `Facts` is full when it has this many facts, or this many bytes of them. */
const KEPT = 20_000;
const KEPT_BYTES = 16 * 1024 * 1024;

/** A cache of facts by their keys, in two halves. Facts that only the old half has were not used since the young half began. */
class Facts {
  #young = new Map<string, KnownFact>();
  #old = new Map<string, KnownFact>();
  #bytes = 0;

  /** Makes room: if the young half is full, it becomes the old half, and the facts in the old half are dropped. */
  turn(): void {
    if (this.#young.size < KEPT && this.#bytes < KEPT_BYTES) return;
    this.#old = this.#young;
    this.#young = new Map();
    this.#bytes = 0;
  }

  find(key: string): KnownFact | null {
    const fact = this.#young.get(key);
    if (fact !== undefined) return fact;
    const old = this.#old.get(key);
    if (old !== undefined) this.add(key, old);
    return old ?? null;
  }

  add(key: string, fact: KnownFact): void {
    this.#young.set(key, fact);
    this.#bytes += bytesOfRow(fact.row);
  }
}

/** `withTexts` false: lists come without names, and decisions without captured arguments. Then only MACs can be checked. */
export function logReader(db: Connection, withTexts = true) {
  const isMysql = db.client.dialect === 'mysql';
  const known = { principal: new Facts(), object: new Facts(), verdict: new Facts(), names: new Facts() };
  let chains = new Map<string, string>();

  const bytes = (column: string, length: number, orElse = STRANGE.repeat(2 * length)): string =>
    isMysql
      ? `coalesce(hex(${column}), '${orElse}')`
      : `case when typeof(${column}) = 'blob' and length(${column}) = ${length} then hex(${column}) else '${orElse}' end`;
  const integer = (column: string): string =>
    isMysql
      ? `coalesce(${column}, '')`
      : `case typeof(${column}) when 'integer' then ${column} when 'null' then '' else '${STRANGE}' end`;
  /** The bytes of a text, so that nothing in it can end a line. The gateway writes no NUL, so it stands for a strange value. */
  const text = (column: string): string =>
    isMysql
      ? `coalesce(hex(${column}), '${STRANGE}')`
      : `case typeof(${column}) when 'text' then hex(${column}) when 'null' then '${STRANGE}' else '00' end`;

  // A record of outcomes begins with the id of its first decision.
  const first = bytes('substr(t.outcomes, 1, 16)', 16);
  const firstId = isMysql ? `if(length(t.outcomes) < 16, '${STRANGE.repeat(32)}', ${first})` : first;

  function lineOf(kind: RecordKind): string {
    const fixed = [kind === 'outcome' ? firstId : bytes('t.id', 16), bytes('t.chain', TAIL_BYTES), bytes('t.mac', 16)];
    for (const fact of FACTS_OF[kind]) fixed.push(bytes(`t.${fact}`, KEY_BYTES));
    const others = NUMBERS[kind].map((column) => integer(`t.${column}`));
    if (kind === 'outcome')
      others.push(isMysql ? 'hex(t.outcomes)' : "case typeof(t.outcomes) when 'blob' then hex(t.outcomes) else '' end");
    if (kind === 'decision') others.push(text('t.name'), bytes('a.hash', 32, STRANGE));
    const parts = [...fixed, ...others.flatMap((part) => [`' '`, part])];
    return isMysql ? `concat(${parts.join()})` : parts.map((part) => `(${part})`).join('||');
  }

  /** Returns the lines of the query of a table as `t`, in its order. */
  async function linesOf(kind: RecordKind, among: Among): Promise<readonly string[]> {
    const query = among(db(`${LOG_TABLES[kind]} as t`)).select(db.raw(`${lineOf(kind)} as line`));
    if (kind === 'decision') query.leftJoin('log_arguments as a', 'a.id', 't.id');
    if (isMysql) {
      const rows = (await query) as unknown as readonly { line: string }[];
      return rows.map(({ line }) => line.toLowerCase());
    }
    // One text for all lines, because each row that comes from the thread of SQLite costs as much as the MAC of a record.
    const [{ lines }] = (await db.from(query.as('found')).select(db.raw('group_concat(line, char(10)) as lines'))) as [
      { lines: string | null },
    ];
    return lines === null ? [] : lines.toLowerCase().split('\n');
  }

  function recordOf(kind: RecordKind, line: string): StoredRecord {
    const id = idOf(line.slice(0, 32));
    const keys = FACTS_OF[kind].map((_, i) => line.slice(KEYS_AT + i * 2 * KEY_BYTES, KEYS_AT + (i + 1) * 2 * KEY_BYTES));
    const [, seq, ...others] = line.slice(KEYS_AT + keys.length * 2 * KEY_BYTES).split(' ');
    const stamp = {
      chain_id: chains.get(tailIn(line)) ?? unknownChain(tailIn(line)),
      chain_seq: numberOf(seq),
      mac: Buffer.from(line.slice(MAC_AT, KEYS_AT), 'hex').toString('base64url'),
    };
    switch (kind) {
      case 'decision': {
        const [created_at, name = STRANGE, args = STRANGE] = others;
        const own = name === STRANGE ? null : textOf(Buffer.from(name, 'hex'));
        return {
          kind,
          keys,
          row: {
            id,
            created_at: created_at === '' ? timeOf(id) : numberOf(created_at),
            resource_name: own,
            named: own === null ? 0 : 1,
            args_hash: args === STRANGE ? null : args,
            args_salt: null,
            arguments: null,
            ...stamp,
          },
        };
      }
      case 'shown': {
        const [type, shown, hidden] = others;
        const resource_type = TYPES[numberOf(type)] ?? '';
        return {
          kind,
          keys,
          row: { decision_id: id, resource_type, shown: numberOf(shown), hidden: numberOf(hidden), ...stamp },
        };
      }
      case 'outcome': {
        const [created_at, since, hex = ''] = others;
        const outcomes = Buffer.from(hex, 'hex');
        const isWhole = outcomes.length % OUTCOME_BYTES === 0 && outcomes.length <= OUTCOMES_AT_ONCE * OUTCOME_BYTES;
        // Pages find the record by `since`.
        const isFound = isWhole && numberOf(since) === timeOf(id);
        return { kind, row: { created_at: numberOf(created_at), ...stamp }, facts: [], outcomes: isFound ? outcomes : null };
      }
    }
  }

  /** Returns the records that the query of the table as `t` finds, in its order, without their facts. */
  async function stored(kind: RecordKind, among: Among): Promise<StoredRecord[]> {
    const lines = await linesOf(kind, among);
    if (lines.some((line) => !chains.has(tailIn(line)))) {
      const rows: { chain_id: string }[] = await db('audit_chains').select('chain_id');
      chains = new Map(rows.map(({ chain_id }) => [tailOf(chain_id), chain_id]));
    }
    return lines.map((line) => recordOf(kind, line));
  }

  /**
   * Columns with texts. The driver of SQLite ends a text at a NUL, which would hide the rest from verification but not from a search, and it ends
   * the process at a text that is not UTF-8. So texts come as bytes.
   */
  const textsIn = (columns: readonly string[]) =>
    isMysql
      ? columns
      : columns.flatMap((column) => [
          db.raw(`case typeof(${column}) when 'text' then cast(${column} as blob) else ${column} end as ${column}`),
          db.raw(`typeof(${column}) = 'blob' as ${column}_is_blob`),
        ]);

  /** Reads the texts of a row. The gateway stores no NUL and nothing but UTF-8 in them, so a row with something else is forged. */
  function readTexts(row: Readonly<Record<string, unknown>>, columns: readonly string[]) {
    let isForged = false;
    const read = columns.map((column): [string, unknown] => {
      const value = row[column];
      isForged ||= row[`${column}_is_blob`] === 1;
      if (!(value instanceof ArrayBuffer)) return [column, value];
      const text = textOf(Buffer.from(value));
      isForged ||= text.includes('\0');
      return [column, text];
    });
    return { texts: Object.fromEntries(read) as Record<string, string | number | null>, isForged };
  }

  async function loadFacts(kind: FactKind, keys: readonly string[]): Promise<void> {
    const columns = FACT_MEMBERS[kind].filter((member) => withTexts || member !== 'names');
    const rows: ({ id: unknown } & Record<string, unknown>)[] = await db(FACT_TABLES[kind])
      .whereRaw(`id in (${keys.map((key) => `x'${key}'`).join()})`)
      .select('id', ...textsIn(columns));
    for (const row of rows) {
      const { texts, isForged } = readTexts(row, columns);
      known[kind].add(hexOfBytes(row.id), new KnownFact(kind, texts, isForged));
    }
  }

  /** Returns which decisions have lost their captured arguments since they were read. */
  async function loadArguments(records: readonly StoredRecord[]): Promise<ReadonlySet<StoredRecord>> {
    const byId = new Map(
      records.filter(({ row }) => typeof row['args_hash'] === 'string').map((one) => [String(one.row['id']), one]),
    );
    if (byId.size === 0) return new Set();
    const columns = ['salt', 'arguments'];
    const rows: ({ id: unknown } & Record<string, unknown>)[] = await db('log_arguments')
      .whereRaw(`id in (${[...byId.keys()].map(literalId).join()})`)
      .select('id', ...textsIn(columns));
    for (const row of rows) {
      const id = idOf(hexOfBytes(row.id));
      const { texts, isForged } = readTexts(row, columns);
      // A forged text is not what its hash covers.
      Object.assign(byId.get(id)?.row ?? {}, { args_salt: isForged ? '' : texts['salt'], arguments: texts['arguments'] });
      byId.delete(id);
    }
    return new Set(byId.values());
  }

  /** Reads the facts of up to AT_ONCE records. A fact that is missing is null. */
  async function withFacts(records: readonly StoredRecord[]): Promise<ChainedRecord[]> {
    const unknown: Record<FactKind, Set<string>> = {
      principal: new Set(),
      object: new Set(),
      verdict: new Set(),
      names: new Set(),
    };
    for (const kind of Object.keys(known) as FactKind[]) known[kind].turn();
    const found = records.map(({ kind, keys = [] }) =>
      keys.map((key, i) => {
        const of = FACTS_OF[kind][i] as FactKind;
        const fact = known[of].find(key);
        if (fact === null && !key.startsWith(STRANGE)) unknown[of].add(key);
        return fact;
      }),
    );
    for (const kind of Object.keys(unknown) as FactKind[]) {
      if (unknown[kind].size > 0) await loadFacts(kind, [...unknown[kind]]);
    }
    const removed = withTexts ? await loadArguments(records) : new Set();
    return records.map((record, at) => {
      const { kind, keys, row } = record;
      if (keys === undefined) return record;
      const facts = (found[at] ?? []).map((fact, i) =>
        removed.has(record) ? null : (fact ?? known[FACTS_OF[kind][i] as FactKind].find(keys[i] ?? STRANGE)),
      );
      if (kind === 'decision' && row['named'] === 0)
        row['resource_name'] = (facts[1]?.row['resource_name'] ?? null) as string | null;
      return { kind, row, facts };
    });
  }

  /** Yields the records with their facts, some at a time. */
  async function* filled(records: readonly StoredRecord[]): AsyncGenerator<readonly ChainedRecord[]> {
    for (let at = 0; at < records.length; at += AT_ONCE) yield withFacts(records.slice(at, at + AT_ONCE));
  }

  async function whole(records: readonly StoredRecord[]): Promise<ChainedRecord[]> {
    const found: ChainedRecord[] = [];
    for await (const some of filled(records)) found.push(...some);
    return found;
  }

  return {
    stored,
    filled,
    whole,
    /** Returns the records that the query of the table as `t` finds, in its order, with their facts. */
    read: async (kind: RecordKind, among: Among): Promise<ChainedRecord[]> => whole(await stored(kind, among)),
  };
}

/** Bytes that are not UTF-8 would read as U+FFFD, which a search would not find in them. The gateway writes neither those nor a NUL. */
const textOf = (bytes: Buffer): string => (isUtf8(bytes) ? bytes.toString() : '\0');

/** Returns the integer; NaN: the column has a different value. */
const numberOf = (text: string | undefined): number => (text === undefined || text === '' ? Number.NaN : Number(text));
