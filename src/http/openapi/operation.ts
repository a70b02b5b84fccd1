/** The words that operations are written with. */
import type { SchemaName } from './document.ts';
import { listOf, ref, type Schema } from './schema.ts';

type Access = 'open' | 'any token' | 'login token' | 'admin' | 'admin or auditor';

export interface Operation {
  /** `operationId`: what generated clients call the operation, so it never changes. */
  readonly id: string;
  readonly summary: string;
  readonly access: Access;
  readonly takes?: SchemaName;
  /** What it answers, by status. */
  readonly gives: Readonly<Record<number, Given>>;
  /** Refusals beyond those that follow from the rest. */
  readonly refuses?: readonly number[];
  readonly query?: readonly Schema[];
  readonly headers?: readonly Schema[];
  /** Whether `If-Match` is honoured. */
  readonly conditional?: boolean;
  /** Worked out in a thread of limited memory and time, for which callers wait their turn. */
  readonly heavy?: boolean;
}

export interface Given {
  /** null: no body. */
  readonly schema: Schema | null;
  readonly headers: readonly HeaderName[];
  readonly mediaType: string;
  /** Another form of the same. */
  readonly orMediaType?: string;
}

export const HEADERS = {
  ETag: 'For If-Match.',
  Link: 'The next page, rel="next".',
  Location: 'Where the new resource is.',
  'Portcullis-Revision': 'Revision of the policy set.',
} as const;
type HeaderName = keyof typeof HEADERS;

export type Paths = Readonly<Record<string, Readonly<Partial<Record<'get' | 'post' | 'put' | 'delete', Operation>>>>>;

export const REVISION = 'Portcullis-Revision';

export const one = (name: SchemaName, ...headers: HeaderName[]): Given => ({
  schema: ref(name),
  headers,
  mediaType: 'application/json',
});
export const many = (name: SchemaName, ...headers: HeaderName[]): Given => ({
  ...one(name, ...headers),
  schema: listOf(ref(name)),
});
/** Also in lines, with the progress: `{"progress": …}`, at last `{"result": …}` or `{"error": {"code", "detail", "errors"}}`. */
export const inLines = (given: Given): Given => ({ ...given, orMediaType: 'application/x-ndjson' });
export const nothing = (...headers: HeaderName[]): Given => ({ schema: null, headers, mediaType: '' });

export const parameter = (where: 'query' | 'header', name: string, schema: Schema, description: string): Schema => ({
  in: where,
  name,
  schema,
  description,
});
export const paging = (limit: string): Schema[] => [
  parameter('query', 'limit', { type: 'integer', minimum: 1, maximum: 1000 }, limit),
  parameter('query', 'cursor', { type: 'string' }, 'From the Link header of the page before.'),
];
export const wholeOrPaged = paging('Absent: the whole list.');
export const paged = paging('Absent: 100.');

export const get = (id: string, summary: string, access: Access, given: Given, more: Partial<Operation> = {}): Operation => ({
  id,
  summary,
  access,
  gives: { 200: given },
  ...more,
});
/** 304: it is what If-None-Match names. */
export const tagged = (id: string, summary: string, given: Given): Operation => ({
  ...get(id, summary, 'admin', given),
  gives: { 200: given, 304: nothing('ETag') },
  headers: [parameter('header', 'If-None-Match', { type: 'string' }, 'ETag of what is known already.')],
});
