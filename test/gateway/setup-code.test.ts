import test from 'ava';
import { rest, startGateway } from '../support/gateway.ts';

test.serial('the first registration needs the printed setup code if others can reach the address', async (t) => {
  const { url, gateway } = await startGateway(t, null, {}, { config: { setupCodeRequired: true } });
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
  const code = (await gateway.setupCode()) ?? '';
  const first = await register('admin@example.com', { 'portcullis-setup-code': code });
  t.is(first.status, 201);
  t.is(first.body.role, 'admin');
  t.is(await gateway.setupCode(), null, 'there is nothing more to tell');
  const second = await register('user@example.com');
  t.is(second.status, 201, 'only the first needs it');
  t.is(second.body.role, 'user');
});
