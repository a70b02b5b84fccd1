/** A target that a test scripts, and that records the messages that it receives. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Received {
  readonly httpMethod: string;
  readonly url: string;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
  /** The parsed body; undefined where there is none. */
  readonly message: Message | undefined;
}

/** A received message of any form. */
export interface Message {
  readonly jsonrpc?: unknown;
  readonly id?: string | number;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly code: number; readonly message: string };
}

export type Script = (received: Received, res: ServerResponse) => void | Promise<void>;

export interface RecordingUpstream {
  readonly url: string;
  readonly received: Received[];
  /** Returns the methods of the messages in the order of arrival, or the HTTP method of a request without a message. */
  seen(): string[];
  script: Script;
  stop(): Promise<void>;
}

export async function startRecording(script: Script): Promise<RecordingUpstream> {
  const received: Received[] = [];
  const server = createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString('utf8');
    const entry = {
      httpMethod: req.method ?? '',
      url: req.url ?? '',
      headers: req.headers,
      text,
      message: text === '' ? undefined : (JSON.parse(text) as Message),
    };
    received.push(entry);
    await upstream.script(entry, res);
  });
  // An idle connection must not be closed at the moment of the next request.
  server.keepAliveTimeout = 0;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const upstream: RecordingUpstream = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    received,
    seen: () => received.map(({ message, httpMethod }) => message?.method ?? (message === undefined ? httpMethod : 'response')),
    script,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return upstream;
}

export function answerJson(res: ServerResponse, body: object, headers: Record<string, string> = {}, status = 200): void {
  res.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
}

export function answerText(res: ServerResponse, text: string, contentType = 'application/json', status = 200): void {
  res.writeHead(status, { 'content-type': contentType }).end(text);
}

type Results = Readonly<Record<string, object | ((params: Record<string, unknown>) => object)>>;

/**
 * Answers each request with the result for its method. Speaks the session revisions, or with `modern` 2026-07-28.
 * A method without a result is an error of the test, answered as the target's own.
 */
export function byMethod(results: Results, { modern = false } = {}): Script {
  return ({ httpMethod, message }, res) => {
    if (httpMethod === 'DELETE') return void res.writeHead(200).end();
    if (message?.id === undefined || message.method === undefined)
      return void res.writeHead(httpMethod === 'GET' ? 405 : 202).end();
    const { id, method, params = {} } = message;
    const base: Results = modern
      ? { 'server/discover': { supportedVersions: ['2026-07-28'], capabilities: { tools: {} }, resultType: 'complete' } }
      : {
          initialize: {
            protocolVersion: params.protocolVersion,
            capabilities: { tools: {} },
            serverInfo: { name: 'r', version: '1' },
          },
        };
    if (!modern && method === 'server/discover') {
      return answerJson(res, { jsonrpc: '2.0', id: null, error: { code: -32000, message: 'Bad Request: no session' } }, {}, 400);
    }
    const found = results[method] ?? base[method];
    if (found === undefined) return answerJson(res, { jsonrpc: '2.0', id, error: { code: -32601, message: `no ${method}` } });
    const result = typeof found === 'function' ? found(params) : found;
    answerJson(res, { jsonrpc: '2.0', id, result }, method === 'initialize' ? { 'mcp-session-id': 'upstream-session-1' } : {});
  };
}
