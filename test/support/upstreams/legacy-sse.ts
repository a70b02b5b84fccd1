/** Targets of HTTP with SSE (2024-11-05): one on the official SDK 1.x, and one that a test scripts. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { SSEServerTransport } from '@modelcontextprotocol/sdk/server/sse.js';
import {
  CallToolRequestSchema,
  ElicitResultSchema,
  EmptyResultSchema,
  ListToolsRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';

export interface SseTarget {
  readonly url: string;
  readonly headers: IncomingMessage['headers'][];
  /** Connections that are open. */
  readonly open: Set<ServerResponse>;
  stop(): Promise<void>;
}

const TOOLS = ['echo', 'progress', 'ask', 'ping', 'wait', 'announce'];
const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });

export async function startSdkSse(): Promise<SseTarget> {
  const transports = new Map<string, SSEServerTransport>();
  return listen(async (req, res) => {
    const url = new URL(req.url ?? '', 'http://x');
    if (req.method === 'GET' && url.pathname === '/sse') {
      const transport = new SSEServerTransport('/messages', res);
      transports.set(transport.sessionId, transport);
      res.once('close', () => transports.delete(transport.sessionId));
      return buildServer().connect(transport);
    }
    const transport = transports.get(url.searchParams.get('sessionId') ?? '');
    if (req.method === 'POST' && url.pathname === '/messages' && transport !== undefined) {
      return transport.handlePostMessage(req, res);
    }
    res.writeHead(404).end();
  });
}

function buildServer(): Server {
  const server = new Server({ name: 'sdk-sse', version: '1' }, { capabilities: { tools: { listChanged: true }, logging: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: TOOLS.map((name) => ({ name, inputSchema: { type: 'object' } })),
  }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
    switch (params.name) {
      case 'progress':
        for (const progress of [1, 2]) {
          const progressToken = params._meta?.progressToken ?? 0;
          await extra.sendNotification({ method: 'notifications/progress', params: { progressToken, progress, total: 2 } });
        }
        return text('done');
      case 'ask': {
        const requestedSchema = { type: 'object' as const, properties: { word: { type: 'string' as const } } };
        const ask = { method: 'elicitation/create' as const, params: { message: 'Which word?', requestedSchema } };
        const answer = await extra.sendRequest(ask, ElicitResultSchema);
        return text(`${answer.action} ${JSON.stringify(answer.content)}`);
      }
      case 'ping':
        await extra.sendRequest({ method: 'ping' }, EmptyResultSchema);
        return text('alive');
      case 'wait':
        await new Promise((resolve) => extra.signal.addEventListener('abort', resolve, { once: true }));
        return text('never seen');
      case 'announce':
        await server.sendToolListChanged();
        return text('announced');
      default:
        return text(JSON.stringify(params.arguments ?? {}));
    }
  });
  return server;
}

export interface ScriptedSse extends SseTarget {
  /** Bodies of the messages that were posted. */
  readonly posted: {
    readonly id?: string | number;
    readonly method?: string;
    readonly result?: unknown;
    readonly error?: unknown;
  }[];
  /** Writes to every open connection. */
  write(text: string): void;
}

export interface SseScript {
  /** The events that a new connection gets. If empty, the endpoint event is missing. */
  readonly greeting?: (origin: string) => string;
  /** Handles a posted message. By default it answers `initialize`. */
  readonly onPost?: (message: ScriptedSse['posted'][number], target: ScriptedSse, res: ServerResponse) => void;
}

export const message = (value: object): string => `event: message\ndata: ${JSON.stringify({ jsonrpc: '2.0', ...value })}\n\n`;
export const ENDPOINT = 'event: endpoint\ndata: /messages?sessionId=1\n\n';

/** Answers `initialize`, and each POST with 202 after `onPost`, unless that has answered. */
export async function startScriptedSse({ greeting = () => ENDPOINT, onPost }: SseScript = {}): Promise<ScriptedSse> {
  const posted: ScriptedSse['posted'] = [];
  const target: SseTarget = await listen(async (req, res) => {
    if (req.method === 'GET') {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.write(greeting(new URL(target.url).origin));
      return;
    }
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const body = JSON.parse(Buffer.concat(chunks).toString('utf8')) as (typeof posted)[number];
    posted.push(body);
    if (body.method === 'initialize') {
      const result = { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } };
      scripted.write(message({ id: body.id, result }));
    } else onPost?.(body, scripted, res);
    if (!res.headersSent) res.writeHead(202).end('Accepted');
  });
  const scripted: ScriptedSse = {
    ...target,
    posted,
    write(text) {
      for (const connection of target.open) connection.write(text);
    },
  };
  return scripted;
}

async function listen(handle: (req: IncomingMessage, res: ServerResponse) => Promise<unknown>): Promise<SseTarget> {
  const headers: IncomingMessage['headers'][] = [];
  const open = new Set<ServerResponse>();
  const server = createServer((req, res) => {
    headers.push(req.headers);
    if (req.method === 'GET') {
      open.add(res);
      res.once('close', () => open.delete(res));
    }
    void handle(req, res);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/sse`,
    headers,
    open,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
