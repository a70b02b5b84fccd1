/** Errors in the form of SCIM (RFC 7644, section 3.12). */
import { AppError, type ErrorCode } from '../base/errors.ts';
import type { Problem } from '../http/problem.ts';

export type ScimType =
  | 'invalidFilter'
  | 'uniqueness'
  | 'mutability'
  | 'invalidSyntax'
  | 'invalidPath'
  | 'noTarget'
  | 'invalidValue'
  | 'invalidVers';

export class ScimError extends AppError {
  readonly scimType: ScimType;

  constructor(code: ErrorCode, scimType: ScimType, detail: string) {
    super(code, detail);
    this.scimType = scimType;
  }
}

/** Returns the error for a request that is not valid. */
export const invalid = (scimType: ScimType, detail: string): ScimError => new ScimError('invalid_request', scimType, detail);

export const ERROR_SCHEMA = 'urn:ietf:params:scim:api:messages:2.0:Error';

/** Returns the body of an answer with this problem. `error`: what was thrown. */
export function errorDocument({ status, body: { detail, code } }: Pick<Problem, 'status' | 'body'>, error: unknown) {
  const scimType = error instanceof ScimError ? error.scimType : code === 'invalid_request' ? 'invalidSyntax' : undefined;
  return { schemas: [ERROR_SCHEMA], status: String(status), ...(scimType === undefined ? {} : { scimType }), detail };
}
