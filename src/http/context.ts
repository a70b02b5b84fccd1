/** What the middlewares learn of a request, typed. */
import type { Response } from 'express';
import type { Admission } from '../auth/admission.ts';
import { AppError } from '../errors.ts';

export interface RequestContext {
  /** In the `X-Request-Id` of the answer, in the log, and in the record of changes. */
  readonly requestId: string;
  /** Set once the caller is known. */
  admission?: Admission;
}

const contexts = new WeakMap<object, RequestContext>();

export function openContext(res: Response, context: RequestContext): void {
  contexts.set(res, context);
}

export function contextOf(res: Response): RequestContext {
  const context = contexts.get(res);
  if (!context) throw new Error('The request has no context: a route is mounted before openContext');
  return context;
}

/** The authenticated caller and the state it was admitted to; only for routes behind authentication. */
export function admissionOf(res: Response): Admission {
  const { admission } = contextOf(res);
  if (!admission) throw new AppError('unauthenticated', 'Send a bearer token in the Authorization header.');
  return admission;
}
