/** Structured logs: one JSON object a line on standard output. */
import pino from 'pino';
import type { Config } from './config.ts';

export type Log = Pick<pino.Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** Members that may hold a secret are cut out wherever they stand at the first two levels of a record. */
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

export function createLog(level: Config['logLevel'], destination?: pino.DestinationStream): Log {
  const options: pino.LoggerOptions = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    redact: { paths: SECRET_MEMBERS.flatMap((member) => [member, `*.${member}`]), censor: '[redacted]' },
    serializers: { err: withoutBindings },
  };
  return destination ? pino(options, destination) : pino(options);
}

/** An error with its causes. Of database errors only the code is kept: their messages repeat the SQL with what was bound to it. */
function withoutBindings(error: unknown): object {
  if (!(error instanceof Error)) return { message: String(error) };
  const { code, sqlMessage } = error as { code?: string; sqlMessage?: string };
  const isDatabase = sqlMessage !== undefined || /^(SQLITE|ER)_/.test(code ?? '');
  return {
    type: error.name,
    code,
    message: isDatabase ? `database error ${code}` : error.message,
    stack: isDatabase ? undefined : error.stack,
    ...(error.cause === undefined ? {} : { cause: withoutBindings(error.cause) }),
  };
}
