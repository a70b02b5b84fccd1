/**
 * `npm run test:conformance`: the official MCP conformance suite gives the same result through the gateway as directly,
 * scenario by scenario; with a wrong token it does not; and the suite's mock servers find no fault with the gateway's
 * upstream half. The packages of the suite are in this folder, apart from those of the product.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { readConfig } from '../../src/config/config.ts';
import { createGateway } from '../../src/gateway.ts';
import { freePort } from '../support/port.ts';

const here = import.meta.dirname;
const account = { email: 'conformance@example.com', password: 'a long passphrase' };

async function run(command: string, args: readonly string[], env: Record<string, string> = {}): Promise<number> {
  const child = spawn(command, args, { cwd: here, env: { ...process.env, ...env }, stdio: 'inherit' });
  const [code] = await once(child, 'close');
  return Number(code ?? 1);
}

/** How many results of the suite were not as directly; null when it did not come to an end. */
async function differences(args: readonly string[], env: Record<string, string>): Promise<number | null> {
  const child = spawn(process.execPath, args, {
    cwd: here,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [said] = await Promise.all([text(child.stdout), once(child, 'close')]);
  const counted = /^(\d+) difference\(s\) from the baseline$/m.exec(said)?.[1];
  return counted === undefined ? null : Number(counted);
}

if (!existsSync(join(here, 'node_modules')) && (await run('npm', ['ci', '--silent'])) !== 0) process.exit(1);

const [port, fixturePort, proxyPort] = [await freePort(), await freePort(), await freePort()];
const url = `http://127.0.0.1:${port}`;
const dataDir = mkdtempSync(join(tmpdir(), 'portcullis-conformance-'));
const gateway = await createGateway(
  readConfig({
    PORT: String(port),
    DATA_DIR: dataDir,
    LOG_LEVEL: 'error',
    MCP_RATE_LIMIT: '1000000',
    DENIAL_RATE_LIMIT: '1000000',
    // The suite names the proxy, which adds the token, as the origin that must be let in.
    ALLOWED_ORIGINS: `http://127.0.0.1:${proxyPort},http://localhost:${proxyPort}`,
  }),
);
await gateway.listen();

async function api<T>(method: string, path: string, body: object, token?: string): Promise<T> {
  const answer = await fetch(url + path, {
    method,
    headers: { 'content-type': 'application/json', ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return (await answer.json()) as T;
}

let failed = 0;
const judge = (what: string, ok: boolean): void => {
  if (!ok) failed++;
  console.log(`${ok ? 'passed' : 'FAILED'}: ${what}`);
};
try {
  await api('POST', '/api/auth/register', account);
  const { token: admin } = await api<{ token: string }>('POST', '/api/auth/login', account);
  const { token } = await api<{ token: string }>('POST', '/api/auth/tokens', { name: 'conformance' }, admin);
  const fixture = `http://127.0.0.1:${fixturePort}/mcp`;
  await api('POST', '/api/targets', { name: 'fixture', transport: 'streamable-http', url: fixture }, admin);
  const subjects = [{ subject_type: 'everyone' }];
  await api('POST', '/api/policies', { name: 'everything', resource_type: 'all', effect: 'allow', priority: 0, subjects }, admin);

  const through = [
    'run.mjs',
    '--url',
    `${url}/mcp/fixture`,
    '--fixture-port',
    String(fixturePort),
    '--proxy-port',
    String(proxyPort),
  ];
  judge('the same through the gateway as directly', (await run(process.execPath, through, { TOKEN: token })) === 0);
  const refused = await differences(through, { TOKEN: 'wrong' });
  judge(`not the same with a wrong token (${refused} differences)`, (refused ?? 0) > 0);
  const via = { VIA: join(here, 'register-target.mjs'), GATEWAY_URL: url, ADMIN_TOKEN: admin, TOKEN: token };
  judge('the upstream half, by mock servers', (await run(process.execPath, ['run.mjs', '--client'], via)) === 0);
} finally {
  await gateway.close();
  rmSync(dataDir, { recursive: true, force: true });
}
process.exit(failed === 0 ? 0 : 1);
