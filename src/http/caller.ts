/** Who makes an authenticated request, and what they may do with the REST API. */
import type { RequestHandler, Response } from 'express';
import type { Caller } from '../auth/administer.ts';
import { AppError } from '../errors.ts';
import { admissionOf, contextOf } from './context.ts';

export function callerOf(res: Response): Caller {
  return { principal: admissionOf(res).principal, requestId: contextOf(res).requestId };
}

/** Lets callers with one of these roles pass. */
export function requireRole(...roles: readonly string[]): RequestHandler {
  return (_req, res, next) => {
    if (!roles.includes(admissionOf(res).principal.role))
      throw new AppError('forbidden', `This needs the role ${roles.join(' or ')}.`);
    next();
  };
}
