/**
 * Finds what must not be read: the driver of SQLite ends the process at a text that is not UTF-8. The gateway writes none, so somebody else did.
 * Facts, arguments and records of version 2 are read as bytes, so only the other tables of the log are searched.
 */
import { isUtf8 } from 'node:buffer';
import type { Connection } from '../../db/database.ts';
import type { Problem } from './report.ts';

const TABLES = [
  ...['audit_chains', 'audit_decisions', 'audit_erasures', 'audit_outcomes', 'audit_retention', 'audit_sets', 'audit_shown'],
  ...['audit_verification', 'log_counted'],
];
/** Their columns hold bytes, numbers and ASCII. They have no rowids. */
const TABLES_WITHOUT_TEXTS = ['log_counts', 'log_segments', 'log_terms'];

const AT_ONCE = 500;

/** A view can return what it likes, and the rows of a table without rowids, or with a column of that name, cannot be read in parts. */
const PLAIN = `select 1 as found from sqlite_schema where lower(name) = ? and type = 'table'
  and sql like 'create table %' and sql not like '%rowid%'`;

/** Returns a problem for each column in the first row of each table with such texts. */
export async function unreadableIn(db: Connection): Promise<Problem[]> {
  if (db.client.dialect === 'mysql') return [];
  const details: string[] = [];
  for (const table of [...TABLES, ...TABLES_WITHOUT_TEXTS]) {
    const plain: unknown[] = TABLES.includes(table) ? await db.raw(PLAIN, [table]) : [table];
    if (plain.length === 0) details.push(`${table} is not the table that the gateway made`);
    else
      for (const column of await brokenColumns(db, table))
        details.push(`the column ${column} of ${table} has a text that is not UTF-8, which SQLite cannot read`);
  }
  return details.map((detail) => ({
    ...{ problem: 'altered', chain: null, seq: null, record: null, decision_id: null },
    detail: `${detail}, so nothing else was checked`,
  }));
}

async function brokenColumns(db: Connection, table: string): Promise<string[]> {
  const columns: { name: string }[] = await db.raw('select name from pragma_table_xinfo(?)', [table]);
  // Texts in ASCII need no look at their bytes.
  const found = columns.map(({ name }, i) => {
    const column = `"${name.replaceAll('"', '""')}"`;
    const isOther = `typeof(${column}) = 'text' and ${column} glob '*[^' || char(1) || '-' || char(127) || ']*'`;
    return { name, isOther, bytes: `case when ${isOther} then cast(${column} as blob) end as "${i}"` };
  });
  if (found.length === 0) return [];
  const isAny = found.map(({ isOther }) => `(${isOther})`).join(' or ');
  const hasTexts = TABLES.includes(table);
  // As text, because a JavaScript number would lose the last digits of a rowid.
  for (let last: string | null = null; ; ) {
    const query = db(table)
      .whereRaw(`(${isAny})`)
      .select(...found.map(({ bytes }) => db.raw(bytes)));
    if (hasTexts) query.orderBy('rowid').select(db.raw('cast(rowid as text) as at'));
    if (last !== null) query.whereRaw(`rowid > ${last}`);
    const rows: Record<string, ArrayBuffer | string | null>[] = await query.limit(AT_ONCE);
    for (const row of rows) {
      const isBroken = (value: unknown): boolean => value instanceof ArrayBuffer && !(hasTexts && isUtf8(Buffer.from(value)));
      const broken = found.filter((_, i) => isBroken(row[i]));
      if (broken.length > 0) return broken.map(({ name }) => name);
    }
    const end = rows.at(-1)?.['at'];
    if (typeof end !== 'string') return [];
    last = end;
  }
}
