/** Request bodies: bounded, JSON alone, and with one reading (law 9). */
import type { IncomingMessage } from 'node:http';
import type { RequestHandler } from 'express';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';
import { readJson } from './json.ts';

const JSON_TYPE = /^application\/json[\t ]*(;[\t ]*(charset[\t ]*=[\t ]*("utf-8"|utf-8)[\t ]*(;[\t ]*)?)?)?$/i;

/** Far above the largest policy. Each bad member is named in the answer, so that their number must be bounded. */
const MAX_VALUES = 10_000;

/** The whole body. Throws AppError `too_large` without reading on, and `invalid_request` when it breaks off. */
export async function readBytes(req: IncomingMessage, limit: number): Promise<Buffer> {
  const tooLarge = (): AppError => new AppError('too_large', `The body must have at most ${limit} bytes.`);
  if (Number(req.headers['content-length'] ?? 0) > limit) throw tooLarge();
  const chunks: Buffer[] = [];
  let size = 0;
  return new Promise((resolve, reject) => {
    const leave = (): void => void req.off('data', take).off('end', whole).off('error', broken).off('close', broken);
    const stop = (error: AppError): void => {
      leave();
      req.pause();
      // Nobody hears of what breaks afterwards.
      req.on('error', () => undefined);
      reject(error);
    };
    const broken = (): void => stop(new AppError('invalid_request', 'The body is not complete.'));
    const whole = (): void => {
      leave();
      resolve(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks, size));
    };
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      if (size > limit) stop(tooLarge());
      else chunks.push(chunk);
    };
    req.on('data', take);
    req.on('end', whole).on('error', broken).on('close', broken);
  });
}

function checkContentType(req: IncomingMessage): void {
  const encoding = req.headers['content-encoding'];
  const types = req.headersDistinct['content-type'] ?? [];
  if (types.length !== 1 || !JSON_TYPE.test(types[0] ?? '') || (encoding !== undefined && encoding !== 'identity')) {
    throw new AppError('unsupported_media_type', 'The body must be application/json in UTF-8, not encoded otherwise.');
  }
}

const hasBody = (req: IncomingMessage): boolean =>
  req.headers['transfer-encoding'] !== undefined || Number(req.headers['content-length'] ?? 0) > 0;

const unread = (reason: string, repeated: string | null): FieldError =>
  repeated === null
    ? { path: '', message: `the body is not acceptable JSON: ${reason}` }
    : { path: repeated, message: 'is there a second time' };

/**
 * Puts the parsed body into `req.body`: undefined where there is none. GET, HEAD and DELETE say all in the address, so
 * that a body there is a mistake that should not go unnoticed.
 */
export function jsonBody(limit: number): RequestHandler {
  return async (req, res, next) => {
    req.body = undefined;
    if (!hasBody(req)) return next();
    try {
      if (req.method !== 'POST' && req.method !== 'PUT') throw new AppError('invalid_request', `${req.method} takes no body.`);
      checkContentType(req);
      const bytes = await readBytes(req, limit);
      if (bytes.length > 0) {
        const reading = readJson(bytes, { maxValues: MAX_VALUES });
        if (!reading.ok) throw invalidRequest([unread(reading.reason, reading.repeated)]);
        req.body = reading.value;
      }
    } catch (error) {
      // What is left of the body would be taken for the next request.
      if (!req.complete) res.setHeader('Connection', 'close');
      throw error;
    }
    next();
  };
}
