/** Requests of directories: their tokens, bodies and turns. */
import type { IncomingMessage } from 'node:http';
import type { Request, RequestHandler, Response } from 'express';
import { authorizationOf } from '../auth/verify.ts';
import { isOverdrawn, type Stock, type Taken } from '../base/budgets.ts';
import { AppError } from '../base/errors.ts';
import type { JsonValue } from '../base/json/json.ts';
import { decodeLarge, readLargeJson, WHOLE } from '../base/json/large.ts';
import { inTurnOf } from '../base/turns/caller-turns.ts';
import type { Database } from '../db/database.ts';
import { readBytes } from '../http/body.ts';
import { bodyLength } from '../http/body-length.ts';
import { contextOf } from '../http/context.ts';
import { type RateLimits, refuseLater } from '../http/limits/rate-limit.ts';
import { turnOfStranger } from '../http/limits/strangers.ts';
import { invalid } from './errors.ts';
import { authenticated, createStoredTokens, hashOfToken, type Session } from './session.ts';

export interface RequestParts {
  readonly database: Database;
  readonly limits: Pick<RateLimits, 'scim'>;
  /** Bytes of large bodies under way, shared with REST and MCP. */
  readonly bodies: Stock;
  readonly addressOf: (req: IncomingMessage) => string;
}

/** A group of 10,000 members has about half of this. */
const BODY_BYTES = 2 * 1024 * 1024;
const MAX_VALUES = 100_000;
const MAX_DEPTH = 16;
/**
 * The requests of one directory that are handled at once. Changes run one at a time anyway, and on SQLite each statement of a waiting
 * request would come before the records of other callers.
 */
const AT_ONCE = 2;
/** The requests of one directory that wait for their turn. */
const MOST_WAITING = 100;
const TYPES = /^application\/(scim\+)?json[\t ]*(;[\t ]*(charset[\t ]*=[\t ]*("utf-8"|utf-8)[\t ]*(;[\t ]*)?)?)?$/i;
const BEARER = /^bearer +([A-Za-z0-9_-]{1,128})$/i;

export type Handle = (req: Request, res: Response, session: Session, body: JsonValue) => Promise<void>;

export function createRequests({ database, limits, bodies, addressOf }: RequestParts) {
  const isStored = createStoredTokens(database.knex);

  async function authenticate(req: Request, res: Response): Promise<Session> {
    const authorization = authorizationOf(req);
    const address = addressOf(req);
    if (authorization === undefined || !/^bearer(\s|$)/i.test(authorization)) {
      await refuseLater(req, address, limits.scim(address));
      throw new AppError('unauthenticated', 'Send the SCIM token of the provider as a bearer token in the Authorization header.');
    }
    const token = BEARER.exec(authorization)?.[1] ?? '';
    if (!(await isStored(hashOfToken(token)))) {
      // Looking up one wrong token after the other must not keep the database from other callers.
      await refuseLater(req, address, limits.scim(address, 0));
      await turnOfStranger(res, address);
    }
    try {
      return await authenticated(database.knex, String(req.params['provider']), token, contextOf(res).requestId);
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'invalid_token') throw error;
      await refuseLater(req, address, limits.scim(address));
      throw error;
    }
  }

  /** How many requests of each directory wait or are handled. */
  const begun = new Map<string, number>();

  /** Throws AppError `too_many_requests` if too many requests of the directory wait already. */
  async function inTurn(key: string, work: () => Promise<void>): Promise<void> {
    const count = begun.get(key) ?? 0;
    if (count >= MOST_WAITING + AT_ONCE) throw tooMany();
    begun.set(key, count + 1);
    try {
      await inTurnOf(key, AT_ONCE, work);
    } finally {
      const left = (begun.get(key) ?? 1) - 1;
      if (left > 0) begun.set(key, left);
      else begun.delete(key);
    }
  }

  /** `taken`: the bytes of the body, which the caller gives back when the request has been handled. */
  async function readBody(req: Request, key: string, taken: Taken): Promise<JsonValue> {
    const encoding = req.headers['content-encoding'];
    const types = req.headersDistinct['content-type'] ?? [];
    if (types.length !== 1 || !TYPES.test(types[0] ?? '') || (encoding !== undefined && encoding !== 'identity'))
      throw new AppError(
        'unsupported_media_type',
        'The body must be application/scim+json or application/json in UTF-8, without a content encoding.',
      );
    const bytes = await readBytes(req, BODY_BYTES, (more) => (taken.grow(more) === null ? null : tooMuch()));
    const text = await decodeLarge(bytes, key);
    if (text === null) throw invalid('invalidSyntax', 'The body is not valid UTF-8.');
    const reading = await readLargeJson(text, { selection: WHOLE, maxValues: MAX_VALUES, maxDepth: MAX_DEPTH }, key);
    if (reading.ok) return reading.value;
    const reason = reading.repeated === null ? reading.reason : `${reading.repeated} may appear only once`;
    throw invalid('invalidSyntax', `The body is not acceptable JSON: ${reason}.`);
  }

  /**
   * Returns the handler of a route. The token is checked before the body is read, and again in each change. The turn comes when the body has
   * arrived, so that a slow body keeps no other request waiting.
   */
  return function handling(takes: 'body' | 'nothing', handle: Handle): RequestHandler {
    return async (req, res) => {
      let taken: Taken | null = null;
      try {
        const session = await authenticate(req, res);
        const key = `scim ${session.provider.id}`;
        const length = bodyLength(req);
        if (takes === 'nothing' && length !== 0) throw new AppError('invalid_request', `${req.method} takes no body.`);
        if (takes === 'body' && length === 0) throw invalid('invalidSyntax', 'The request must have a body.');
        if (takes === 'body') {
          const room = bodies.take(key, 0);
          if (isOverdrawn(room)) throw tooMuch();
          taken = room;
        }
        const body = taken === null ? null : await readBody(req, key, taken);
        await inTurn(key, async () => {
          if (!res.closed) await handle(req, res, session, body);
        });
      } catch (error) {
        // Otherwise the rest of the body would be read as the next request.
        if (!req.complete) res.setHeader('Connection', 'close');
        throw error;
      } finally {
        taken?.giveBack();
      }
    };
  };
}

const tooMany = (): AppError =>
  new AppError('too_many_requests', 'Too many requests of this directory wait. Try again when other requests have ended.', {
    retryAfter: 1,
  });

const tooMuch = (): AppError =>
  new AppError('too_many_requests', 'Too many bytes of requests are in flight. Try again when other requests have ended.', {
    retryAfter: 1,
  });
