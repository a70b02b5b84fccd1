/** Exports as streams of text. */

import { type AuditLine, lineText } from './chain/lines.ts';
import type { LogJson } from './entry.ts';

/** A row of `/api/logs` with its position in the chain. */
export type ExportedEntry = LogJson & { readonly chain_id: string | null; readonly chain_seq: number | null };

const COLUMNS = [
  ...['id', 'created_at', 'user_id', 'user_email', 'user_role', 'user_groups', 'target_id', 'target_name', 'method'],
  ...['resource_type', 'resource_name', 'effect', 'policy_id', 'policy_name', 'policy_priority', 'reason', 'issuer'],
  ...['revision', 'data_hash', 'engine_hash', 'outcome', 'duration_ms', 'shown', 'chain_id', 'chain_seq', 'arguments'],
] as (keyof ExportedEntry)[];

/** A spreadsheet would run a text that begins with one of these as a formula. */
const FORMULA = /^[=+\-@\t\r]/;

/** The whole log, with everything that `portcullis audit verify` needs. */
export async function* wholeLog(lines: AsyncIterable<AuditLine>): AsyncGenerator<string> {
  for await (const line of lines) yield `${lineText(line)}\n`;
}

export async function* ndjsonOf(entries: AsyncIterable<ExportedEntry>): AsyncGenerator<string> {
  for await (const entry of entries) yield `${JSON.stringify(entry)}\n`;
}

/**
 * CSV as in RFC 4180. Lists and objects are JSON. A text that a spreadsheet would run as a formula gets an apostrophe in front.
 */
export async function* csvOf(entries: AsyncIterable<ExportedEntry>): AsyncGenerator<string> {
  yield `${COLUMNS.join(',')}\r\n`;
  for await (const entry of entries) yield `${COLUMNS.map((column) => csvCell(entry[column])).join(',')}\r\n`;
}

export function csvCell(value: unknown): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}
