/** Rows of the audit log as the API shows and exports them. `records.ts` says what is recorded. */
import type { AuditEntry } from './entries.ts';

/** In reading order: when, who, what, the decision and its reason, then the data that reproduces it. */
const MEMBERS = [
  ...['id', 'created_at', 'user_id', 'user_email', 'user_role', 'user_groups', 'target_id', 'target_name', 'method'],
  ...['resource_type', 'resource_name', 'arguments', 'effect', 'policy_id', 'policy_name', 'policy_priority', 'reason'],
  ...['issuer', 'revision', 'data_hash', 'engine_hash', 'outcome', 'duration_ms', 'shown'],
] as const satisfies (keyof AuditEntry)[];

export type LogJson = Pick<AuditEntry, Exclude<(typeof MEMBERS)[number], 'created_at'>> & { readonly created_at: string };

export function logJson(entry: AuditEntry): LogJson {
  const shown = Object.fromEntries(MEMBERS.map((member) => [member, entry[member]])) as Pick<
    AuditEntry,
    (typeof MEMBERS)[number]
  >;
  return { ...shown, created_at: new Date(entry.created_at).toISOString() };
}

/** A row of `/api/logs` with its position in the chain. */
export type ExportedEntry = LogJson & Pick<AuditEntry, 'chain_id' | 'chain_seq'>;

export async function* ndjsonOf<T>(items: AsyncIterable<T>, text: (item: T) => string): AsyncGenerator<string> {
  for await (const item of items) yield `${text(item)}\n`;
}

export const logCsv = (entries: AsyncIterable<ExportedEntry>): AsyncGenerator<string> =>
  csvOf([...MEMBERS.filter((member) => member !== 'arguments'), 'chain_id', 'chain_seq', 'arguments'], entries);

/** CSV as in RFC 4180. Lists and objects are JSON. An apostrophe goes before a text that a spreadsheet would run as a formula. */
export async function* csvOf<Row>(
  columns: readonly (keyof Row)[],
  rows: AsyncIterable<Row> | Iterable<Row>,
): AsyncGenerator<string> {
  yield `${columns.join(',')}\r\n`;
  for await (const row of rows) yield `${columns.map((column) => csvCell(row[column])).join(',')}\r\n`;
}

/** A spreadsheet would run a text that begins with one of these as a formula. */
const FORMULA = /^[=+\-@\t\r]/;

function csvCell(value: unknown): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}
