/** The official clients, and a raw one for what they would not send. */
import { Client as ModernClient, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { ExecutionContext } from 'ava';
import type { Run } from './gateway.ts';

const bearer = (token: string) => ({ requestInit: { headers: { authorization: `Bearer ${token}` } } });

/** Connects a client of SDK 1.x, which uses sessions. */
export async function sessionClient(t: ExecutionContext, url: string, token: string): Promise<Client> {
  const client = new Client({ name: 'test-1.x', version: '1.0.0' });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), bearer(token)));
  t.teardown(() => client.close());
  return client;
}

/** SDK 2.x: `auto` prefers 2026-07-28 and falls back to sessions; `legacy` speaks only sessions. */
export async function modernClient(t: Run, url: string, token: string, mode: 'auto' | 'legacy' = 'auto'): Promise<ModernClient> {
  const client = new ModernClient({ name: 'test-2.x', version: '1.0.0' }, { versionNegotiation: { mode } });
  await client.connect(new ModernTransport(new URL(url), bearer(token)));
  t.teardown(() => client.close());
  return client;
}

export interface RpcAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** The one JSON-RPC answer, whether it came as JSON or as an event; null where there is none. */
  readonly message: {
    readonly result?: Record<string, unknown>;
    readonly error?: { code: number; message: string; data?: unknown };
  } | null;
}

/** Sends one POST of revision 2025-11-25. */
export async function post(
  url: string,
  token: string | null,
  message: object | string,
  headers: Record<string, string> = {},
  signal: AbortSignal | null = null,
): Promise<RpcAnswer> {
  const answer = await fetch(url, {
    method: 'POST',
    signal,
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': '2025-11-25',
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    body: typeof message === 'string' ? message : JSON.stringify(message),
  });
  const text = await answer.text();
  const json = answer.headers.get('content-type')?.startsWith('text/event-stream')
    ? text
        .split('\n')
        .filter((line) => line.startsWith('data: {'))
        .at(-1)
        ?.slice('data: '.length)
    : text;
  return { status: answer.status, headers: answer.headers, message: json ? JSON.parse(json) : null };
}

/** Opens a session and returns its id. */
export async function openSession(url: string, token: string, protocolVersion = '2025-11-25'): Promise<string> {
  const answer = await post(url, token, {
    jsonrpc: '2.0',
    id: 0,
    method: 'initialize',
    params: { protocolVersion, capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
  });
  const session = answer.headers.get('mcp-session-id');
  if (session === null) throw new Error(`no session: ${answer.status} ${JSON.stringify(answer.message)}`);
  await post(url, token, { jsonrpc: '2.0', method: 'notifications/initialized' }, { 'mcp-session-id': session });
  return session;
}

/** The `_meta` of a request of revision 2026-07-28. */
export const MODERN_META = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
};

export const call = (name: string, args: object = {}, id: number | string = 1) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args },
});
