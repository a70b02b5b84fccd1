/** Sends raw requests without a client library, as an attacker would. */
import { request } from 'node:http';
import type { TestGateway } from './gateway.ts';

export const MODERN = '2026-07-28';

export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
  /** The JSON-RPC error code; undefined where there is none. */
  readonly code: number | undefined;
}

export interface Raw {
  readonly method?: string;
  readonly path?: string;
  /** A user is a token. */
  readonly user?: string | null;
  /** Name and value in turn, as they go over the wire; later ones do not replace the usual ones. */
  readonly headers?: readonly string[];
  /** The names of usual headers that are left out. */
  readonly without?: readonly string[];
  readonly body?: string | Buffer | object;
}

export function send(gateway: TestGateway, raw: Raw): Promise<Reply> {
  const { method = 'POST', path = '/mcp/t', user = 'alice', headers = [], without = [], body } = raw;
  const bytes = body === undefined ? undefined : typeof body === 'object' && !Buffer.isBuffer(body) ? JSON.stringify(body) : body;
  const usual = {
    host: new URL(gateway.origin).host,
    ...(user === null ? {} : { authorization: `Bearer ${user}` }),
    ...(method === 'POST' ? { 'content-type': 'application/json', accept: 'application/json, text/event-stream' } : {}),
    ...(bytes === undefined ? {} : { 'content-length': String(Buffer.byteLength(bytes)) }),
  };
  const own = Object.entries(usual).filter(([name]) => !without.includes(name));
  return new Promise((resolve, reject) => {
    const req = request(`${gateway.origin}`, { method, path, headers: [...own.flat(), ...headers] as never }, (res) => {
      const chunks: Buffer[] = [];
      res.on('data', (chunk: Buffer) => chunks.push(chunk));
      res.on('error', reject);
      res.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        resolve({ status: res.statusCode ?? 0, headers: res.headers, text, code: codeOf(text) });
      });
    });
    req.on('error', reject);
    req.end(bytes);
  });
}

function codeOf(text: string): number | undefined {
  try {
    return (JSON.parse(text) as { error?: { code?: number } }).error?.code;
  } catch {
    return undefined;
  }
}

/** A call of 2026-07-28 with the headers that repeat it, both open to change. */
export function modern(
  method: string,
  params: object = {},
  changes: { headers?: Record<string, string | undefined>; id?: unknown } = {},
): Raw {
  const { name, uri } = params as { name?: string; uri?: string };
  const usual = { 'mcp-protocol-version': MODERN, 'mcp-method': method, 'mcp-name': name ?? uri, ...changes.headers };
  const headers = Object.entries(usual).flatMap(([header, value]) => (value === undefined ? [] : [header, value]));
  const _meta = { 'io.modelcontextprotocol/protocolVersion': MODERN, 'io.modelcontextprotocol/clientCapabilities': {} };
  return { headers, body: { jsonrpc: '2.0', id: changes.id ?? 1, method, params: { _meta, ...params } } };
}

/** Opens a session of the given revision and gives its id. */
export async function open(
  gateway: TestGateway,
  { user = 'alice', target = 't', revision = '2025-11-25' } = {},
): Promise<string> {
  const params = { protocolVersion: revision, capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
  const reply = await send(gateway, {
    user,
    path: `/mcp/${target}`,
    body: { jsonrpc: '2.0', id: 0, method: 'initialize', params },
  });
  const id = reply.headers['mcp-session-id'];
  if (typeof id !== 'string') throw new Error(`no session: ${reply.status} ${reply.text}`);
  return id;
}

export const inSession = (session: string, body: string | object, more: Raw = {}): Raw => ({
  ...more,
  body,
  headers: ['mcp-session-id', session, ...(more.headers ?? [])],
});

export const call = (method: string, params: object = {}, id: unknown = 1): object => ({ jsonrpc: '2.0', id, method, params });
