/** Law 4 for callers: a change that one replica has answered applies at the other. */
import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person, startGateway, type TestGateway } from '../support/gateway.ts';

/** Starts two replicas. SQLite serves one process, so there both are the same gateway. */
async function pair(t: ExecutionContext, url: string): Promise<[TestGateway, TestGateway]> {
  const one = await startGateway(t, url);
  return [one, url.startsWith('sqlite:') ? one : await startGateway(t, url)];
}

eachEngine(test.serial, 'a change of a token, role, group or user applies at every replica at once', async (t, database) => {
  const [one, two] = await pair(t, database.url);
  const admin = await person(one, 'admin@example.com');
  const user = await person(two, 'user@example.com');
  for (let i = 0; i < 20; i++) {
    const { id, token } = await apiToken(two, user, `t${i}`);
    await one.rest(200, 'GET', '/api/auth/me', { token });
    await two.rest(204, 'DELETE', `/api/auth/tokens/${id}`, { token: user.token });
    await one.rest(401, 'GET', '/api/auth/me', { token });
  }
  const put = (body: object) => one.rest(200, 'PUT', `/api/users/${user.id}`, { token: admin.token, body });
  for (let i = 0; i < 10; i++) {
    await put({ role: 'admin' });
    await two.rest(200, 'GET', '/api/users', { token: user.token });
    await put({ role: 'user' });
    await two.rest(403, 'GET', '/api/users', { token: user.token });
    await put({ enabled: false });
    await two.rest(401, 'GET', '/api/auth/me', { token: user.token });
    await put({ enabled: true });
    await two.rest(200, 'GET', '/api/auth/me', { token: user.token });
  }
  t.pass();
});

eachEngine(test.serial, 'first registrations at two replicas make one administrator', async (t, database) => {
  const both = await pair(t, database.url);
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, i) =>
      both[i % 2 === 0 ? 0 : 1].rest<{ role: string }>(201, 'POST', '/api/auth/register', {
        body: { email: `user${i}@example.com`, password: 'correct horse battery' },
      }),
    ),
  );
  t.is(answers.filter(({ body }) => body.role === 'admin').length, 1);
});

eachEngine(test.serial, 'a token under a new key is valid at the replica that did not make the key', async (t, database) => {
  const [one, two] = await pair(t, database.url);
  const admin = await person(one, 'admin@example.com');
  const { body } = await one.rest<{ kid: string }>(201, 'POST', '/api/keys/rotate', { token: admin.token });
  const login = await one.rest<{ token: string }>(200, 'POST', '/api/auth/login', {
    body: { email: admin.email, password: admin.password },
  });
  await two.rest(200, 'GET', '/api/auth/me', { token: login.body.token });
  await two.rest(200, 'GET', '/api/auth/me', { token: admin.token });
  const jwks = await two.rest<{ keys: { kid: string }[] }>(200, 'GET', '/.well-known/jwks.json');
  t.is(jwks.body.keys[0]?.kid, body.kid);
});
