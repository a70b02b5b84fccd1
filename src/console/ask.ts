/**
 * Carries out operations of REST inside of this process, for the user of a page. The request passes the same `authorize` and the same routes
 * as one over HTTP, so a page can do nothing that its operation forbids.
 */
import { IncomingMessage, ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import { StringDecoder } from 'node:string_decoder';
import express, { type Response } from 'express';
import { AppError } from '../base/errors.ts';
import { readLargeJson, WHOLE } from '../base/json/large.ts';
import { pause } from '../base/turns/slices.ts';
import { contextOf, openContext } from '../http/context.ts';
import { authorizing } from '../rest/authorize.ts';
import { LEFT_BODIES } from '../rest/policies/heavy-answer.ts';
import { type Mount, routeTable } from '../rest/route-table.ts';

export interface Answer<T> {
  readonly body: T;
  /** The query of the next page of a list; null: there is none. */
  readonly next: URLSearchParams | null;
  readonly etag: string | undefined;
}

/**
 * `page`: the answer that the page becomes. Its context has the user. Rejects with the error of the operation. If the browser leaves, the
 * operation learns it as if its own client had left, and the promise may stay open.
 */
export type Ask = <T>(page: Response, method: Method, path: string, body?: object, headers?: AskHeaders) => Promise<Answer<T>>;

export type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';
export interface AskHeaders {
  readonly ifMatch?: string | undefined;
  readonly reason?: string | undefined;
  /** The only revision of the policies that the operation may change. */
  readonly atRevision?: number | undefined;
}

const NEXT = /^<[^?>]*\?([^>]*)>; rel="next"$/;

/**
 * Lets an operation answer the page itself, for example with a long file. Rejects with the error of the operation, if it has sent nothing
 * yet.
 */
export type Pass = (page: Response, path: string) => Promise<void>;

/** `mounts`: the routers under `/api` behind authentication. */
export function createAsk(mounts: readonly Mount[]): { readonly ask: Ask; readonly pass: Pass } {
  const guarded = mounts.map((mount) => ({ ...mount, path: `/api${mount.path}` }));
  const app = express();
  app.disable('x-powered-by').disable('etag').enable('case sensitive routing').enable('strict routing');
  app.use('/api', authorizing(routeTable(guarded)));
  for (const { path, router } of guarded) app.use(path, router);

  let started = Promise.resolve();

  const pass: Pass = (page, path) =>
    new Promise((resolve, reject) => {
      const req = Object.assign(new IncomingMessage(new Socket()), { method: 'GET', url: `/api${path}` });
      req.push(null);
      page.once('close', resolve);
      app(req as never, page as never, (error?: unknown) => reject(error ?? nothingThere()));
    });

  const ask: Ask = async <T>(
    page: Response,
    method: Method,
    path: string,
    body?: object,
    { ifMatch, reason, atRevision }: AskHeaders = {},
  ) => {
    // A page asks many operations at once, for example one for each target. They begin one after the other, with pauses between them.
    started = started.then(pause);
    await started;
    const { text, ...answer } = await new Promise<Omit<Answer<T>, 'body'> & { readonly text: Text }>((resolve, reject) => {
      const given = body !== undefined && LEFT_BODIES.test(path) ? Buffer.from(JSON.stringify(body)) : body;
      const req = Object.assign(new IncomingMessage(new Socket()), { method, url: `/api${path}`, body: given });
      if (ifMatch !== undefined) req.headers['if-match'] = ifMatch;
      // A header holds bytes, and node gives each as a character.
      if (reason !== undefined && reason !== '') req.headers['portcullis-reason'] = Buffer.from(reason).toString('latin1');
      req.push(null);
      const res = new ServerResponse(req);
      // `held` is what the operation of REST makes of it.
      const { requestId, admission } = contextOf(page);
      openContext(res as never, { requestId, atRevision, ...(admission === undefined ? {} : { admission }) });
      const leave = (): void => void res.emit('close');
      page.setMaxListeners(0);
      page.once('close', leave);
      const decoder = new StringDecoder();
      let text = '';
      let whole: Uint8Array | null = null;
      const take = (chunk: unknown): void => {
        whole = text === '' && chunk instanceof Uint8Array ? chunk : null;
        if (typeof chunk === 'string') text += chunk;
        else if (chunk instanceof Uint8Array)
          text += decoder.write(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
      };
      // Express gives the answer a different prototype, so these are members of the answer itself.
      Object.assign(res, {
        write(chunk: unknown) {
          take(chunk);
          return true;
        },
        end(chunk: unknown) {
          take(chunk);
          const link = NEXT.exec(String(res.getHeader('Link') ?? ''))?.[1];
          resolve({
            text: { text, whole },
            etag: res.getHeader('ETag')?.toString(),
            next: link === undefined ? null : new URLSearchParams(link),
          });
          page.off('close', leave);
          leave();
          return res;
        },
      });
      app(req as never, res as never, (error?: unknown) => {
        page.off('close', leave);
        reject(error ?? nothingThere());
      });
    });
    // The markup does not share a slice with the work of a service.
    await pause();
    return { ...answer, body: (await parsed(text, contextOf(page).admission?.principal.sub ?? '')) as T };
  };

  return { ask, pass };
}

/** To parse a longer text at once can take 20 ms. In the lane it takes ten times the work, so shorter texts are parsed at once. */
const LONG_TEXT = 1_536 * 1024;
const RULES = { maxDepth: 1_000, maxValues: Number.POSITIVE_INFINITY, exact: false, spanDepth: 0, selection: WHOLE };

/** `whole`: the bytes of the text, if the operation sent it in one piece. */
interface Text {
  readonly text: string;
  readonly whole: Uint8Array | null;
}

/** By the bytes of an answer that the gateway keeps, such as the analysis of all policies. */
const kept = new WeakMap<Uint8Array, Promise<unknown>>();

/** Returns what the answer of an operation says. A long one is read in the lane. `by`: the user of the page. */
async function parsed({ text, whole }: Text, by: string): Promise<unknown> {
  if (text === '') return null;
  if (text.length <= LONG_TEXT) return JSON.parse(text);
  const known = whole === null ? undefined : kept.get(whole);
  if (known !== undefined) return known;
  const read = (async (): Promise<unknown> => {
    const reading = await readLargeJson(text, RULES, by);
    return reading.ok ? reading.value : JSON.parse(text);
  })();
  if (whole !== null) kept.set(whole, read);
  return read;
}

const nothingThere = (): AppError => new AppError('not_found', 'There is no resource at this path.');
