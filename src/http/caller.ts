/** Who makes an authenticated request. */
import type { Response } from 'express';
import type { Caller } from '../auth/administer.ts';
import { admissionOf, contextOf } from './context.ts';

export function callerOf(res: Response): Caller {
  return { principal: admissionOf(res).principal, requestId: contextOf(res).requestId };
}
