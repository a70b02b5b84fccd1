/** Sends the answers of heavy work, and ends the work if the client disconnects. Clients that accept NDJSON get the progress. */
import type { Request, Response } from 'express';
import type { Owners } from '../../auth/rights.ts';
import { AppError } from '../../base/errors.ts';
import { admissionOf, heldOf, signalOf } from '../../http/context.ts';
import type { AskedBy } from '../../policies/heavy/heavy.ts';
import type { HeavyAnswer } from '../../policies/heavy/jobs.ts';
import { plannableOwners } from '../../policies/owners.ts';
import { showRevision } from './routes.ts';

const NDJSON = 'application/x-ndjson';

/** Paths under `/api` whose bodies may be large: the routes get them as bytes, and a thread parses them. */
export const LEFT_BODIES = /^\/policies\/(plan|apply|rollback\/plan|order\/plan|simulate|test)$/;

/** Returns the raw body and the owners whose policies the caller may plan, for the thread to read and check. */
export const bytesOf = (req: Request, res: Response): { readonly body: Uint8Array | null; readonly owners: Owners } => ({
  body: req.body instanceof Uint8Array ? req.body : null,
  owners: plannableOwners(heldOf(res)),
});

/** The signal is aborted when the client disconnects before it has its answer. */
export type Asking = AskedBy & { readonly signal: AbortSignal };

export async function answerWork(req: Request, res: Response, work: (asked: Asking) => Promise<HeavyAnswer>): Promise<void> {
  const signal = signalOf(res);
  const asked: Asking = { by: admissionOf(res).principal.sub, signal };
  try {
    if (req.accepts(['json', NDJSON]) === NDJSON) await inLines(res, (said) => work({ ...asked, onProgress: said }));
    else {
      const { json, position } = await work(asked);
      // Work that others share goes on without this client.
      if (signal.aborted) return;
      showRevision(res, position);
      res.setHeader('Content-Type', 'application/json; charset=utf-8').end(json);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Writes a line for each progress report and one for the result. After a line has been sent, an error becomes a line, too. */
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
