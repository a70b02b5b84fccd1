/**
 * Finds what makes pages of the log show different records than those that were checked, although each of these is whole.
 *
 * - A view or a generated column can show other rows or values to a page than to the verification, and a trigger can change what is written.
 * - With longer types, bytes can move from one column to the next. With a different collation, a filter misses rows.
 * - Verification and pages read the same table of SQLite through different indexes. With SQL alone, an attacker can make an index that lacks
 *   some rows. MySQL does not let its users make one.
 */
import type { Connection } from '../../db/database.ts';
import type { Problem } from './report.ts';

/** Returns a problem for each of these. Tables that are missing altogether make the verification itself fail. */
export async function damageOf(db: Connection): Promise<Problem[]> {
  const found = db.client.dialect === 'mysql' ? await inMysql(db) : await inSqlite(db);
  return found.map((what) => ({
    ...{ problem: 'altered', chain: null, seq: null, record: null, decision_id: null },
    detail: `${what}, so pages of the log may show different records than those that were checked`,
  }));
}

/**
 * The primary keys of the tables of the log, and their columns with their types in MariaDB and MySQL. Other tables hold only what can be
 * counted again.
 */
const TABLES: Readonly<Record<string, readonly [key: string, columns: string]>> = {
  audit_chains: [
    'chain_id',
    'chain_id varchar(36), found mediumtext, host text, key_id varchar(16), mac varchar(43), started_at bigint, unchained bigint, version int',
  ],
  audit_decisions: [
    'id',
    'arguments text, chain_id varchar(36), chain_seq bigint, created_at bigint, data_hash varchar(64), effect varchar(8), engine_hash varchar(64), id varchar(36), issuer varchar(512), mac varchar(43), method varchar(256), person_hash varchar(43), policy_id varchar(36), policy_name varchar(256), policy_priority int, reason varchar(32), resource_key varchar(22), resource_name varchar(2048), resource_type varchar(16), revision bigint, salt varchar(22), target_id varchar(36), target_name varchar(63), user_email varchar(320), user_groups text, user_id varchar(256), user_role varchar(256)',
  ],
  audit_erasures: [
    'id',
    'done_at bigint, erased_at bigint, id varchar(36), key_id varchar(16), signature varchar(43), user_id varchar(256)',
  ],
  audit_outcomes: [
    'decision_id',
    'chain_id varchar(36), chain_seq bigint, created_at bigint, decision_id varchar(36), duration_ms int, mac varchar(43), outcome varchar(32)',
  ],
  audit_retention: [
    'chain_id',
    'chain_id varchar(36), key_id varchar(16), mac varchar(43), newest bigint, removed_at bigint, seq bigint, signature varchar(43), unproven varchar(64)',
  ],
  audit_sets: ['hash', 'hash varchar(64), names mediumtext'],
  audit_shown: [
    'decision_id',
    'chain_id varchar(36), chain_seq bigint, decision_id varchar(36), hidden int, mac varchar(43), resource_type varchar(16), set_hash varchar(64), shown int',
  ],
  audit_verification: ['id', 'id int, statement text'],
  log_arguments: ['id', 'arguments mediumtext, hash binary(32), id binary(16), salt varchar(22)'],
  log_decisions: [
    'id',
    'chain binary(4), created_at bigint, id binary(16), mac binary(16), name varchar(2048), object binary(9), principal binary(9), seq int, verdict binary(9)',
  ],
  log_lists: [
    'id',
    'chain binary(4), hidden int, id binary(16), mac binary(16), names binary(9), seq int, shown int, type tinyint unsigned',
  ],
  log_names: ['id', 'id binary(9), names mediumtext, set_hash varchar(64)'],
  log_objects: [
    'id',
    'id binary(9), method varchar(256), resource_name varchar(2048), resource_type varchar(16), target_id varchar(36), target_name varchar(63)',
  ],
  log_outcomes: [
    'chain,seq',
    'chain binary(4), created_at bigint, mac binary(16), outcomes varbinary(672), seq int, since bigint',
  ],
  log_principals: [
    'id',
    'id binary(9), issuer varchar(512), person_hash varchar(43), salt varchar(22), since bigint, user_email varchar(320), user_groups mediumtext, user_id varchar(256), user_role varchar(256)',
  ],
  log_segments: ['id', 'high binary(16), id binary(8), last_seq int, low binary(16)'],
  log_terms: ['term,segment', 'segment binary(8), term binary(8)'],
  log_verdicts: [
    'id',
    'data_hash varchar(64), effect varchar(8), engine_hash varchar(64), id binary(9), policy_id varchar(36), policy_name varchar(256), policy_priority int, reason varchar(32), revision bigint',
  ],
};
/** Those that compare byte for byte, of MySQL and MariaDB. */
const COLLATIONS: readonly string[] = ['', 'utf8mb4_0900_bin', 'utf8mb4_nopad_bin'];

const STRAY_IN_MYSQL = `select table_name as name, 'no table of InnoDB' as kind from information_schema.tables
  where table_schema = database() and lower(table_name) regexp '^(log|audit)_'
    and not (table_type = 'BASE TABLE' and coalesce(engine, '') = 'InnoDB')
  union all select trigger_name, concat('a trigger on ', event_object_table) from information_schema.triggers
  where event_object_schema = database() and lower(event_object_table) regexp '^(log|audit)_'`;
const COLUMNS_IN_MYSQL = `select table_name as of_table, column_name as name, column_type as type, coalesce(collation_name, '') as collation,
  concat(extra, coalesce(generation_expression, '')) as made from information_schema.columns
  where table_schema = database() and lower(table_name) regexp '^(log|audit)_'`;

const KEYS_IN_MYSQL = `select table_name as of_table, group_concat(column_name order by seq_in_index) as columns
  from information_schema.statistics where table_schema = database() and index_name = 'PRIMARY' group by table_name`;

interface Column {
  readonly of_table: string;
  readonly name: string;
  readonly type: string;
  readonly collation: string;
  readonly made: string;
}

interface Key {
  readonly of_table: string;
  readonly columns: string;
}

/** Names of columns are not case-sensitive, nor are those of tables in SQLite. */
const isSame = (a: string, b: string): boolean => a.toLowerCase() === b.toLowerCase();

/** Returns what is wrong with columns and keys. `problemOf` null: the column is as it must be. `type`: its type in MySQL. */
function wrongIn<C extends Pick<Column, 'of_table' | 'name'>>(
  columns: readonly C[],
  keys: readonly Key[],
  problemOf: (column: C, type: string) => string | null,
): string[] {
  return Object.entries(TABLES).flatMap(([table, [key, list]]) => {
    const own = columns.filter(({ of_table }) => isSame(of_table, table));
    if (own.length === 0) return [];
    const types = new Map(
      list.split(', ').map((column) => [column.split(' ', 1)[0] ?? '', column.slice(column.indexOf(' ') + 1)]),
    );
    const found = own.flatMap((column) => {
      const type = types.get(column.name.toLowerCase());
      const problem = type === undefined ? 'is not one of the gateway' : problemOf(column, type);
      return problem === null ? [] : [`the column ${column.name} of ${table} ${problem}`];
    });
    const lost = [...types.keys()].filter((name) => !own.some((column) => isSame(column.name, name)));
    const actual = keys.find(({ of_table }) => isSame(of_table, table))?.columns ?? '';
    return [
      ...found,
      ...lost.map((name) => `the column ${name} of ${table} is missing`),
      ...(isSame(actual, key) ? [] : [`the primary key of ${table} is (${actual})`]),
    ];
  });
}

async function inMysql(db: Connection): Promise<string[]> {
  const [stray = []]: { name: string; kind: string }[][] = await db.raw(STRAY_IN_MYSQL);
  const [columns = []]: Column[][] = await db.raw(COLUMNS_IN_MYSQL);
  const [keys = []]: Key[][] = await db.raw(KEYS_IN_MYSQL);
  const views = new Set(stray.map(({ name }) => name));
  const wrong = wrongIn(
    columns.filter(({ of_table }) => !views.has(of_table)),
    keys,
    ({ type, collation, made }, expected) => {
      // MariaDB adds a width to integers.
      const plain = type.replace(/int\(\d+\)/, 'int');
      if (made !== '') return `is generated (${made})`;
      if (plain !== expected) return `has the type ${plain}`;
      return COLLATIONS.includes(collation) ? null : `has the collation ${collation}`;
    },
  );
  return [...stray.map(({ name, kind }) => `${name} is ${kind}`), ...wrong];
}

const STRAY_IN_SQLITE = `select name, case type when 'trigger' then 'a trigger on ' || tbl_name else 'no plain table' end as kind
  from sqlite_schema where (lower(tbl_name) glob 'log_*' or lower(tbl_name) glob 'audit_*')
    and (type in ('view', 'trigger') or (type = 'table' and (sql not like 'create table %' or sql like '%collate%')))`;
const COLUMNS_IN_SQLITE = `select s.name as of_table, c.name, c.hidden, c.pk from sqlite_schema s, pragma_table_xinfo(s.name) c
  where s.type = 'table' order by s.name, c.pk`;

async function inSqlite(db: Connection): Promise<string[]> {
  const stray: { name: string; kind: string }[] = await db.raw(STRAY_IN_SQLITE);
  const columns: { of_table: string; name: string; hidden: number; pk: number }[] = await db.raw(COLUMNS_IN_SQLITE);
  const [first]: { integrity_check: string }[] = await db.raw('pragma integrity_check(1)');
  const keys = new Map<string, string[]>();
  for (const { of_table, name, pk } of columns) if (pk > 0) keys.set(of_table, [...(keys.get(of_table) ?? []), name]);
  const wrong = wrongIn(
    columns,
    [...keys].map(([of_table, names]) => ({ of_table, columns: names.join() })),
    ({ hidden }) => (hidden === 0 ? null : 'is generated'),
  );
  return [
    ...stray.map(({ name, kind }) => `${name} is ${kind}`),
    ...wrong,
    ...(first?.integrity_check === 'ok' ? [] : [`the database file is damaged (${first?.integrity_check})`]),
  ];
}
