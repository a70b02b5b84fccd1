/** Rows of the audit log as the API shows and exports them. `records/records.ts` says what is recorded. */
import type { AuditEntry } from './entries.ts';

/** In reading order: when, who, what, the decision and its reason, then the data that reproduces it. */
const MEMBERS = [
  ...['id', 'created_at', 'user_id', 'user_email', 'user_role', 'user_groups', 'target_id', 'target_name', 'method'],
  ...['resource_type', 'resource_name', 'arguments', 'effect', 'policy_id', 'policy_name', 'policy_priority', 'reason'],
  ...['issuer', 'revision', 'data_hash', 'engine_hash', 'outcome', 'duration_ms', 'shown'],
] as const satisfies (keyof AuditEntry)[];

export type LogJson = Pick<AuditEntry, Exclude<(typeof MEMBERS)[number], 'created_at'>> & { readonly created_at: string };

export function logJson(entry: AuditEntry): LogJson {
  // The members are named one by one, because an object that is made from a list of names takes several times as long.
  return {
    id: entry.id,
    created_at: new Date(entry.created_at).toISOString(),
    user_id: entry.user_id,
    user_email: entry.user_email,
    user_role: entry.user_role,
    user_groups: entry.user_groups,
    target_id: entry.target_id,
    target_name: entry.target_name,
    method: entry.method,
    resource_type: entry.resource_type,
    resource_name: entry.resource_name,
    arguments: entry.arguments,
    effect: entry.effect,
    policy_id: entry.policy_id,
    policy_name: entry.policy_name,
    policy_priority: entry.policy_priority,
    reason: entry.reason,
    issuer: entry.issuer,
    revision: entry.revision,
    data_hash: entry.data_hash,
    engine_hash: entry.engine_hash,
    outcome: entry.outcome,
    duration_ms: entry.duration_ms,
    shown: entry.shown,
  };
}

/** A row of `/api/logs` with its position in the chain. */
export type ExportedEntry = LogJson & Pick<AuditEntry, 'chain_id' | 'chain_seq'>;

/** The lines of an export are joined until a text has this many characters, because each text costs a turn and a write. */
const TEXT_LENGTH = 16 * 1024;

async function* inTexts<T>(items: AsyncIterable<T>, line: (item: T) => string): AsyncGenerator<string> {
  let lines = '';
  for await (const item of items) {
    lines += line(item);
    if (lines.length < TEXT_LENGTH) continue;
    yield lines;
    lines = '';
  }
  if (lines !== '') yield lines;
}

/** Yields NDJSON, with many lines in one text. */
export const ndjsonOf = <T>(items: AsyncIterable<T>, text: (item: T) => string): AsyncGenerator<string> =>
  inTexts(items, (item) => `${text(item)}\n`);

/** Yields CSV, with many lines in one text. */
export const logCsv = (entries: AsyncIterable<ExportedEntry>): AsyncGenerator<string> =>
  inTexts(
    csvOf([...MEMBERS.filter((member) => member !== 'arguments'), 'chain_id', 'chain_seq', 'arguments'], entries),
    (line) => line,
  );

/** CSV as in RFC 4180. Lists and objects are JSON. An apostrophe goes before a text that a spreadsheet would run as a formula. */
export async function* csvOf<Row>(
  columns: readonly (keyof Row)[],
  rows: AsyncIterable<Row> | Iterable<Row>,
): AsyncGenerator<string> {
  yield `${columns.join(',')}\r\n`;
  for await (const row of rows) yield `${columns.map((column) => csvCell(row[column])).join(',')}\r\n`;
}

/** A spreadsheet would run a text that begins with one of these as a formula. */
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/u;

function csvCell(value: unknown): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}
