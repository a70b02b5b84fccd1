/** What the middlewares learn about a request, with types. */
import type { Response } from 'express';
import type { Held } from '../auth/rights.ts';
import { AppError } from '../base/errors.ts';
import type { Admission } from '../state/admission.ts';

export interface RequestContext {
  /** The id in the `X-Request-Id` header of the answer, in the log, and in the record of changes. */
  readonly requestId: string;
  /** The only revision of the policies that a change of policies may start from. Only pages set it. */
  readonly atRevision?: number | undefined;
  /** Set when the caller has been admitted. */
  admission?: Admission;
  /** Set when the operation has been authorized. */
  held?: Held;
  /** Set when a handler has asked for it. */
  signal?: AbortSignal;
  /** Admits the caller by the same token, in the state of the call. Set when the caller has been admitted. */
  admit?: () => Promise<Admission>;
  /** Authorizes the same operation in this state. Set when the operation has been authorized. */
  authorize?: (admission: Admission) => Held;
}

const contexts = new WeakMap<object, RequestContext>();

export function openContext(res: Response, context: RequestContext): void {
  contexts.set(res, context);
}

export function contextOf(res: Response): RequestContext {
  const context = contexts.get(res);
  if (!context) throw new Error('The request has no context: a route is mounted in front of openContext');
  return context;
}

/** Returns the authenticated caller and the state that it was admitted under. Only for routes behind authentication. */
export function admissionOf(res: Response): Admission {
  const { admission } = contextOf(res);
  if (!admission) throw new AppError('unauthenticated', 'Send a bearer token in the Authorization header.');
  return admission;
}

/** Why `signalOf` is aborted. Such a request gets no answer. */
export const CLIENT_LEFT = new AppError('unavailable', 'The client has disconnected.');

/** Returns a signal that is aborted when the client disconnects, or has its answer. */
export function signalOf(res: Response): AbortSignal {
  const context = contextOf(res);
  if (context.signal !== undefined) return context.signal;
  const leaving = new AbortController();
  const leave = (): void => leaving.abort(CLIENT_LEFT);
  if (res.destroyed) leave();
  else res.once('close', leave);
  context.signal = leaving.signal;
  return context.signal;
}

/** Returns the rights of the caller. Only for routes behind authorization. */
export function heldOf(res: Response): Held {
  const { held } = contextOf(res);
  if (!held) throw new Error('A route is mounted without authorization');
  return held;
}

/**
 * Admits and authorizes the caller anew, while a long answer is written. Throws AppError `unauthenticated` or `forbidden`. Only for routes
 * behind authorization.
 */
export async function authorizeAgain(res: Response): Promise<void> {
  const { admit, authorize } = contextOf(res);
  if (!admit || !authorize) throw new Error('A route is mounted without authorization');
  authorize(await admit());
}
