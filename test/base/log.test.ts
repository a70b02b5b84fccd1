import test from 'ava';
import { createLog } from '../../src/base/log.ts';

test('a full disk is logged once a minute, and each other failure is logged', (t) => {
  const lines: Record<string, unknown>[] = [];
  const log = createLog('info', { write: (line: string) => void lines.push(JSON.parse(line)) });
  const failed = (code: string) => Object.assign(new Error(code), { code });
  for (const code of ['SQLITE_FULL', 'ER_RECORD_FILE_FULL', 'ENOSPC']) {
    log.error({ err: failed(code) }, 'a decision could not be recorded');
    log.warn({ err: new Error('refused', { cause: failed(code) }) }, 'request refused');
  }
  log.error({ err: failed('SQLITE_BUSY') }, 'busy');
  log.error({ err: failed('SQLITE_BUSY') }, 'busy');
  log.info('text alone');
  t.deepEqual(
    lines.map(({ msg, disk_full = false }) => [msg, disk_full]),
    [
      ['a decision could not be recorded', true],
      ['busy', false],
      ['busy', false],
      ['text alone', false],
    ],
  );
});

test('what was read from others is not logged with an error', (t) => {
  const lines: string[] = [];
  const log = createLog('info', { write: (line: string) => void lines.push(line) });
  const secret = 'gho_16C7e42F292c6912E7710c838347';
  for (const text of [secret, `{"access_token":${secret}`]) {
    try {
      JSON.parse(text);
    } catch (cause) {
      log.warn({ err: new Error('no token', { cause }) }, 'failed');
    }
  }
  log.warn({ err: new Error('no token', { cause: secret }) }, 'failed');
  log.warn({ err: new Error('no token', { cause: { body: { id_token: secret } } }) }, 'failed');
  t.is(lines.length, 4);
  t.false(lines.some((line) => line.includes(secret.slice(0, 6))));
  t.true(lines.every((line) => line.includes('no token')));
});
