/** The errors that end a request, each with a stable code. Only `http/problem.ts` turns them into responses. */

export const ERRORS = {
  invalid_request: { status: 400, title: 'The request is not valid' },
  unauthenticated: { status: 401, title: 'A bearer token is required' },
  invalid_token: { status: 401, title: 'The token is not valid' },
  invalid_credentials: { status: 401, title: 'E-mail or password is wrong' },
  forbidden: { status: 403, title: 'Not allowed' },
  registration_closed: { status: 403, title: 'Registration is closed' },
  local_sign_in_off: { status: 403, title: 'Local sign-in is off' },
  setup_code_required: { status: 403, title: 'The setup code is required' },
  host_not_allowed: { status: 403, title: 'The Host header is not allowed' },
  origin_not_allowed: { status: 403, title: 'The Origin header is not allowed' },
  not_found: { status: 404, title: 'Not found' },
  method_not_allowed: { status: 405, title: 'Method not allowed' },
  not_acceptable: { status: 406, title: 'Not acceptable' },
  email_taken: { status: 409, title: 'The e-mail is taken' },
  identity_taken: { status: 409, title: 'The identity is taken' },
  provider_taken: { status: 409, title: 'The provider exists already' },
  target_name_taken: { status: 409, title: 'The target name is taken' },
  managed_by_files: { status: 409, title: 'The policy belongs to a file' },
  outside_limits: { status: 409, title: 'Policies are outside the limits of their owner' },
  limits_undecided: { status: 409, title: 'It is unknown whether policies are within the limits of their owner' },
  owner_in_use: { status: 409, title: 'The owner has policies' },
  invariant_broken: { status: 409, title: 'An invariant would be broken' },
  invariant_undecided: { status: 409, title: 'It is unknown whether an invariant would be broken' },
  target_in_use: { status: 409, title: 'The target is used by policies' },
  last_administrator: { status: 409, title: 'The last administrator must stay' },
  tests_failed: { status: 409, title: 'Policy tests failed' },
  limit_reached: { status: 409, title: 'A limit has been reached' },
  precondition_failed: { status: 412, title: 'The resource has changed' },
  too_large: { status: 413, title: 'The request is too large' },
  unsupported_media_type: { status: 415, title: 'The media type is not supported' },
  too_many_requests: { status: 429, title: 'Too many requests' },
  internal: { status: 500, title: 'Internal error' },
  not_supported: { status: 501, title: 'Not supported' },
  retry: { status: 503, title: 'The state changed too often' },
  unavailable: { status: 503, title: 'Temporarily unavailable' },
} as const satisfies Record<string, { status: number; title: string }>;

export type ErrorCode = keyof typeof ERRORS;

/** One wrong member of a request. `path` is dotted, with array indices (`subjects.0.subject_type`); empty for the whole body. */
export interface FieldError {
  readonly path: string;
  readonly message: string;
  /** The position in a file that the request contains; line and column count from 1. */
  readonly file?: string;
  readonly line?: number;
  readonly column?: number;
}

interface AppErrorOptions {
  readonly errors?: readonly FieldError[] | undefined;
  /** The Retry-After value in seconds, for 429 and 503. */
  readonly retryAfter?: number | undefined;
  /** Further members of the problem document. */
  readonly more?: Readonly<Record<string, unknown>> | undefined;
  readonly cause?: unknown;
}

/** `message` is shown to the caller as `detail`; `cause` is only logged. */
export class AppError extends Error {
  readonly code: ErrorCode;
  readonly errors: readonly FieldError[] | undefined;
  readonly retryAfter: number | undefined;
  readonly more: Readonly<Record<string, unknown>> | undefined;

  constructor(code: ErrorCode, detail: string, options: AppErrorOptions = {}) {
    super(detail, { cause: options.cause });
    this.name = 'AppError';
    this.code = code;
    this.errors = options.errors;
    this.retryAfter = options.retryAfter;
    this.more = options.more;
  }

  get status(): number {
    return ERRORS[this.code].status;
  }
}

/** Returns the error for a request with wrong members, with one entry for each. */
export function invalidRequest(errors: readonly FieldError[]): AppError {
  return new AppError('invalid_request', errors.map((e) => (e.path === '' ? e.message : `${e.path}: ${e.message}`)).join('; '), {
    errors,
  });
}
