/** Structured logs: one JSON object per line on standard output. */
import pino from 'pino';
import { openStandardOutput } from './output.ts';

export type LogLevel = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'silent';

export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** Members that may hold a secret. They are redacted in the first two levels of a record. */
const SECRET_MEMBERS = [
  'authorization',
  'cookie',
  'password',
  'current_password',
  'new_password',
  'password_hash',
  'token',
  'value',
  'sealed',
];

export function createLog(level: LogLevel, destination?: pino.DestinationStream): Log {
  const options: pino.LoggerOptions = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: { paths: SECRET_MEMBERS.flatMap((member) => [member, `*.${member}`]), censor: '[redacted]' },
    serializers: { err: withoutBindings },
    hooks: onceForFullDisk(),
  };
  return pino(options, destination ?? standardOutput());
}

let opened: pino.DestinationStream | null = null;

function standardOutput(): pino.DestinationStream {
  opened ??= openStandardOutput(linesLost);
  return opened;
}

const linesLost = (lines: number): string =>
  `${JSON.stringify({ level: pino.levels.values['warn'], time: new Date().toISOString(), lines, msg: 'lines of this log were lost' })}\n`;

/** The error codes for a full disk in SQLite, MySQL, MariaDB and the file system. */
const DISK_FULL = new Set(['SQLITE_FULL', 'ER_DISK_FULL', 'ER_DISK_FULL_NOWAIT', 'ER_RECORD_FILE_FULL', 'ENOSPC']);
const SAY_AGAIN_MS = 60_000;

function isDiskFull(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  return DISK_FULL.has((error as NodeJS.ErrnoException).code ?? '') || isDiskFull(error.cause);
}

/**
 * With a full disk, every request and retry fails. Only one line a minute is logged, with the number of lines left out, because
 * the log may be on the same disk.
 */
function onceForFullDisk(): pino.LoggerOptions['hooks'] {
  let saidAt = Number.NEGATIVE_INFINITY;
  let left_out = 0;
  return {
    logMethod(args, method) {
      const [record, ...more] = args as unknown as [unknown, ...string[]];
      if (!isDiskFull((record as { err?: unknown } | null)?.err)) return method.apply(this, args);
      if (performance.now() - saidAt < SAY_AGAIN_MS) {
        left_out++;
        return;
      }
      saidAt = performance.now();
      method.call(this, { ...(record as object), disk_full: true, left_out }, ...more);
      left_out = 0;
    },
  };
}

/**
 * Returns an error with its causes for the log. Database errors keep only their code, because their messages repeat the SQL with
 * its bound values. The message of a SyntaxError repeats the text that was read, and a cause that is no error may be that text.
 */
function withoutBindings(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { code, sqlMessage } = error as { code?: string; sqlMessage?: string };
  const isDatabase = sqlMessage !== undefined || /^(SQLITE|ER)_/.test(code ?? '');
  const plain = isDatabase ? `database error ${code}` : error instanceof SyntaxError ? 'the text cannot be read' : null;
  return {
    type: error.name,
    code,
    message: plain ?? error.message,
    stack: plain === null ? error.stack : undefined,
    ...(error.cause instanceof Error ? { cause: withoutBindings(error.cause) } : {}),
  };
}
