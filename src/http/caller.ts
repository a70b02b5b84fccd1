/** Who makes an authenticated request, and what their role lets them do. */
import type { RequestHandler, Response } from 'express';
import type { Caller } from '../auth/administer.ts';
import { AppError } from '../errors.ts';
import { ADMIN } from '../users/store.ts';
import { admissionOf, contextOf } from './context.ts';

export function callerOf(res: Response): Caller {
  return { principal: admissionOf(res).principal, requestId: contextOf(res).requestId };
}

/** Refuses callers with none of the roles. Administrators may do whatever a role may. */
export function requireRole(...roles: readonly string[]): RequestHandler {
  return (_req, res, next) => {
    const { role } = admissionOf(res).principal;
    if (role !== ADMIN && !roles.includes(role)) {
      throw new AppError('forbidden', `Only the role ${[ADMIN, ...roles.filter((r) => r !== ADMIN)].join(' or ')} may do this.`);
    }
    next();
  };
}
