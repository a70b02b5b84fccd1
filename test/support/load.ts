/** A gateway process under constant traffic, and the checks that must pass afterwards, whatever happened (law 5). */
import type { ExecutionContext } from 'ava';
import { createChainKey } from '../../src/audit/chain/chain.ts';
import { readLine } from '../../src/audit/verify/lines.ts';
import { createVerification } from '../../src/audit/verify/verify.ts';
import { createVault } from '../../src/auth/vault.ts';
import { rest } from './gateway.ts';
import { call, openSession, post, type RpcAnswer } from './mcp.ts';
import { dataDir, type GatewayProcess, runGateway } from './process.ts';
import { byMethod, type RecordingUpstream, startRecording } from './upstreams/recording.ts';

/** `broken`: the connection ended before the answer. `other`: an answer that no client should get. */
export type Kind = 'allowed' | 'denied' | 'listed' | 'changed' | 'read' | 'refused' | 'broken' | 'other';

export interface Reply {
  readonly kind: Kind;
  readonly askedAt: number;
  readonly tookMs: number;
  /** A description of the answer, for people. */
  readonly text: string;
}

export interface Load {
  readonly gateway: GatewayProcess;
  readonly upstream: RecordingUpstream;
  /** The answers in the order of arrival. */
  readonly replies: Reply[];
  /** Makes traffic until `halt`, or until the gateway is gone. One of the callers is an administrator. */
  begin(callers: number, pauseMs: number): void;
  /** Resolves when so many more replies of these kinds have come; rejects when that takes too long. */
  next(count: number, ...kinds: Kind[]): Promise<void>;
  halt(): Promise<void>;
  /** Starts the gateway again on the same port, after it has ended. */
  restart(): Promise<void>;
  /** How many of the calls that were answered have a row that does not say so yet. */
  unfinished(): Promise<number>;
  /** Checks that every effect has its record, and that the chains are complete. */
  check(t: ExecutionContext): Promise<Checked>;
}

interface Checked {
  readonly chains: number;
}

interface Row {
  id: string;
  method: string;
  resource_name: string | null;
  effect: string;
  shown: unknown;
  outcome: string | null;
}

interface Message {
  readonly params?: { readonly name: string };
}

interface ChangeRow {
  action: string;
  after: { description?: string } | null;
}

export const MASTER_KEY = Buffer.alloc(32, 3);
const SERVED: readonly Kind[] = ['allowed', 'denied', 'listed'];
const PATIENCE_MS = 60_000;
const ADMINISTER_EVERY_MS = 50;
/** The e-mail in every row of the traffic. */
export const PERSONAL = 'admin@example.com';
const account = { email: PERSONAL, password: 'a long passphrase' };

/** `within`: words that come before the gateway's command. */
export async function startLoad(
  t: ExecutionContext,
  environment: Readonly<Record<string, string>>,
  within: readonly string[] = [],
): Promise<Load> {
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
  const settings = {
    DATA_DIR: dataDir(t),
    MASTER_KEY: MASTER_KEY.toString('base64'),
    LOG_LEVEL: 'error',
    MCP_RATE_LIMIT: '10000000',
    API_RATE_LIMIT: '10000000',
    DENIAL_RATE_LIMIT: '10000000',
    ...environment,
  };
  let gateway = await runGateway(t, settings, within);
  const { url } = gateway;
  const api = <T>(method: string, path: string, token?: string, body?: unknown) =>
    rest<T>(url, method, path, { ...(token === undefined ? {} : { token }), ...(body === undefined ? {} : { body }) });
  await api('POST', '/api/auth/register', undefined, account);
  const { body: login } = await api<{ token: string }>('POST', '/api/auth/login', undefined, account);
  const admin = login.token;
  const { token } = (await api<{ token: string }>('POST', '/api/auth/tokens', admin, { name: 'load' })).body;
  const target = { name: 'load', transport: 'streamable-http', url: upstream.url };
  const { id: targetId } = (await api<{ id: string }>('POST', '/api/targets', admin, target)).body;
  await api('POST', '/api/policies', admin, {
    name: 'ok',
    resource_type: 'tool',
    resource_pattern: '^ok-',
    effect: 'allow',
    priority: 1,
    subjects: [{ subject_type: 'everyone' }],
  });
  const mcp = `${url}/mcp/load`;
  const session = await openSession(mcp, token);

  const replies: Reply[] = [];
  const deniedIds: string[] = [];
  const answered = new Set<string>();
  const changed: string[] = [];
  const waiting = new Set<(reply: Reply) => void>();
  let callers: Promise<void>[] = [];
  let halted = false;
  let n = 0;

  async function ask(message: Message): Promise<Omit<Reply, 'askedAt' | 'tookMs'>> {
    const answer = await post(mcp, token, message, { 'mcp-session-id': session });
    const { data } = answer.message?.error ?? {};
    const denied = (data as { decision_id?: string } | undefined)?.decision_id;
    if (denied !== undefined) deniedIds.push(denied);
    const kind = kindOf(answer, denied);
    if (kind === 'allowed' && message.params !== undefined) answered.add(message.params.name);
    return { kind, text: `${answer.status} ${JSON.stringify(answer.message)}` };
  }

  async function administer(): Promise<Omit<Reply, 'askedAt' | 'tookMs'>> {
    const i = n++;
    const description = `change ${i}`;
    const writes = i % 2 === 0;
    const answer = writes
      ? await api<unknown>('PUT', `/api/targets/${targetId}`, admin, { description })
      : await api<unknown>('GET', '/api/users?limit=1', admin);
    const kind = answer.status === 200 ? (writes ? 'changed' : 'read') : isRefusal(answer) ? 'refused' : 'other';
    if (kind === 'changed') changed.push(description);
    return { kind, text: `${answer.status} ${JSON.stringify(answer.body)}` };
  }

  /** Calls, denied calls and lists in turn. */
  function traffic(): Promise<Omit<Reply, 'askedAt' | 'tookMs'>> {
    const i = n++;
    if (i % 8 === 7) return ask({ jsonrpc: '2.0', id: i, method: 'tools/list' } as Message);
    return ask(call(i % 8 === 3 ? `no-${i}` : `ok-${i}`, {}, i));
  }

  async function caller(pauseMs: number, request: typeof traffic): Promise<void> {
    while (!halted) {
      const askedAt = performance.now();
      const answer = await request().catch((error: Error) => ({ kind: 'broken' as const, text: String(error.cause ?? error) }));
      const reply = { ...answer, askedAt, tookMs: performance.now() - askedAt };
      replies.push(reply);
      for (const tell of waiting) tell(reply);
      if (reply.kind === 'broken') return;
      if (pauseMs > 0) await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }

  async function allRows(): Promise<Row[]> {
    const rows: Row[] = [];
    let path: string | undefined = '/api/logs?limit=1000';
    while (path !== undefined) {
      const page: { body: Row[]; headers: Headers } = await api<Row[]>('GET', path, admin);
      rows.push(...page.body);
      path = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
    }
    return rows;
  }

  async function allChanges(): Promise<ChangeRow[]> {
    const rows: ChangeRow[] = [];
    let path: string | undefined = '/api/changes?limit=1000';
    while (path !== undefined) {
      const page: { body: ChangeRow[]; headers: Headers } = await api<ChangeRow[]>('GET', path, admin);
      rows.push(...page.body);
      path = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
    }
    return rows;
  }

  return {
    get gateway() {
      return gateway;
    },
    upstream,
    replies,
    begin(count, pauseMs) {
      halted = false;
      callers = Array.from({ length: count - 1 }, () => caller(pauseMs, traffic));
      callers.push(caller(ADMINISTER_EVERY_MS, administer));
    },
    next: (count, ...kinds) =>
      new Promise((resolve, reject) => {
        let left = count;
        const end = (): void => {
          clearTimeout(timer);
          waiting.delete(tell);
        };
        const timer = setTimeout(() => {
          end();
          reject(new Error(`not ${count} times ${kinds.join()}; the last replies: ${JSON.stringify(replies.slice(-5))}`));
        }, PATIENCE_MS);
        const tell = ({ kind }: Reply): void => {
          if (!kinds.includes(kind) || --left > 0) return;
          end();
          resolve();
        };
        waiting.add(tell);
      }),
    async halt() {
      halted = true;
      await Promise.all(callers);
    },
    async restart() {
      gateway = await runGateway(t, { ...settings, PORT: new URL(url).port }, within);
    },
    unfinished: async () =>
      (await allRows()).filter(({ resource_name, outcome }) => outcome === null && answered.has(resource_name ?? '')).length,
    async check(t) {
      const verification = createVerification([createChainKey(createVault(MASTER_KEY).derive('audit chain'))], Date.now());
      const log = await fetch(`${url}/api/logs/export?format=ndjson`, { headers: { authorization: `Bearer ${admin}` } });
      for (const text of (await log.text()).trimEnd().split('\n')) {
        const line = readLine(text);
        if (line !== null) verification.take(line);
      }
      const { report } = verification.finish();
      t.deepEqual(report.problems, [], 'the chains are whole');

      const rows = await allRows();
      const allowed = new Set(rows.filter((row) => row.effect === 'allow').map((row) => row.resource_name));
      const denied = new Set(rows.filter((row) => row.effect === 'deny').map((row) => row.id));
      const forwarded = upstream.received.flatMap(({ message }) =>
        message?.method === 'tools/call' ? [String(message.params?.['name'])] : [],
      );
      const lists = replies.filter(({ kind }) => kind === 'listed').length;
      const took = Math.max(0, ...replies.map(({ tookMs }) => tookMs));
      const counts = `${forwarded.length} forwarded, ${deniedIds.length} denied, ${lists} lists, ${changed.length} changes`;
      const refused = replies.filter(({ kind }) => kind === 'refused').length;
      t.log(`${counts}, ${refused} refused; ${rows.length} rows, ${report.chains} chains; at most ${took.toFixed(0)} ms`);
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
        deniedIds.filter((id) => !denied.has(id)),
        [],
        'denied without a row',
      );
      t.true(rows.filter((row) => row.method === 'tools/list' && row.shown !== null).length >= lists, 'shown without a record');
      if (changed.length > 0) {
        const recorded = new Set((await allChanges()).map(({ after }) => after?.description));
        t.deepEqual(
          changed.filter((description) => !recorded.has(description)),
          [],
          'changed without a record',
        );
      }
      return { chains: report.chains };
    },
  };
}

export const isServed = ({ kind }: Reply): boolean => SERVED.includes(kind);

function isRefusal({ status, headers }: { readonly status: number; readonly headers: Headers }): boolean {
  return status === 503 && headers.get('retry-after') !== null;
}

function kindOf(answer: RpcAnswer, denied: string | undefined): Kind {
  if (isRefusal(answer)) return 'refused';
  if (denied !== undefined) return 'denied';
  // The target has been asked: in a session this is said to the client, which would not look for it in an HTTP status.
  if (/^The gateway cannot (?:decide|record) at the moment; try again$/.test(answer.message?.error?.message ?? ''))
    return 'refused';
  if (answer.status !== 200 || answer.message?.result === undefined) return 'other';
  return answer.message.result['tools'] === undefined ? 'allowed' : 'listed';
}
