/** Pagination of lists: `limit`, `cursor`, and the next page in a `Link` header (RFC 8288). */
import { pipeline } from 'node:stream/promises';
import type { Request, Response } from 'express';
import { AppError, invalidRequest } from '../base/errors.ts';
import { lane } from '../base/turns/lane.ts';
import { createSpareTurns } from '../base/turns/spare-turns.ts';
import { UUID } from '../base/validate.ts';
import { whileAllowed } from './allowed.ts';
import { contextOf } from './context.ts';

export interface Page {
  /** The maximum number of items; null: the whole list. */
  readonly limit: number | null;
  /** The key of the last item on the previous page; null for the first page. */
  readonly cursor: string | null;
}

export interface PageOptions {
  readonly defaultLimit: number | null;
  readonly maxLimit: number;
  /** The format of the list's keys. */
  readonly key?: RegExp;
  readonly also?: readonly string[];
  /** Those in `also` that may be given several times. */
  readonly repeated?: readonly string[];
}

/** The key format of lists that are ordered by id. */
export const ID_KEY = UUID;

/** Reads `limit` and `cursor`. Other query parameters are refused, except those in `also`. */
export function readPage(req: Request, options: PageOptions): Page {
  const known = ['limit', 'cursor', ...(options.also ?? [])];
  const errors = Object.entries(req.query).flatMap(([path, value]) => {
    if (!known.includes(path)) return [{ path, message: 'unknown query parameter' }];
    const isGivenWell = typeof value === 'string' || (Array.isArray(value) && options.repeated?.includes(path));
    return isGivenWell ? [] : [{ path, message: 'must be given once' }];
  });
  const { limit, cursor } = req.query as Record<string, string>;
  const size = limit === undefined ? options.defaultLimit : Number(limit);
  if (limit !== undefined && (!/^\d{1,6}$/.test(limit) || Number(limit) < 1 || Number(limit) > options.maxLimit)) {
    errors.push({ path: 'limit', message: `must be a number from 1 to ${options.maxLimit}` });
  }
  const key = cursor === undefined ? null : Buffer.from(cursor, 'base64url').toString();
  if (key !== null && (!(options.key ?? /./s).test(key) || Buffer.from(key).toString('base64url') !== cursor)) {
    errors.push({ path: 'cursor', message: 'must be a cursor from the Link header of this list' });
  }
  if (errors.length > 0) throw invalidRequest(errors);
  return { limit: size, cursor: key };
}

/**
 * Answers with one page of `items`. One more item than `limit` shows that there is a next page. `keyOf` returns the key that the
 * next page starts after.
 */
export async function sendPage<T>(
  req: Request,
  res: Response,
  page: Page,
  items: readonly T[],
  keyOf: (item: T) => string,
  show: (item: T) => object,
): Promise<void> {
  const shown = page.limit === null ? items : items.slice(0, page.limit);
  const last = shown.at(-1);
  if (shown.length < items.length && last !== undefined) linkNext(req, res, page, keyOf(last));
  await sendList(res, '', shown, show, '');
}

/** A piece of a long list has about this many characters, and usually at most so many items. */
const PIECE_LENGTH = 64 * 1024;
const PIECE_ITEMS = 50;
const JSON_TYPE = 'application/json; charset=utf-8';

/**
 * Answers with the items as a JSON array, between two other pieces of JSON text. A long list is written piece by piece as the client reads it,
 * because the whole may have hundreds of megabytes, and in the lane, because it can take seconds. `atOnce`: how many items it gets before it writes
 * them. Resolves also if the client leaves.
 */
export async function sendList<T>(
  res: Response,
  before: string,
  items: Iterable<T> | AsyncIterable<T>,
  show: (item: T) => object,
  after: string,
  atOnce = PIECE_ITEMS,
): Promise<void> {
  const sender = contextOf(res).admission?.principal.sub ?? '';
  async function* pieces(): AsyncGenerator<string, undefined> {
    let piece = `${before}[`;
    let separator = '';
    const some: T[] = [];
    async function* written(): AsyncGenerator<string, undefined> {
      while (some.length > 0) {
        await lane.run(sender, () => {
          piece += separator + JSON.stringify(show(some.shift() as T));
          separator = ',';
          return some.length === 0 || piece.length >= PIECE_LENGTH;
        });
        if (piece.length < PIECE_LENGTH) return;
        yield piece;
        piece = '';
      }
    }
    for await (const item of items) if (some.push(item) === atOnce) yield* written();
    yield* written();
    yield `${piece}]${after}`;
  }
  const texts = pieces();
  const { value: first = '' } = await texts.next();
  const second = await texts.next();
  if (second.done === true) {
    res.setHeader('Content-Type', JSON_TYPE);
    res.end(first);
    return;
  }
  async function* all(): AsyncGenerator<string> {
    yield first;
    yield second.value ?? '';
    yield* texts;
  }
  await streamTo(res, { 'Content-Type': JSON_TYPE }, all());
}

/** How many long answers clients may read at once for one principal, and for all: each holds what it has read and not written yet. */
const OF_PRINCIPAL = 8;
const OF_ALL = 64;
/** The long answers that clients are reading, by principal; the oldest first. */
const longAnswers = new Map<string, Set<Response>>();

function leave(principal: string, res: Response): void {
  const own = longAnswers.get(principal);
  if (own?.delete(res) && own.size === 0) longAnswers.delete(principal);
}

/** At the limit of all, the principal with most long answers loses its oldest one. So others can begin one although many clients read slowly. */
function enter(principal: string, res: Response): void {
  const own = longAnswers.get(principal) ?? new Set();
  if (own.has(res)) return;
  if (own.size >= OF_PRINCIPAL) {
    const detail = `Your clients may read ${OF_PRINCIPAL} long answers at once. Try again when they have read one of them.`;
    throw new AppError('too_many_requests', detail, { retryAfter: 1 });
  }
  const all = [...longAnswers];
  if (all.reduce((sum, [, { size }]) => sum + size, 0) >= OF_ALL) {
    const [greatest, [oldest] = []] = all.reduce((most, others) => (others[1].size > most[1].size ? others : most));
    if (oldest !== undefined) leave(greatest, oldest.destroy());
  }
  longAnswers.set(principal, own.add(res));
}

/** Writes the texts as the client reads them. Resolves also if the client leaves. Throws AppError `too_many_requests`. */
export async function streamTo(
  res: Response,
  headers: Readonly<Record<string, string>>,
  texts: AsyncIterable<string>,
): Promise<void> {
  const principal = contextOf(res).admission?.principal.sub ?? '';
  enter(principal, res);
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
  try {
    await pipeline(texts, res);
  } catch (error) {
    // A client that has disconnected needs no answer.
    if ((error as { code?: string }).code !== 'ERR_STREAM_PREMATURE_CLOSE') throw error;
  } finally {
    leave(principal, res);
  }
}

/** How many items of a list are read at once whose items can have hundreds of kilobytes. */
const ITEMS_READ = 4;
const reads = createSpareTurns({ mostUnderWay: 1, longestRestMs: 25, mostWaiting: 100, mostAtOnce: 1 });

/** Reads the items in parts, each when the thread and the database have time to spare, so that the list is never in memory as a whole. */
async function* readInParts<T>(
  res: Response,
  keys: readonly string[],
  read: (some: readonly string[]) => Promise<readonly T[]>,
): AsyncGenerator<T> {
  const caller = contextOf(res).admission?.principal.sub ?? '';
  for (let at = 0; at < keys.length; at += ITEMS_READ) {
    const end = await reads.come(caller, () => res.closed);
    if (end === null)
      throw new AppError('too_many_requests', 'Too many of your requests for long lists wait.', { retryAfter: 1 });
    const some = await read(keys.slice(at, at + ITEMS_READ)).finally(end);
    yield* some;
  }
}

/**
 * Answers with the items that have these keys, for lists whose items can be so large that reading a few of them takes much of the thread. Such a
 * list is a long answer from the start. Throws AppError `too_many_requests`.
 */
export async function sendLargeList<T>(
  res: Response,
  keys: readonly string[],
  read: (some: readonly string[]) => Promise<readonly T[]>,
  show: (item: T) => object,
): Promise<void> {
  const principal = contextOf(res).admission?.principal.sub ?? '';
  enter(principal, res);
  try {
    await sendList(res, '', whileAllowed(res, readInParts(res, keys, read)), show, '', ITEMS_READ);
  } finally {
    leave(principal, res);
  }
}

/** Sets the Link header to the page that starts after `key`. */
export function linkNext(req: Request, res: Response, page: Page, key: string): void {
  const given = Object.entries(req.query as Record<string, string | string[]>);
  const query = new URLSearchParams(
    given.flatMap(([name, value]) => [value].flat().map((each): [string, string] => [name, each])),
  );
  query.set('cursor', Buffer.from(key).toString('base64url'));
  query.set('limit', String(page.limit));
  res.setHeader('Link', `<${req.baseUrl}${req.path === '/' ? '' : req.path}?${query}>; rel="next"`);
}
