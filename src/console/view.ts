/** What a page of the console gets: the request, and the operations of REST that its user may carry out. */
import type { Request } from 'express';
import { AppError, type ErrorCode } from '../base/errors.ts';
import type { Content } from '../browser/html.ts';
import type { Answer } from './ask.ts';

export interface View {
  /** Rejects with the error of the operation, for example AppError `forbidden`. */
  readonly get: <T>(path: string) => Promise<Answer<T>>;
  readonly post: <T>(path: string, body: object) => Promise<Answer<T>>;
  /** The query of the page: what was given once and is not empty, because forms also send the fields that are empty. */
  readonly query: Readonly<Record<string, string>>;
  readonly publicUrl: string;
  /** The id or name in the path of the page, in the form that it must have; empty if the path has none. */
  readonly id: string;
}

export interface Shown {
  readonly title: string;
  readonly body: Content;
}

export function queryOf({ query }: Pick<Request, 'query'>): Record<string, string> {
  const given = Object.entries(query).filter((entry): entry is [string, string] => typeof entry[1] === 'string');
  return Object.fromEntries(given.filter(([, value]) => value !== ''));
}

/** Returns null if the user may not carry out the operation, or there is no such thing. `also`: a different refusal that gives null. */
export async function unlessRefused<T>(work: Promise<T>, also: ErrorCode = 'forbidden'): Promise<T | null> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof AppError && ['forbidden', 'not_found', also].includes(error.code)) return null;
    throw error;
  }
}

/** Returns the path with these members in its query. */
export const withQuery = (path: string, query: Readonly<Record<string, string>>): string =>
  `${path}?${new URLSearchParams(query)}`;

/** Returns the query of the next page without `limit`, which the page gives itself. */
export function nextQuery(next: URLSearchParams | null): URLSearchParams | null {
  next?.delete('limit');
  return next;
}
