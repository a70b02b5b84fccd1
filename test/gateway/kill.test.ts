/** Law 5: nothing takes effect before its decision is durable. The process is killed at random moments under load. */
import test, { type ExecutionContext } from 'ava';
import { createChainKey } from '../../src/audit/chain.ts';
import { readLine } from '../../src/audit/lines.ts';
import { createVerification } from '../../src/audit/verify.ts';
import { createVault } from '../../src/auth/vault.ts';
import { eachEngine } from '../support/databases/engines.ts';
import { rest } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { dataDir, runGateway } from '../support/process.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';

const KILLS = Number(process.env['PORTCULLIS_TEST_KILLS'] ?? 3);
const CALLERS = 16;
const account = { email: 'admin@example.com', password: 'a long passphrase' };

interface Row {
  id: string;
  method: string;
  resource_name: string | null;
  effect: string;
  shown: unknown;
}

async function allRows(url: string, token: string): Promise<Row[]> {
  const rows: Row[] = [];
  let path: string | undefined = '/api/logs?limit=1000';
  while (path !== undefined) {
    const page: { body: Row[]; headers: Headers } = await rest<Row[]>(url, 'GET', path, { token });
    rows.push(...page.body);
    path = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
  }
  return rows;
}

eachEngine(
  test,
  `${KILLS} kills under load: what was forwarded, denied or shown is in the audit log`,
  async (t: ExecutionContext, at) => {
    t.timeout(120_000 + KILLS * 15_000);
    const upstream = await startRecording(
      byMethod({
        'tools/call': () => ({ content: [] }),
        'tools/list': {
          tools: [
            { name: 'ok-listed', inputSchema: { type: 'object' } },
            { name: 'no-listed', inputSchema: { type: 'object' } },
          ],
        },
      }),
    );
    t.teardown(() => upstream.stop());
    const environment = {
      DATABASE_URL: at.url,
      DATA_DIR: dataDir(t),
      MASTER_KEY: Buffer.alloc(32, 3).toString('base64'),
      LOG_LEVEL: 'error',
      MCP_RATE_LIMIT: '10000000',
      DENIAL_RATE_LIMIT: '10000000',
    };
    let gateway = await runGateway(t, environment);
    const { port } = new URL(gateway.url);
    const api = <T>(method: string, path: string, token?: string, body?: unknown) =>
      rest<T>(gateway.url, method, path, { ...(token === undefined ? {} : { token }), ...(body === undefined ? {} : { body }) });
    await api('POST', '/api/auth/register', undefined, account);
    const { body: login } = await api<{ token: string }>('POST', '/api/auth/login', undefined, account);
    const { body: made } = await api<{ token: string }>('POST', '/api/auth/tokens', login.token, { name: 'load' });
    await api('POST', '/api/targets', login.token, { name: 'load', transport: 'streamable-http', url: upstream.url });
    await api('POST', '/api/policies', login.token, {
      name: 'ok',
      resource_type: 'tool',
      resource_pattern: '^ok-',
      effect: 'allow',
      priority: 1,
      subjects: [{ subject_type: 'everyone' }],
    });
    const mcp = `${gateway.url}/mcp/load`;
    const session = await openSession(mcp, made.token);

    const deniedIds: string[] = [];
    let lists = 0;
    let n = 0;
    let answers = 0;
    let onAnswer: (answered: number) => void = () => {};
    /** Calls, denied calls and lists in turn, until the gateway is gone. */
    const caller = async (): Promise<void> => {
      for (;;) {
        const i = n++;
        const message =
          i % 8 === 7 ? { jsonrpc: '2.0', id: i, method: 'tools/list' } : call(i % 8 === 3 ? `no-${i}` : `ok-${i}`, {}, i);
        const answer = await post(mcp, made.token, message, { 'mcp-session-id': session }).catch(() => null);
        if (answer === null) return;
        onAnswer(++answers);
        const { data } = answer.message?.error ?? {};
        if (data !== undefined) deniedIds.push((data as { decision_id: string }).decision_id);
        if (answer.message?.result?.['tools'] !== undefined) lists++;
      }
    };
    for (let kill = 0; kill < KILLS; kill++) {
      answers = 0;
      const callers = Array.from({ length: CALLERS }, caller);
      const moment = 50 + Math.floor(Math.random() * 150);
      await new Promise<void>((resolve) => {
        onAnswer = (answered) => {
          if (answered === moment) resolve();
        };
      });
      gateway.child.kill('SIGKILL');
      await gateway.ended;
      await Promise.all(callers);
      gateway = await runGateway(t, { ...environment, PORT: port });
    }

    const verification = createVerification([createChainKey(createVault(Buffer.alloc(32, 3)).derive('audit chain'))]);
    const log = await fetch(`${gateway.url}/api/logs/export?format=ndjson`, {
      headers: { authorization: `Bearer ${login.token}` },
    });
    for (const text of (await log.text()).trimEnd().split('\n')) {
      const line = readLine(text);
      if (line !== null) verification.take(line);
    }
    const { report } = verification.finish();
    t.deepEqual(report.problems, [], 'the chains are whole');
    t.is(report.chains, KILLS + 1);

    const rows = await allRows(gateway.url, login.token);
    const allowed = new Set(rows.filter((row) => row.effect === 'allow').map((row) => row.resource_name));
    const ids = new Set(rows.filter((row) => row.effect === 'deny').map((row) => row.id));
    const forwarded = upstream.received.flatMap(({ message }) =>
      message?.method === 'tools/call' ? [String(message.params?.['name'])] : [],
    );
    t.log(`${forwarded.length} forwarded, ${deniedIds.length} denied, ${lists} lists; ${rows.length} rows`);
    t.true(forwarded.length > 0 && deniedIds.length > 0 && lists > 0, 'there was load');
    t.deepEqual(
      forwarded.filter((name) => !allowed.has(name)),
      [],
      'forwarded without a row',
    );
    t.deepEqual(
      forwarded.filter((name) => !name.startsWith('ok-')),
      [],
    );
    t.deepEqual(
      deniedIds.filter((id) => !ids.has(id)),
      [],
      'denied without a row',
    );
    t.true(rows.filter((row) => row.method === 'tools/list' && row.shown !== null).length >= lists, 'shown without a record');
  },
);
