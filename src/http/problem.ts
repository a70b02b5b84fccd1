/** Maps errors to responses, for the whole gateway: application/problem+json (RFC 9457). */
import type { ServerResponse } from 'node:http';
import { AppError, ERRORS, type ErrorCode, type FieldError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { endAnswer } from './refused-body.ts';

export interface ProblemDocument {
  /** A name that cannot be fetched: `urn:portcullis:problem:<code>`. */
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly code: ErrorCode;
  readonly request_id: string;
  readonly errors?: readonly FieldError[];
}

export interface Problem {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: ProblemDocument;
}

export interface ProblemContext {
  readonly requestId: string;
  readonly publicUrl: string;
  readonly log: Log;
}

const OUTAGE_CODES = new Set([
  ...['ECONNREFUSED', 'ECONNRESET', 'ETIMEDOUT', 'EPIPE', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'EAI_AGAIN'],
  ...['PROTOCOL_CONNECTION_LOST', 'PROTOCOL_SEQUENCE_TIMEOUT', 'POOL_CLOSED'],
  // Refusals of the server that have the SQLSTATE of a statement error.
  ...['ER_TOO_MANY_USER_CONNECTIONS', 'ER_USER_LIMIT_REACHED', 'ER_BAD_DB_ERROR', 'ER_DBACCESS_DENIED_ERROR'],
  ...['ER_TABLEACCESS_DENIED_ERROR', 'ER_COLUMNACCESS_DENIED_ERROR', 'ER_SPECIFIC_ACCESS_DENIED_ERROR'],
]);

const SQLITE_OUTAGE = /^SQLITE_(BUSY|LOCKED|FULL|IOERR|READONLY|CANTOPEN|CORRUPT|NOTADB|NOMEM|PERM|PROTOCOL|INTERRUPT)(_|$)/;

/**
 * SQLSTATE classes of errors in the statement or its rows. Other classes mean an outage. The SQLSTATE is needed because mysql2
 * has no names for many errors that only MariaDB has.
 */
const ABOUT_STATEMENT = /^(21|22|23|42)/;

/** Whether the error means that the database is unusable (unreachable, full, read-only), not that the gateway has a bug. */
function isOutage(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, sqlState, fatal } = error as Error & { code?: unknown; sqlState?: unknown; fatal?: unknown };
  if (typeof code === 'string' && (OUTAGE_CODES.has(code) || SQLITE_OUTAGE.test(code))) return true;
  if (typeof sqlState === 'string' && !ABOUT_STATEMENT.test(sqlState)) return true;
  // mysql2 marks errors as fatal that end the connection. Closed workers and pools have only their message.
  return (
    fatal === true ||
    error.name === 'KnexTimeoutError' ||
    /SQLite worker has ended|^aborted$|closed state|^Unable to acquire a connection/.test(error.message)
  );
}

/** Errors of Express and its parts carry the HTTP status for the client. */
function clientFault(error: unknown): AppError | null {
  const { status } = error as { status?: unknown };
  if (!(error instanceof Error) || typeof status !== 'number' || status < 400 || status > 499) return null;
  return new AppError('invalid_request', 'The request could not be read: it is malformed.', { cause: error });
}

function toAppError(error: unknown): AppError {
  if (error instanceof AppError) return error;
  if (isOutage(error))
    return new AppError('unavailable', 'The database is unavailable at the moment. Try again.', { retryAfter: 1, cause: error });
  return (
    clientFault(error) ??
    new AppError('internal', 'The gateway failed. Its log has the details under this request_id.', { cause: error })
  );
}

function headersOf(error: AppError, publicUrl: string): Record<string, string> {
  const retryAfter = error.retryAfter ?? (error.status === 503 || error.status === 429 ? 1 : null);
  const challenge = `Bearer resource_metadata="${publicUrl}/.well-known/oauth-protected-resource"`;
  return {
    'Content-Type': 'application/problem+json',
    'Cache-Control': 'no-store',
    ...(retryAfter === null ? {} : { 'Retry-After': String(Math.max(1, Math.ceil(retryAfter))) }),
    ...(error.status === 401
      ? { 'WWW-Authenticate': error.code === 'invalid_token' ? `${challenge}, error="invalid_token"` : challenge }
      : {}),
  };
}

/** Returns the problem response for an error. Logs gateway failures and outages once; refused requests are not logged. */
export function problemOf(error: unknown, { requestId, publicUrl, log }: ProblemContext): Problem {
  const fault = toAppError(error);
  const { status, code } = fault;
  if (status === 500) log.error({ request_id: requestId, err: error }, 'request failed');
  else if (status === 503) log.warn({ request_id: requestId, err: error }, 'request refused');
  return {
    status,
    headers: headersOf(fault, publicUrl),
    body: {
      type: `urn:portcullis:problem:${code}`,
      title: ERRORS[code].title,
      status,
      detail: fault.message,
      code,
      request_id: requestId,
      ...(fault.errors ? { errors: fault.errors } : {}),
      ...fault.more,
    },
  };
}

/** `headers` replace those of the problem. */
export function sendProblem(res: ServerResponse, problem: Problem, headers: Readonly<Record<string, string>> = {}): void {
  if (res.headersSent) {
    // The answer has already begun. Closing the connection shows the client that it is incomplete.
    res.destroy();
    return;
  }
  // Header names are case-insensitive: the later ones replace the earlier ones.
  for (const [name, value] of Object.entries({ ...problem.headers, ...headers })) res.setHeader(name, value);
  res.statusCode = problem.status;
  endAnswer(res, JSON.stringify(problem.body));
}
