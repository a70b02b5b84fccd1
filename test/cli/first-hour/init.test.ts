/** `portcullis init` against a real gateway, without a terminal. */
import { statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { runGroup } from '../../../src/cli/command.ts';
import { firstHourGroup } from '../../../src/cli/first-hour/commands.ts';
import { signInGroup } from '../../../src/cli/sign-in/login.ts';
import { loginFile } from '../../../src/cli/sign-in/logins.ts';
import type { Config } from '../../../src/config/config.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { folder, inProcess, portcullis } from '../cli.ts';

async function empty(t: ExecutionContext, config: Partial<Config> = {}) {
  const gateway = await startGateway(t, null, {}, { config });
  const home = folder(t);
  const environment = { PORTCULLIS_URL: gateway.url, XDG_CONFIG_HOME: home, PORTCULLIS_TOKEN: '' };
  const secret = join(home, 'password');
  writeFileSync(secret, 'a long passphrase\n');
  const init = (...more: string[]) =>
    inProcess(environment, (terminal) =>
      runGroup(firstHourGroup, ['init', '--email', 'admin@example.com', '--password-file', secret, ...more], terminal),
    );
  return {
    ...{ gateway, environment, init },
    file: loginFile(join(home, 'portcullis', 'logins'), gateway.url),
    status: () => inProcess(environment, (terminal) => runGroup(signInGroup, ['status', '--json'], terminal)),
    logout: () => inProcess(environment, (terminal) => runGroup(signInGroup, ['logout'], terminal)),
  };
}

test.serial('init makes the administrator and signs in with a grant, as login does', async (t) => {
  const { gateway, init, status, logout, file } = await empty(t);
  const made = await init();
  t.is(made.code, 0, made.err);
  t.regex(made.out, /^admin@example\.com is the administrator of http/);
  t.is(statSync(file).mode & 0o777, 0o600);
  t.like(JSON.parse((await status()).out), { source: 'login', user: { email: 'admin@example.com', role: 'admin' } });
  const { body } = await gateway.rest<{ token: string }>(200, 'POST', '/api/auth/login', {
    body: { email: 'admin@example.com', password: 'a long passphrase' },
  });
  const { token } = body;
  const { body: grants } = await gateway.rest<{ client: { client_id: string } }[]>(200, 'GET', '/api/auth/grants', { token });
  t.deepEqual(
    grants.map(({ client }) => client.client_id),
    ['portcullis-cli'],
  );
  t.deepEqual((await gateway.rest(200, 'GET', '/api/auth/browser-sessions', { token })).body, [], 'no session stays open');
  t.is((await logout()).code, 0);
  t.deepEqual((await gateway.rest(200, 'GET', '/api/auth/grants', { token })).body, []);
});

test.serial('a gateway with users gets no further account from init', async (t) => {
  const { gateway, init } = await empty(t);
  const { token } = await person(gateway, 'first@example.com');
  const refused = await init('--json');
  t.is(refused.code, 1);
  t.regex(refused.err, /has an administrator already: sign in with portcullis login/);
  t.like(JSON.parse(refused.out), { error: { code: 'registration_closed' } });
  t.is((await gateway.rest<unknown[]>(200, 'GET', '/api/users', { token })).body.length, 1);
});

test.serial('at an address that is not its own, init makes nothing and names that of the gateway', async (t) => {
  const { gateway, init } = await empty(t, { publicUrl: 'https://gateway.example.com' });
  const refused = await init();
  t.is(refused.code, 1);
  t.regex(refused.err, /calls itself https:\/\/gateway\.example\.com: name that address with --server/);
  t.true(await gateway.gateway.awaitsAdministrator());
});

test.serial('init needs the setup code where the gateway does', async (t) => {
  const { gateway, init } = await empty(t, { setupCodeRequired: true });
  for (const wrong of [[], ['--setup-code', 'a guess']]) {
    const refused = await init(...wrong);
    t.is(refused.code, 1);
    t.regex(refused.err, /needs its setup code.*--setup-code/s);
  }
  t.is((await init('--setup-code', (await gateway.gateway.setupCode()) ?? '')).code, 0);
});

test.serial('without a terminal, init says which option is missing, and asks nothing', async (t) => {
  const { environment } = await empty(t);
  for (const [args, option] of [
    [[], '--email'],
    [['--email', 'a@example.com'], '--password-file'],
  ] as const) {
    const { code, err } = await portcullis(environment, 'init', ...args);
    t.is(code, 2);
    t.regex(err, new RegExp(`${option} is missing, and there is no terminal`));
  }
  const { code, err } = await portcullis(environment, 'init', '--email', 'a@example.com', '--password-file', '/no/such/file');
  t.is(code, 1);
  t.regex(err, /\/no\/such\/file cannot be read \(ENOENT\)/);
});

test.serial('a password that is too short is refused with the reason', async (t) => {
  const { environment } = await empty(t);
  const short = join(folder(t), 'short');
  writeFileSync(short, 'short');
  const { code, err } = await portcullis(environment, 'init', '--email', 'a@example.com', '--password-file', short);
  t.is(code, 1);
  t.regex(err, /password: .*8/);
});
