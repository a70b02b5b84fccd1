/** `portcullis log --follow` as a process, over failures and a restart of the gateway. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import test, { type ExecutionContext } from 'ava';
import type { LogJson } from '../../../src/audit/search/log-json.ts';
import { apiToken, person, rest, startGateway } from '../../support/gateway.ts';
import { freePort } from '../../support/port.ts';
import { dataDir, program, runGateway } from '../../support/process.ts';

const account = { email: 'admin@example.com', password: 'a long passphrase' };

/** Starts the command. `next` resolves with its next line. */
function following(t: ExecutionContext, url: string, token: string, ...words: string[]) {
  const child = spawn(process.execPath, [...program('cli/portcullis'), 'log', '--follow', ...words], {
    env: { PATH: process.env['PATH'], PORTCULLIS_URL: url, PORTCULLIS_TOKEN: token },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  t.teardown(() => child.kill('SIGKILL'));
  const err: string[] = [];
  child.stderr.setEncoding('utf8').on('data', (text: string) => void err.push(text));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    child,
    next: async (): Promise<string> => {
      const { value, done } = await lines.next();
      if (done) throw new Error(`it ended: ${err.join('')}`);
      return value;
    },
    rest: async (): Promise<string[]> => {
      const more: string[] = [];
      for (let one = await lines.next(); !one.done; one = await lines.next()) more.push(one.value);
      return more;
    },
    said: async (form: RegExp): Promise<void> => {
      while (!form.test(err.join(''))) await once(child.stderr, 'data');
    },
    ended: once(child, 'exit').then(([code]) => code as number | null),
  };
}

/** A request that no policy allows makes one row. */
async function decide(url: string, token: string): Promise<void> {
  await rest(url, 'POST', '/mcp/nothing', {
    token,
    headers: { accept: 'application/json, text/event-stream' },
    body: {
      jsonrpc: '2.0',
      id: 1,
      method: 'initialize',
      params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'c', version: '1' } },
    },
  });
}

test.serial('decisions are shown once each, over a kill and a restart of the gateway, until Ctrl-C', async (t) => {
  const environment = { DATA_DIR: dataDir(t), PORT: String(await freePort()) };
  const first = await runGateway(t, environment);
  const { url } = first;
  await rest(url, 'POST', '/api/auth/register', { body: account });
  const login = await rest<{ token: string }>(url, 'POST', '/api/auth/login', { body: account });
  const { token } = login.body;
  const made = await rest<{ token: string }>(url, 'POST', '/api/auth/tokens', { token, body: { name: 'follow' } });
  for (let i = 0; i < 3; i++) await decide(url, token);

  const command = following(t, url, made.body.token, '--json', '--limit', '2');
  const shown: LogJson[] = [];
  const show = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) shown.push(JSON.parse(await command.next()));
  };
  await show(2);
  await decide(url, token);
  await decide(url, token);
  await show(2);

  // These two are recorded, and the gateway is killed before the command can have read them for sure.
  await Promise.all([decide(url, token), decide(url, token)]);
  first.child.kill('SIGKILL');
  await first.ended;
  await command.said(/no answer from .* This command continues when the gateway answers again/);
  await runGateway(t, environment);
  await decide(url, token);
  await show(3);
  await command.said(/the gateway answers again/);
  await decide(url, token);
  await show(1);

  command.child.kill('SIGINT');
  t.is(await command.ended, 0);
  t.deepEqual(await command.rest(), [], 'nothing is shown twice');
  const { body: all } = await rest<LogJson[]>(url, 'GET', '/api/logs', { token });
  t.deepEqual(
    shown.map(({ id }) => id),
    all
      .map(({ id }) => id)
      .reverse()
      .slice(-8),
  );
});

test.serial('a filter holds, a revoked token ends the command, and text has one line for each decision', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const { id, token } = await apiToken(gateway, admin);
  await decide(gateway.url, admin.token);
  const command = following(t, gateway.url, token, '--effect', 'deny', '--limit', '1');
  t.regex(await command.next(), /^\S+Z {2}deny {3}admin@example\.com +nothing +initialize +- +no_target$/);
  const none = following(t, gateway.url, token, '--effect', 'allow');
  await decide(gateway.url, admin.token);
  await command.next();
  await gateway.rest(204, 'DELETE', `/api/auth/tokens/${id}`, { token: admin.token });
  t.is(await command.ended, 1);
  t.is(await none.ended, 1);
  t.deepEqual(await none.rest(), []);
});

test.serial('a row that is recorded late is shown, answers of 503 are passed over, and a short page goes on', async (t) => {
  const now = Date.now();
  const row = (ago: number, last: string) => {
    const time = (now - ago).toString(16).padStart(12, '0');
    return {
      id: `${time.slice(0, 8)}-${time.slice(8)}-7000-8000-00000000000${last}`,
      created_at: new Date(now - ago).toISOString(),
    };
  };
  const [old, fresh, late] = [row(60_000, '1'), row(2_000, '2'), row(9_000, '3')];
  let asked = 0;
  const server = createServer((req, res) => {
    asked++;
    const answer = (rows: object[], next?: string): void => {
      res.setHeader('content-type', 'application/json').setHeader('x-request-id', 'x');
      if (next !== undefined) res.setHeader('link', `<${next}>; rel="next"`);
      res.end(JSON.stringify(rows));
    };
    const from = new URL(req.url ?? '', 'http://x').searchParams.get('from');
    if (asked === 1) return answer([old]);
    if (asked === 2) return answer([]);
    if (asked === 3) {
      res.statusCode = 503;
      return answer({ code: 'unavailable', detail: 'Not now.' } as never);
    }
    if (asked === 4) return answer([], '/api/logs?cursor=x');
    if (asked === 5) return answer([fresh]);
    if (asked === 6) t.true(Date.parse(from ?? '') < now - 9_000, 'the span of late rows is read again');
    return answer([fresh, late]);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => server.close());
  const command = following(t, `http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'a.b.c', '--json');
  const shown = [await command.next(), await command.next(), await command.next()];
  t.deepEqual(
    shown.map((line) => JSON.parse(line)),
    [old, fresh, late],
  );
  command.child.kill('SIGTERM');
  t.is(await command.ended, 0);
});
