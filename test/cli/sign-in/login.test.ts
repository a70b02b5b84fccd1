/** `portcullis login`, `logout` and `status` against a real gateway. */
import { chmodSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { runGroup } from '../../../src/cli/command.ts';
import { signInGroup } from '../../../src/cli/sign-in/login.ts';
import { loginFile } from '../../../src/cli/sign-in/logins.ts';
import { openTab } from '../../oauth/support.ts';
import { browserTest } from '../../support/chromium.ts';
import { apiToken, type Person, person, startGateway } from '../../support/gateway.ts';
import { folder, inProcess, policies, portcullis, type Ran } from '../cli.ts';

interface Stored {
  access_token: string;
  expires_at: number;
  refresh_token: string;
}

async function start(t: ExecutionContext) {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { url } = gateway;
  const home = folder(t);
  const environment = { PORTCULLIS_URL: url, XDG_CONFIG_HOME: home, PORTCULLIS_TOKEN: '' };
  const file = loginFile(join(home, 'portcullis', 'logins'), url);
  const run = (args: readonly string[], more: Record<string, string> = {}): Promise<Ran> =>
    inProcess({ ...environment, ...more }, (terminal) => runGroup(signInGroup, args, terminal));

  /** Begins a command. `shows` resolves with what it tells the person in this form. */
  function begin(...args: string[]) {
    let said = '';
    let look: () => void = () => undefined;
    const done = inProcess(environment, (terminal) =>
      runGroup(signInGroup, args, {
        stdout: terminal.stdout,
        stderr: {
          write(text) {
            terminal.stderr.write(text);
            said += text;
            look();
          },
        },
      }),
    );
    const shows = (form: RegExp): Promise<string> =>
      new Promise((resolve, reject) => {
        look = () => {
          const found = form.exec(said)?.[0];
          if (found !== undefined) resolve(found);
        };
        look();
        done.then(({ err }) => reject(new Error(`it ended: ${err}`)), reject);
      });
    return { shows, address: () => shows(/https?:\S+/), done };
  }

  return {
    ...{ gateway, url, admin, environment, file, run, begin },
    read: (): Stored => JSON.parse(readFileSync(file, 'utf8')),
    write: (stored: Stored) => writeFileSync(file, JSON.stringify(stored), { mode: 0o600 }),
    /** Signs in, with a browser that the person has signed in with. */
    async login(who: Person = admin): Promise<Ran> {
      const { address, done } = begin('login', '--no-open');
      const tab = openTab(url);
      await tab.signIn(who);
      const { to } = await tab.answer(await tab.follow(await address()));
      const arrived = await fetch(to ?? '', { redirect: 'manual' });
      t.deepEqual([arrived.status, arrived.headers.get('location')], [303, `${url}/account?done=command-line`]);
      return done;
    },
    history: (more: Record<string, string> = {}) =>
      inProcess({ ...environment, ...more }, (terminal) => policies(['history', '--json'], terminal)),
  };
}

test.serial('a person signs in with the browser, uses the API, and signs out', async (t) => {
  const { url, gateway, admin, login, run, file, read, history } = await start(t);
  const before = await run(['status']);
  t.is(before.code, 2);
  t.regex(before.err, /you are not signed in at http\S+: run portcullis login/);
  t.is((await run(['logout'])).out, `you were not signed in at ${url}\n`);

  const signedIn = await login();
  t.deepEqual([signedIn.code, signedIn.out], [0, `signed in at ${url} as admin@example.com (role admin)\n`]);
  const { access_token, refresh_token } = read();
  t.is(statSync(file).mode & 0o777, 0o600);
  t.is(statSync(dirname(file)).mode & 0o777, 0o700);
  t.deepEqual(readdirSync(dirname(file)).length, 1);
  t.false(signedIn.err.includes(access_token) || signedIn.err.includes(refresh_token));
  const status = await run(['status', '--json']);
  t.like(JSON.parse(status.out), { server: url, source: 'login', user: { email: 'admin@example.com' } });
  t.is((await history()).code, 0);
  // The login can do what its user can, except make tokens that outlive it.
  await gateway.rest(403, 'POST', '/api/auth/tokens', { token: access_token, body: { name: 'x' } });

  t.deepEqual(await run(['logout']), { code: 0, out: `signed out at ${url}\n`, err: '' });
  t.deepEqual(readdirSync(dirname(file)), []);
  await gateway.rest(401, 'GET', '/api/auth/me', { token: access_token });
  t.is((await history()).code, 2);

  // A token in the environment works without a login, and counts before one.
  const { token } = await apiToken(gateway, admin);
  t.is((await history({ PORTCULLIS_TOKEN: token })).code, 0);
  t.like(JSON.parse((await run(['status', '--json'], { PORTCULLIS_TOKEN: token })).out), { source: 'PORTCULLIS_TOKEN' });
});

test.serial('signing in again ends the former login, and a different user replaces it', async (t) => {
  const { gateway, login, run, read } = await start(t);
  const ann = await person(gateway, 'ann@example.com');
  await login();
  const former = read();
  t.regex((await login(ann)).out, /as ann@example\.com \(role user\)/);
  await gateway.rest(401, 'GET', '/api/auth/me', { token: former.access_token });
  t.regex((await run(['status'])).out, /ann@example\.com/);
});

test.serial('an access token that expires is renewed, also by two commands at once', async (t) => {
  const { login, read, write, history, run, environment } = await start(t);
  await login();
  const first = read();
  write({ ...first, access_token: 'a.b.c', expires_at: Date.now() + 20_000 });
  t.is((await history()).code, 0);
  const second = read();
  t.not(second.refresh_token, first.refresh_token);
  t.true(second.expires_at > Date.now() + 5 * 60_000);

  write({ ...second, expires_at: 0 });
  const both = await Promise.all([portcullis(environment, 'status'), portcullis(environment, 'status')]);
  t.deepEqual(
    both.map(({ code, err }) => [code, err]),
    [
      [0, ''],
      [0, ''],
    ],
  );
  t.is((await run(['status'])).code, 0);
});

test.serial('a login that was ended elsewhere says so', async (t) => {
  const { gateway, admin, login, read, write, history, run } = await start(t);
  await login();
  const ann = await person(gateway, 'ann@example.com');
  const { body: users } = await gateway.rest<{ id: string; email: string }[]>(200, 'GET', '/api/users', { token: admin.token });
  t.is(users.length, 2);
  await gateway.rest(200, 'PUT', `/api/users/${ann.id}`, { token: admin.token, body: { role: 'admin' } });
  await gateway.rest(200, 'PUT', `/api/users/${admin.id}`, { token: ann.token, body: { enabled: false } });
  const refused = await history();
  t.is(refused.code, 1);
  t.regex(refused.err, /Your login may have ended: run portcullis login\./);
  write({ ...read(), expires_at: 0 });
  const ended = await history();
  t.is(ended.code, 1);
  t.regex(ended.err, /your login at http\S+ has ended: run portcullis login/);
  // There is nothing left to end.
  t.is((await run(['logout'])).code, 0);
  const home = folder(t);
  mkdirSync(join(home, 'portcullis'));
  writeFileSync(join(home, 'portcullis', 'logins'), '');
  const failed = await run(['logout'], { XDG_CONFIG_HOME: home });
  t.is(failed.code, 1);
  t.regex(failed.err, /the login in .* cannot be removed \(ENOTDIR\)/);
});

test.serial('only the sign-in that the command began counts, and only from this gateway', async (t) => {
  const { url, admin, begin } = await start(t);
  const { address, done } = begin('login', '--no-open');
  const authorize = new URL(await address());
  const { searchParams } = authorize;
  t.is(authorize.origin, url);
  t.is(searchParams.get('code_challenge_method'), 'S256');
  t.is(searchParams.get('scope'), 'api');
  const redirect = searchParams.get('redirect_uri') ?? '';
  t.regex(redirect, /^http:\/\/127\.0\.0\.1:\d+\/callback$/);
  const state = searchParams.get('state') ?? '';
  // Any page can lead a browser to this port, with a code of an attacker.
  for (const forged of [
    `${redirect}?code=x`,
    `${redirect}?code=x&state=&iss=${url}`,
    `${redirect}?code=x&state=${state}x&iss=${url}`,
    `${redirect}?code=x&state=${state}&state=${state}&iss=${url}`,
    redirect.replace('/callback', `/?code=x&state=${state}`),
    redirect.replace('/callback', '//'),
  ]) {
    const { status } = await fetch(forged, { redirect: 'manual' });
    t.is(status, 404, forged);
  }
  t.is((await fetch(`${redirect}?code=x&state=${state}&iss=${url}`, { method: 'POST' })).status, 404);
  const tab = openTab(url);
  await tab.signIn(admin);
  const { to } = await tab.answer(await tab.follow(authorize.href));
  await fetch(to ?? '', { redirect: 'manual' });
  t.is((await done).code, 0);

  const mixed = begin('login', '--no-open');
  const other = new URL(await mixed.address()).searchParams;
  const wrong = await fetch(`${other.get('redirect_uri')}?code=x&state=${other.get('state')}&iss=https://evil.example`);
  t.is(wrong.status, 400);
  const { code, err } = await mixed.done;
  t.is(code, 1);
  t.regex(err, /a different authorization server: nothing was done/);
});

test.serial('a person who refuses gets no login', async (t) => {
  const { url, admin, begin, file } = await start(t);
  const { address, done } = begin('login', '--no-open');
  const tab = openTab(url);
  await tab.signIn(admin);
  const { to } = await tab.answer(await tab.follow(await address()), 'deny');
  t.is((await fetch(to ?? '', { redirect: 'manual' })).status, 400);
  const { code, err } = await done;
  t.is(code, 1);
  t.regex(err, /The user refused the access/);
  t.throws(() => statSync(file), { code: 'ENOENT' });
});

test.serial('on a machine without a browser, the person enters a code elsewhere', async (t) => {
  const { url, admin, begin, read } = await start(t);
  const { address, shows, done } = begin('login', '--device');
  const [shown, code] = [await address(), (await shows(/[A-Z0-9]{4}-[A-Z0-9]{4}/)) ?? ''];
  t.is(shown, `${url}/oauth/device`);
  const tab = openTab(url);
  await tab.signIn(admin);
  const asked = await tab.post(shown, { user_code: code.toLowerCase(), answer: 'look' });
  t.regex(asked.text, /calls itself the command line of this gateway/);
  const user = /name="user" value="([^"]+)"/.exec(asked.text)?.[1] ?? '';
  t.regex((await tab.post(shown, { user_code: code, user, answer: 'allow' })).text, /The device is connected/);
  const { code: exit, out } = await done;
  t.deepEqual([exit, out], [0, `signed in at ${url} as admin@example.com (role admin)\n`]);
  t.truthy(read().refresh_token);
});

test.serial('a login that others could read or change is not used', async (t) => {
  const { login, file, run, read, environment } = await start(t);
  await login();
  const stored = read();
  for (const mode of [0o644, 0o660, 0o604]) {
    chmodSync(file, mode);
    const { code, err } = await run(['status']);
    t.is(code, 1);
    t.regex(err, /can be read by others/);
  }
  for (const text of ['', '{', '[]', '{"access_token":1}']) {
    writeFileSync(file, text);
    chmodSync(file, 0o600);
    t.regex((await run(['status'])).err, /is damaged: run portcullis login again/);
  }
  // Signing in again mends it, and the new file has the right mode.
  await login();
  t.is(statSync(file).mode & 0o777, 0o600);
  t.not(read().refresh_token, stored.refresh_token);
  // A login counts for its own gateway alone.
  const elsewhere = await run(['status', '--server', 'http://127.0.0.1:1']);
  t.is(elsewhere.code, 2);
  t.regex(elsewhere.err, /not signed in at http:\/\/127\.0\.0\.1:1/);
  t.is((await portcullis({ ...environment, XDG_CONFIG_HOME: 'relative', HOME: folder(t) }, 'status')).code, 2);
});

test.serial('tokens go to the gateway alone, whatever its metadata names', async (t) => {
  const home = folder(t);
  const seen: string[] = [];
  let metadata: (url: string) => object = () => ({});
  let status = 200;
  const server = createServer((req, res) => {
    seen.push(req.url ?? '');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    res.writeHead(status, { 'Content-Type': 'application/json', ...(status === 302 ? { Location: '/elsewhere' } : {}) });
    res.end(JSON.stringify(metadata(url)));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => void server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const endpoints = (base: string) => ({
    authorization_endpoint: `${base}/a`,
    token_endpoint: `${base}/t`,
    device_authorization_endpoint: `${base}/d`,
    revocation_endpoint: `${base}/r`,
  });
  const file = loginFile(join(home, 'portcullis', 'logins'), url);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, JSON.stringify({ access_token: 'a.b.c', expires_at: 0, refresh_token: 'secret-refresh' }), { mode: 0o600 });
  const attempt = async (args: readonly string[], form: RegExp) => {
    seen.length = 0;
    const environment = { PORTCULLIS_URL: url, XDG_CONFIG_HOME: home, PORTCULLIS_TOKEN: '' };
    const ran = await inProcess(environment, (terminal) => runGroup(signInGroup, args, terminal));
    t.is(ran.code, 1);
    t.regex(ran.err, form);
    t.false(`${ran.err}${ran.out}${seen.join()}`.includes('secret-refresh'));
    t.deepEqual(seen, ['/.well-known/oauth-authorization-server']);
  };
  for (const args of [['status'], ['login', '--no-open'], ['login', '--device']]) {
    metadata = (own) => ({ issuer: own, ...endpoints('https://evil.example') });
    await attempt(args, /names no authorization endpoint at that address/);
    metadata = (own) => ({ issuer: own, ...endpoints(own), token_endpoint: `${own}@evil.example/t` });
    await attempt(args, /names no token endpoint/);
    metadata = () => ({ issuer: 'https://gateway.example.com', ...endpoints('https://gateway.example.com') });
    await attempt(args, /calls itself https:\/\/gateway\.example\.com: name that address/);
    metadata = () => ({});
    await attempt(args, /has no authorization server/);
    status = 302;
    await attempt(args, /no answer from/);
    status = 200;
  }
});

browserTest('the command line is signed in by a browser that comes back to it', async (t, open) => {
  const { url, admin, begin } = await start(t);
  const { address, done } = begin('login', '--no-open');
  const page = await (await open()).newPage();
  await page.goto(await address());
  await page.getByLabel('E-mail').fill(admin.email);
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Allow' }).click();
  await page.getByText('The command line is signed in. You can close this page.').waitFor();
  t.is(page.url(), `${url}/account?done=command-line`);
  t.is((await done).code, 0);
});
