/**
 * Finds what must not be read: the driver of SQLite ends the process at a text that is not UTF-8. The gateway writes none, so somebody else did.
 * Facts, arguments and records of version 2 are read as bytes, so only the other tables of the log are searched.
 */
import { isUtf8 } from 'node:buffer';
import type { Connection } from '../../db/database.ts';
import type { Problem } from './report.ts';

const WITH_TEXTS = [
  'audit_chains',
  'audit_decisions',
  'audit_erasures',
  'audit_outcomes',
  'audit_retention',
  'audit_sets',
  'audit_shown',
  'audit_verification',
  'log_counted',
];
/** Their columns have bytes, numbers and ASCII. */
const WITHOUT_TEXTS = ['log_counts', 'log_segments', 'log_terms'];

const COLUMNS = 'select c.name from pragma_table_xinfo(?) c';
const AT_ONCE = 500;

/** Texts in ASCII need no look at their bytes. */
const otherThanAscii = (column: string): string =>
  `(typeof(${column}) = 'text' and ${column} glob '*[^' || char(1) || '-' || char(127) || ']*')`;

export async function unreadableIn(db: Connection): Promise<Problem[]> {
  if (db.client.dialect === 'mysql') return [];
  const problems: Problem[] = [];
  for (const table of [...WITH_TEXTS, ...WITHOUT_TEXTS]) {
    const columns: { name: string }[] = await db.raw(COLUMNS, [table]);
    for (const { name } of columns) {
      const column = `"${name.replaceAll('"', '""')}"`;
      const isFound = WITHOUT_TEXTS.includes(table) ? await hasAny(db, table, column) : await hasBroken(db, table, column);
      if (!isFound) continue;
      const detail = `the column ${name} of ${table} has a text that is not UTF-8, so somebody else wrote it; nothing else was checked, because SQLite cannot read such a text`;
      problems.push({ problem: 'altered', chain: null, seq: null, record: null, decision_id: null, detail });
    }
  }
  return problems;
}

async function hasAny(db: Connection, table: string, column: string): Promise<boolean> {
  return (await db(table).whereRaw(otherThanAscii(column)).first(db.raw('1 as found'))) !== undefined;
}

async function hasBroken(db: Connection, table: string, column: string): Promise<boolean> {
  for (let last = Number.MIN_SAFE_INTEGER; ; ) {
    const rows: { at: number; bytes: ArrayBuffer }[] = await db(table)
      .whereRaw(`rowid > ? and ${otherThanAscii(column)}`, [last])
      .orderBy('rowid')
      .limit(AT_ONCE)
      .select(db.raw(`rowid as at, cast(${column} as blob) as bytes`));
    if (rows.some(({ bytes }) => !isUtf8(Buffer.from(bytes)))) return true;
    const end = rows.at(-1);
    if (end === undefined) return false;
    last = end.at;
  }
}
