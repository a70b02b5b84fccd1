/**
 * How long the first request after an administrator's change waits for the policies to be compiled anew: at the replica that took the change,
 * and at another one. The change takes the right to call away or gives it back, so that an answer from an older state would show.
 */
import { randomBytes } from 'node:crypto';
import { Client } from 'undici';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import type { Engine } from '../../test/support/databases/engines.ts';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import { openSession } from '../../test/support/mcp.ts';
import { type Portcullis, startPortcullis, startProcess } from '../gateway/own.ts';
import { median } from '../measure.ts';
import { createWorkload, MIXES } from '../workload.ts';
import { dropped } from './path.ts';

export interface RebuildFigures {
  readonly engine: Engine['name'];
  readonly policies: number;
  /** `own`: the replica that took the change. */
  readonly replica: 'own' | 'other';
  readonly changes: number;
  /** Milliseconds that the change took, and a call that waits for nothing. */
  readonly change: number;
  readonly usual: number;
  /** Milliseconds that the first call after the answered change took longer than a usual one. */
  readonly wait: number;
  readonly longestWait: number;
  /** First calls that were decided as before the change. */
  readonly stale: number;
  /** First calls that were neither allowed nor denied: the gateway has said that it is not ready. */
  readonly refused: number;
}

export interface RebuildPlan {
  readonly policies: number;
  readonly changes: number;
}

type Answer = 'allowed' | 'denied' | 'refused';

interface Caller {
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
}

async function callerAt(origin: string, { users: [place] }: Portcullis): Promise<Caller> {
  if (place === undefined) throw new Error('no user');
  const url = new URL(new URL(place.url).pathname, origin);
  const token = (place.headers['authorization'] ?? '').slice('Bearer '.length);
  const headers = {
    ...place.headers,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': '2025-11-25',
    'mcp-session-id': await openSession(url.href, token),
  };
  return { url, headers };
}

const BODY = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":"hello"}}}';

/** Uses a new connection. */
async function call({ url, headers }: Caller): Promise<{ readonly answer: Answer; readonly ms: number }> {
  const client = new Client(url.origin);
  const before = performance.now();
  const { statusCode, body } = await client.request({ path: url.pathname, method: 'POST', headers, body: BODY });
  const text = await body.text();
  const ms = performance.now() - before;
  await client.close();
  if (text.includes('Echo: hello"')) return { answer: 'allowed', ms };
  if (statusCode === 503) return { answer: 'refused', ms };
  // In band: the tool is denied, or, with the only right gone, the target is not there.
  if (statusCode === 200 && /"code":40[34]\b/.test(text)) return { answer: 'denied', ms };
  throw new Error(`tools/call: ${statusCode} ${text}`);
}

/** As many as are wanted, but for the one that the gateway is told of. */
async function fill(databaseUrl: string, count: number): Promise<void> {
  const { database: config } = readConfig({ DATABASE_URL: databaseUrl });
  const database = await openDatabase(config, async () => undefined);
  try {
    await database.knex.transaction(async (trx) => {
      const store = policyStore(trx);
      for (const policy of createWorkload(MIXES.mixed, count).policies)
        await store.change([{ before: null, after: { ...policy, managed_as: null, drift_since: null } }]);
    });
  } finally {
    await database.close();
  }
}

interface Wait {
  readonly change: number;
  readonly usual: number;
  readonly wait: number;
  readonly stale: boolean;
  readonly refused: boolean;
}

async function changeAndCall(gateway: Portcullis, caller: Caller, enabled: boolean): Promise<Wait> {
  const before = performance.now();
  const answer = await fetch(`${gateway.origin}/api/policies/${gateway.deciding}`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${gateway.admin}`, 'content-type': 'application/json' },
    body: JSON.stringify({ enabled }),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`PUT /api/policies: ${answer.status} ${text}`);
  const answered = performance.now();
  const first = await call(caller);
  for (let last = first; last.answer === 'refused'; ) last = await call(caller);
  const waited = performance.now() - answered;
  const later: number[] = [];
  for (let i = 0; i < 5; i++) later.push((await call(caller)).ms);
  const usual = median(later);
  return {
    change: answered - before,
    usual,
    wait: Math.max(0, (first.answer === 'refused' ? waited : first.ms) - usual),
    stale: first.answer === (enabled ? 'denied' : 'allowed'),
    refused: first.answer === 'refused',
  };
}

/** With servers there are two replicas, and every second change is met at the other one. */
export async function measureRebuild(
  { guardian, upstream, main }: { readonly guardian: Guardian; readonly upstream: string; readonly main: string },
  engine: Engine,
  { policies, changes }: RebuildPlan,
): Promise<RebuildFigures[]> {
  const database = await engine.create();
  const pids: number[] = [];
  try {
    await fill(database.url, policies - 1);
    const options = { main, env: { MASTER_KEY: randomBytes(32).toString('base64') } };
    const gateway = await startPortcullis({ guardian, upstream }, database.url, { ...options, users: 1, policies: 1 });
    pids.push(gateway.pid);
    const callers: [RebuildFigures['replica'], Caller][] = [['own', await callerAt(gateway.origin, gateway)]];
    if (engine.name !== 'sqlite') {
      const other = await startProcess(guardian, database.url, options);
      pids.push(other.pid);
      callers.push(['other', await callerAt(other.origin, gateway)]);
    }
    const waits = new Map(callers.map(([replica]) => [replica, [] as Wait[]]));
    // The first of each is not counted: the code that compiles is compiled, too.
    for (let i = -1; i < changes; i++) {
      for (const [replica, caller] of callers) {
        for (const enabled of [false, true]) {
          const wait = await changeAndCall(gateway, caller, enabled);
          if (i >= 0) waits.get(replica)?.push(wait);
        }
      }
    }
    return [...waits].map(([replica, all]) => ({
      engine: engine.name,
      policies,
      replica,
      changes: all.length,
      change: median(all.map(({ change }) => change)),
      usual: median(all.map(({ usual }) => usual)),
      wait: median(all.map(({ wait }) => wait)),
      longestWait: Math.max(...all.map(({ wait }) => wait)),
      stale: all.filter(({ stale }) => stale).length,
      refused: all.filter(({ refused }) => refused).length,
    }));
  } finally {
    for (const pid of pids) killGroup(pid, 'SIGKILL');
    await dropped([database]);
  }
}
