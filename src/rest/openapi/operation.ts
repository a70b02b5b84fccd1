/** The building blocks of operations. */
import type Joi from 'joi';
import type { Need } from '../../auth/rights.ts';
import { listOf, type Schema } from './schema.ts';

export interface Operation {
  /** The `operationId`. Generated clients use it as a name, so it never changes. */
  readonly id: string;
  readonly summary: string;
  /** What the caller needs. `authorize` reads it for every request. */
  readonly access: Need;
  /** The body of a request. */
  readonly takes?: Joi.Schema;
  /** The successful answers, by status. */
  readonly gives: Readonly<Record<number, Given>>;
  /** Statuses of refusals that do not follow from the other members. */
  readonly refuses?: readonly number[];
  readonly query?: readonly Schema[];
  readonly headers?: readonly Schema[];
  /** Whether `If-Match` is honoured. */
  readonly conditional?: boolean;
  /** Runs in a thread with limited memory and time. Callers wait their turn. */
  readonly heavy?: boolean;
}

export interface Given {
  /** null: the answer has no body. */
  readonly schema: Schema | null;
  readonly headers: readonly HeaderName[];
  readonly mediaType: string;
  /** A second media type of the same content. */
  readonly orMediaType?: string;
}

export const HEADERS = {
  ETag: 'The value for If-Match.',
  Link: 'The address of the next page, with rel="next".',
  Location: 'The address of the new resource.',
  'Portcullis-Revision': 'The revision of the policy set.',
} as const;
type HeaderName = keyof typeof HEADERS;

/** The operations by method and path. */
export type Operations = Readonly<Record<`${'GET' | 'POST' | 'PUT' | 'DELETE'} /${string}`, Operation>>;

export const REVISION = 'Portcullis-Revision';

export const one = (schema: Schema, ...headers: HeaderName[]): Given => ({
  schema,
  headers,
  mediaType: 'application/json',
});
export const many = (schema: Schema, ...headers: HeaderName[]): Given => one(listOf(schema), ...headers);
/** The answer also comes in lines: `{"progress": …}`, then `{"result": …}` or `{"error": {"code", "detail", "errors"}}`. */
export const inLines = (given: Given): Given => ({ ...given, orMediaType: 'application/x-ndjson' });
export const nothing = (...headers: HeaderName[]): Given => ({ schema: null, headers, mediaType: '' });

export const parameter = (where: 'query' | 'header', name: string, schema: Schema, description: string): Schema => ({
  in: where,
  name,
  schema,
  description,
});
export const header = (name: string, description: string): Schema => parameter('header', name, { type: 'string' }, description);
export const paging = (limit: string): Schema[] => [
  parameter('query', 'limit', { type: 'integer', minimum: 1, maximum: 1000 }, limit),
  parameter('query', 'cursor', { type: 'string' }, 'The cursor from the Link header of the previous page.'),
];
export const wholeOrPaged = paging('Items per page. Absent: the whole list.');
export const paged = paging('Items per page. Absent: 100.');

const getBy =
  (access: Need) =>
  (id: string, summary: string, given: Given, more: Partial<Operation> = {}): Operation => ({
    ...{ id, summary, access, gives: { 200: given } },
    ...more,
  });
/** A GET for callers with the right `read`. */
export const get = getBy(['read']);
export const getWithToken = getBy('any token');
export const getOpen = getBy('open');
/** A GET that answers 304 if the resource has the ETag in If-None-Match. */
export const tagged = (id: string, summary: string, given: Given, more: Partial<Operation> = {}): Operation => ({
  ...get(id, summary, given, more),
  gives: { 200: given, 304: nothing('ETag') },
  headers: [header('If-None-Match', 'The ETag of the version that the client has. The answer is 304 if it is still current.')],
});
