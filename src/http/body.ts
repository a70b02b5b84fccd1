/** Reads request bodies: limited in size, JSON only, and with only one possible interpretation (law 9). */
import type { IncomingMessage } from 'node:http';
import type { RequestHandler, Response } from 'express';
import { principalKey } from '../auth/principal.ts';
import { createFlow, type Flow, isOverdrawn, type Overdrawn, type Stock } from '../base/budgets.ts';
import { AppError, type FieldError, invalidRequest } from '../base/errors.ts';
import { type JsonReading, NOT_UTF8, readJson } from '../base/json/json.ts';
import { decodeLarge, readLargeJson, WHOLE } from '../base/json/large.ts';
import { bodyLength } from './body-length.ts';
import { contextOf } from './context.ts';
import { addressGroup, addressOf } from './limits/client-address.ts';
import { beforeRefusal } from './limits/rate-limit.ts';

const JSON_TYPE = /^application\/json[\t ]*(;[\t ]*(charset[\t ]*=[\t ]*("utf-8"|utf-8)[\t ]*(;[\t ]*)?)?)?$/i;

/** `maxValues`: far more than the largest policy needs. */
const RULES = { maxValues: 10_000 };
/** A body up to this size is not charged to its sender. */
const FREE_BYTES = 4 * 1024;
/** This many bytes cost as much as one value. If a body was refused, the number of values that were read is not known. */
const BYTES_PER_VALUE = 512;
const BYTES_PER_WRONG_VALUE = 16;

/** Each chunk takes up to 400 bytes in addition to its own, so this many chunks are joined into one. */
const CHUNKS_AT_ONCE = 64;

/**
 * Returns the body if all of it is here; null: it is not, or it has more than `limit` bytes. A small body usually comes in one packet with its
 * headers. Then node has it, without any listener, as soon as the call stack that delivers the headers has ended.
 */
export function bodyAtHand(req: IncomingMessage, limit: number): Buffer | null {
  const isHere = req.complete && !req.destroyed && req.readableLength > 0 && req.readableLength <= limit;
  return isHere ? (req.read() as Buffer) : null;
}

/**
 * Returns the whole body. Throws AppError `too_large` without reading further, `invalid_request` if the body breaks off, and the
 * error that `count` returns. `count` is called with the size of each chunk.
 */
export async function readBytes(
  req: IncomingMessage,
  limit: number,
  count: (bytes: number) => AppError | null = () => null,
): Promise<Buffer> {
  const tooLarge = (): AppError => new AppError('too_large', `The body must have at most ${limit} bytes.`);
  if (Number(req.headers['content-length'] ?? 0) > limit) throw tooLarge();
  await null;
  // If the client left while its request waited, no further event comes. The caller would wait for ever and keep its budget.
  if (req.destroyed) throw incomplete();
  const body = bodyAtHand(req, limit);
  if (body !== null) {
    const refused = count(body.length);
    if (refused !== null) throw refused;
    return body;
  }
  const chunks: Buffer[] = [];
  let joined = 0;
  let size = 0;
  return new Promise((resolve, reject) => {
    const leave = (): void => void req.off('data', take).off('end', whole).off('error', broken).off('close', broken);
    const stop = (error: AppError): void => {
      leave();
      req.pause();
      // Later errors of the request are ignored: it has been refused.
      req.on('error', () => undefined);
      reject(error);
    };
    const broken = (): void => stop(incomplete());
    const whole = (): void => {
      leave();
      resolve(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, size));
    };
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      const refused = size > limit ? tooLarge() : count(chunk.length);
      if (refused !== null) {
        stop(refused);
        return;
      }
      chunks.push(chunk);
      if (chunks.length - joined < CHUNKS_AT_ONCE) return;
      chunks.push(Buffer.concat(chunks.splice(joined)));
      joined++;
    };
    req.on('data', take);
    req.on('end', whole).on('error', broken).on('close', broken);
  });
}

const incomplete = (): AppError => new AppError('invalid_request', 'The body is not complete.');

function checkContentType(req: IncomingMessage): void {
  const encoding = req.headers['content-encoding'];
  const types = req.headersDistinct['content-type'] ?? [];
  if (types.length !== 1 || !JSON_TYPE.test(types[0] ?? '') || (encoding !== undefined && encoding !== 'identity')) {
    throw new AppError('unsupported_media_type', 'The body must be application/json in UTF-8, without a content encoding.');
  }
}

const hasBody = (req: IncomingMessage): boolean => bodyLength(req) !== 0;

const unread = (reason: string, repeated: string | null): FieldError =>
  repeated === null
    ? { path: '', message: `the body is not acceptable JSON: ${reason}` }
    : { path: repeated, message: 'may appear only once' };

/** Runs `then` only for requests with a body. */
export function ifBody(then: RequestHandler): RequestHandler {
  return (req, res, next) => (hasBody(req) ? then(req, res, next) : next());
}

/** Returns a counter for the bytes of a principal's requests in flight; undefined if the sender needs no token. */
function countedFor(res: Response, underWay: Stock): ((bytes: number) => AppError | null) | undefined {
  const principal = contextOf(res).admission?.principal;
  if (principal === undefined) return undefined;
  const taken = underWay.take(principalKey(principal), 0);
  if (isOverdrawn(taken)) throw tooMuch(taken);
  res.once('close', taken.giveBack);
  return (bytes) => {
    const refused = taken.grow(bytes);
    if (refused === null) return null;
    taken.giveBack();
    return tooMuch(refused);
  };
}

function tooMuch({ overdrawn, limit }: Overdrawn): AppError {
  const whose = overdrawn === 'key' ? 'your requests' : 'the requests of all users';
  const detail = `Too many bytes of ${whose} are in flight: the limit is ${limit}. Try again when other requests have ended.`;
  return new AppError('too_many_requests', detail, { retryAfter: 1 });
}

const isTooMany = (error: unknown): boolean => error instanceof AppError && error.code === 'too_many_requests';

/** Returns the JSON value of the body, for threads: it may take long. Throws AppError `invalid_request`. */
export function parseBody(bytes: Uint8Array): unknown {
  return acceptable(readJson(bytes, RULES));
}

function acceptable(reading: JsonReading): unknown {
  if (!reading.ok) throw invalidRequest([unread(reading.reason, reading.repeated)]);
  return reading.value;
}

/** Who sends a body, for budgets. */
function senderOf(req: IncomingMessage, res: Response, trustProxy: boolean): string {
  const principal = contextOf(res).admission?.principal;
  return principal === undefined ? `address ${addressGroup(addressOf(req, trustProxy))}` : principalKey(principal);
}

/** The cost of a body, in values. Bodies up to FREE_BYTES are not charged, and never wait for a debt. */
function costOf(bytes: number, reading: JsonReading | null): number {
  return bytes / BYTES_PER_VALUE + (reading === null ? 0 : reading.ok ? reading.values : bytes / BYTES_PER_WRONG_VALUE);
}

/** The values that are read for each sender and for all. To read and check one takes about a microsecond. */
export const createReading = (now: () => number): Flow =>
  createFlow({ perKey: { perSecond: 20_000, burst: 100_000 }, all: { perSecond: 60_000, burst: 300_000 } }, now);

function inDebt(wait: number): AppError {
  const retryAfter = Math.ceil(wait);
  const detail = `You have sent more values and bytes than the gateway reads for one caller. Try again in ${retryAfter} s.`;
  return new AppError('too_many_requests', detail, { retryAfter });
}

export interface BodyParts {
  readonly limitOf: (res: Response) => number;
  readonly reading: Flow;
  readonly trustProxy: boolean;
  /** If it returns true, `req.body` gets the raw bytes for the handler to parse. */
  readonly isLeft?: (req: IncomingMessage & { readonly path: string }) => boolean;
  /** Limits the bytes of bodies in flight, per principal and in total; null: the senders need no token, and their bodies are small. */
  readonly underWay: Stock | null;
}

/**
 * Puts the parsed body into `req.body`; undefined if there is none. A body with GET, HEAD or DELETE is refused: those requests
 * are described by their address alone, so a body is a mistake.
 */
export function jsonBody({ limitOf, reading, trustProxy, isLeft = () => false, underWay }: BodyParts): RequestHandler {
  async function receive(req: IncomingMessage & { readonly path: string }, res: Response): Promise<unknown> {
    const limit = limitOf(res);
    if (req.method !== 'POST' && req.method !== 'PUT') throw new AppError('invalid_request', `${req.method} takes no body.`);
    checkContentType(req);
    const sender = senderOf(req, res, trustProxy);
    const wait = (bodyLength(req) ?? Number.POSITIVE_INFINITY) > FREE_BYTES ? reading.wait(sender) : 0;
    if (wait > 0) throw inDebt(wait);
    const bytes = await readBytes(req, limit, underWay === null ? undefined : countedFor(res, underWay));
    if (bytes.length === 0) return undefined;
    const left = isLeft(req);
    const text = left ? '' : await decodeLarge(bytes, sender);
    const read = left ? null : text === null ? NOT_UTF8 : await readLargeJson(text, { ...RULES, selection: WHOLE }, sender);
    if (bytes.length > FREE_BYTES) reading.charge(sender, costOf(bytes.length, read));
    return read === null ? bytes : acceptable(read);
  }

  return async (req, res, next) => {
    req.body = undefined;
    if (!hasBody(req)) return next();
    try {
      req.body = await receive(req, res);
    } catch (error) {
      // Otherwise the rest of the body would be read as the next request.
      if (!req.complete) res.setHeader('Connection', 'close');
      if (!req.complete || isTooMany(error)) await beforeRefusal(req, senderOf(req, res, trustProxy));
      throw error;
    }
    next();
  };
}
