/** Returns who makes an authenticated request, and why. */
import type { Response } from 'express';
import type { Caller } from '../auth/caller.ts';
import { managesAll } from '../auth/rights.ts';
import { invalidRequest } from '../base/errors.ts';
import { admissionOf, contextOf, signalOf } from './context.ts';

export const REASON_HEADER = 'Portcullis-Reason';
/** The maximum length of a reason, in characters. */
export const REASON_MAX = 1024;

/** Returns the caller. Throws AppError `invalid_request` if the reason cannot be stored exactly as it was sent. */
export function callerOf(res: Response): Caller {
  const { requestId, atRevision, held } = contextOf(res);
  return {
    ...{ principal: admissionOf(res).principal, requestId, reason: reasonOf(res), atRevision },
    managesAll: held !== undefined && managesAll(held),
    signal: signalOf(res),
  };
}

/** Reads the reason. The header is UTF-8, but node returns each byte as a character. */
function reasonOf(res: Response): string | null {
  const given = res.req.get(REASON_HEADER);
  if (given === undefined || given === '') return null;
  const reason = Buffer.from(given, 'latin1').toString();
  if (/\p{Cc}|\ufffd/u.test(reason) || [...reason].length > REASON_MAX) {
    const message = `must be UTF-8 without control characters, at most ${REASON_MAX} characters`;
    throw invalidRequest([{ path: REASON_HEADER, message }]);
  }
  return reason;
}
