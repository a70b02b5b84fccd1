/** Answers of heavy work over HTTP. Whoever disconnects ends the work; whoever takes NDJSON is told how far it is. */
import type { Request, Response } from 'express';
import { AppError } from '../../errors.ts';
import { admissionOf } from '../../http/context.ts';
import { showRevision } from '../routes.ts';
import type { AskedBy } from './heavy.ts';
import type { HeavyAnswer } from './jobs.ts';

export const NDJSON = 'application/x-ndjson';

/** The body as it came, for the thread to read. */
export const bytesOf = (req: Request): { readonly body: Uint8Array | null } => ({
  body: req.body instanceof Uint8Array ? req.body : null,
});

/** Aborted when the client has gone before it had its answer. */
export function leavingOf(res: Response): AbortSignal {
  const leaving = new AbortController();
  res.once('close', () => leaving.abort(new AppError('unavailable', 'The client has disconnected.')));
  return leaving.signal;
}

export async function answerWork(req: Request, res: Response, work: (asked: AskedBy) => Promise<HeavyAnswer>): Promise<void> {
  const signal = leavingOf(res);
  const asked: AskedBy = { by: admissionOf(res).principal.sub, signal };
  try {
    if (req.accepts(['json', NDJSON]) === NDJSON) await inLines(res, (said) => work({ ...asked, onProgress: said }));
    else {
      const { json, position } = await work(asked);
      showRevision(res, position);
      res.setHeader('Content-Type', 'application/json; charset=utf-8').end(json);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** A line for the progress now and then, and one for the result, or for the error where lines have been sent already. */
async function inLines(res: Response, work: (said: (progress: object) => void) => Promise<HeavyAnswer>): Promise<void> {
  const begin = (): void => {
    if (!res.headersSent) res.setHeader('Content-Type', NDJSON);
  };
  try {
    const { json } = await work((progress) => {
      begin();
      res.write(`${JSON.stringify({ progress })}\n`);
    });
    begin();
    res.write('{"result":');
    res.write(json);
    res.end('}\n');
  } catch (error) {
    if (!res.headersSent || !(error instanceof AppError)) throw error;
    const { code, message, errors } = error;
    res.end(`${JSON.stringify({ error: { code, detail: message, ...(errors === undefined ? {} : { errors }) } })}\n`);
  }
}
