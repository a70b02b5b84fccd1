import { Writable } from 'node:stream';
import test from 'ava';
import { createLog } from '../../src/log.ts';
import { rest, startGateway } from '../support/gateway.ts';

test('where others can reach the address, the first registration needs the setup code that was printed', async (t) => {
  let output = '';
  const destination = new Writable({
    write(chunk, _, done) {
      output += String(chunk);
      done();
    },
  });
  const { url } = await startGateway(t, null, {}, { config: { setupCodeRequired: true }, log: createLog('info', destination) });
  const register = (email: string, headers: Record<string, string> = {}) =>
    rest<{ code: string; role: string }>(url, 'POST', '/api/auth/register', {
      body: { email, password: 'a long passphrase' },
      headers,
    });

  for (const code of [null, '', 'a guess']) {
    const refused = await register('admin@example.com', code === null ? {} : { 'portcullis-setup-code': code });
    t.is(refused.status, 403);
    t.is(refused.body.code, 'setup_code_required');
  }
  const code = /"setup_code":"([^"]+)"/.exec(output)?.[1] ?? '';
  const first = await register('admin@example.com', { 'portcullis-setup-code': code });
  t.is(first.status, 201);
  t.is(first.body.role, 'admin');
  const second = await register('user@example.com');
  t.is(second.status, 201, 'only the first needs it');
  t.is(second.body.role, 'user');
});
