/**
 * Programs of others that know only the address of an endpoint, and people who sign in for them with a real browser. The programs come
 * from PyPI and npm, so they run only with `PORTCULLIS_TEST_REAL_CLIENTS=true`, as the step `sign-in` of `npm run test:long`.
 */
import { join } from 'node:path';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import test, { type ExecutionContext } from 'ava';
import { SDK_TEXTS } from '../../src/clients/client-files.ts';
import { folder } from '../cli/cli.ts';
import { browserTest, type Open } from '../support/chromium.ts';
import { program } from '../support/process.ts';
import { fakeBrowser, must, start, type Teardown, temporary } from './programs.ts';
import { ACCOUNTS, type AccountKind, approve, type Scene, scene } from './scene.ts';

const MCP_REMOTE = 'mcp-remote@0.15.1';
const WITHIN_MS = 300_000;
const isLong = process.env['PORTCULLIS_TEST_REAL_CLIENTS'] === 'true';

type Run = (t: ExecutionContext, open: Open, scene: Scene) => Promise<void>;

/** Declares the test for the accounts; those that are left out run with the programs of others. */
function withAccounts(accounts: readonly AccountKind[], title: string, run: Run): void {
  for (const account of isLong ? ACCOUNTS : accounts) {
    browserTest(`${title}, with ${account}`, async (t, open) => {
      t.timeout(WITHIN_MS);
      await run(t, open, await scene(t, account));
    });
  }
}
const long = (title: string, run: Run): void => withAccounts([], title, run);

const ended: (() => unknown)[] = [];
const ofFile: Teardown = { teardown: (end) => void ended.unshift(end) };
test.after.always(async () => {
  for (const end of ended) await end();
});

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined;
  return () => {
    made ??= make();
    return made;
  };
}

/** Resolves with the Python of an environment that has the SDK. */
async function installPython(): Promise<string> {
  const venv = join(temporary(ofFile), 'venv');
  await must(ofFile, 'python3', ['-m', 'venv', venv]);
  const requirements = join(import.meta.dirname, 'requirements.txt');
  await must(ofFile, join(venv, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', '-r', requirements]);
  return join(venv, 'bin/python');
}

/** Resolves with a cache of npm that has mcp-remote. */
async function installRemote(): Promise<string> {
  const cache = temporary(ofFile);
  await must(ofFile, 'npm', ['exec', '--yes', `--cache=${cache}`, `--package=${MCP_REMOTE}`, '--', 'node', '-e', '0']);
  return cache;
}

const installedPython = once(installPython);
const installedRemote = once(installRemote);

/** Tools that reached the target, in order. */
const calledAt = ({ target }: Scene): string[] => target.recorder.objects();

const COMPANY = ["an account of the company's provider"] as const;
withAccounts(COMPANY, 'portcullis login --device is answered in a browser', async (t, open, { gateway, account }) => {
  const environment = { PORTCULLIS_URL: gateway.url, XDG_CONFIG_HOME: folder(t), PORTCULLIS_TOKEN: '' };
  const login = start(t, process.execPath, [...program('cli/portcullis'), 'login', '--device'], environment);
  const [address, code] = await Promise.all([login.says(/http\S+\/oauth\/device/), login.says(/[A-Z]{4}-[A-Z]{4}/)]);
  const page = await (await open()).newPage();
  await page.goto(address);
  await account.signIn(page);
  const enter = async (): Promise<void> => {
    await page.getByLabel('The code that the device shows').fill(code.toLowerCase());
    await page.getByRole('button', { name: 'Continue' }).click();
  };
  await enter();
  if (account.isAskedAgain) {
    await account.signIn(page);
    // No address carries a code of the command line, so it is typed again.
    await enter();
  }
  await page.getByText('calls itself the command line of this gateway').waitFor();
  await page.getByRole('button', { name: 'Allow' }).click();
  await page.getByText('The device is connected').waitFor();
  const ran = await login.ended;
  t.is(ran.code, 0, ran.output);
  t.true(ran.output.includes(`signed in at ${gateway.url} as ${account.email} (role operator)`), ran.output);
});

long('the Python SDK signs in by itself, calls and refreshes', async (t, open, s) => {
  const python = await installedPython();
  for (const [address, tool] of [
    [s.mcp, 'echo'],
    [`${s.gateway.url}/mcp`, 'everything__echo'],
  ] as const) {
    const browser = await fakeBrowser(t);
    const opened = browser.next();
    const { ended, says } = start(t, python, [join(import.meta.dirname, 'sdk.py'), address], browser.environment);
    await Promise.race([opened.then((url) => approve(open, url, s.account)), says(/"signed in"/)]);
    const { code, output } = await ended;
    t.is(code, 0, output);
    const steps = output.split('\n').filter((line) => line.startsWith('{'));
    t.deepEqual(
      steps.map((line) => JSON.parse(line) as unknown),
      [
        { step: 'signed in', tools: [tool], text: 'Echo: signed in' },
        { step: 'refreshed', tools: [tool], text: 'Echo: refreshed' },
        { step: 'end', opened: 1, rotated: true },
      ],
      output,
    );
  }
  t.deepEqual(calledAt(s), ['tools/call echo', 'tools/call echo', 'tools/call echo', 'tools/call echo']);

  await s.allow({ name: 'admins', subjects: [{ subject_type: 'role', subject_value: 'admin' }] });
  const shown = SDK_TEXTS.find(({ title }) => title === 'Python SDK')?.text({ url: s.mcp }) ?? '';
  const { code, output } = await start(t, python, ['-c', shown], { PORTCULLIS_TOKEN: s.admin.token }).ended;
  t.is(code, 0, output);
  t.regex(output, /name='echo'/);
});

long('mcp-remote signs in, keeps its login, and signs in again when the grant is ended', async (t, open, s) => {
  const cache = await installedRemote();
  const config = temporary(t);
  const browser = await fakeBrowser(t);
  const connect = async (): Promise<Client> => {
    const { PATH = '' } = process.env;
    const transport = new StdioClientTransport({
      command: 'npx',
      args: ['--yes', `--cache=${cache}`, MCP_REMOTE, s.mcp],
      env: { ...process.env, PATH, ...browser.environment, MCP_REMOTE_CONFIG_DIR: config } as Record<string, string>,
      stderr: 'pipe',
    });
    let said = '';
    transport.stderr?.on('data', (text: Buffer) => {
      said += text;
    });
    const client = new Client({ name: 'behind mcp-remote', version: '1' });
    t.teardown(() => client.close());
    await client.connect(transport, { timeout: 120_000 }).catch((error: unknown) => {
      throw new Error(`mcp-remote did not connect: ${said}`, { cause: error });
    });
    return client;
  };
  async function use(client: Client): Promise<void> {
    const { tools } = await client.listTools();
    t.deepEqual(
      tools.map(({ name }) => name),
      ['echo'],
    );
    t.like(await client.callTool({ name: 'echo', arguments: { message: 'x' } }), { content: [{ text: 'Echo: x' }] });
    await client.close();
  }
  /** Connects, and signs in when the program opens the browser. */
  async function connectAndSignIn(): Promise<void> {
    const opened = browser.next();
    const connecting = connect();
    await Promise.race([opened.then((url) => approve(open, url, s.account)), connecting]);
    await use(await connecting);
  }
  await connectAndSignIn();
  t.is(browser.opened.length, 1);
  await use(await connect());
  t.is(browser.opened.length, 1, 'the login is kept');

  const { admin, gateway } = s;
  const users = await gateway.rest<{ id: string; email: string }[]>(200, 'GET', '/api/users', { token: admin.token });
  const id = users.body.find(({ email }) => email === s.account.email)?.id;
  const query = `/api/auth/grants?user_id=${id}`;
  const { body: grants } = await gateway.rest<{ id: string }[]>(200, 'GET', query, { token: admin.token });
  t.is(grants.length, 1);
  await gateway.rest(204, 'DELETE', `/api/auth/grants/${grants[0]?.id}`, { token: admin.token });
  await connectAndSignIn();
  t.is(browser.opened.length, 2, 'an ended grant needs a new sign-in');
  t.deepEqual(calledAt(s), ['tools/call echo', 'tools/call echo', 'tools/call echo']);
});
