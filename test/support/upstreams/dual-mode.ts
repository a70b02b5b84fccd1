/** A target on the official SDK 2.4 that speaks the session revisions and 2026-07-28 on one path, with something of everything. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from '@modelcontextprotocol/node';
import {
  acceptedContent,
  createMcpHandler,
  inputRequired,
  isLegacyRequest,
  ProtocolError,
  Server,
} from '@modelcontextprotocol/server';

export interface DualEraUpstream {
  readonly url: string;
  /** Names of the tools that ran, in order. */
  readonly ran: string[];
  /** The headers of every request. */
  readonly headers: IncomingMessage['headers'][];
  /** Announces a changed resource on every session that has a stream. */
  announce(uri: string): Promise<void>;
  stop(): Promise<void>;
}

const TOOLS = ['ok', 'secret', 'progress', 'ask', 'links'];
const PROMPTS = ['ok', 'secret'];
const RESOURCES = ['file:///public/a.txt', 'file:///secret/b.txt', 'file:///public/x/../b.txt'];

const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });

export async function startDualEra(): Promise<DualEraUpstream> {
  const ran: string[] = [];
  const headers: IncomingMessage['headers'][] = [];
  const sessions = new Map<string, { transport: NodeStreamableHTTPServerTransport; server: Server }>();

  function build(mode: 'stateful' | 'stateless'): Server {
    const capabilities = { tools: {}, prompts: {}, resources: { subscribe: true }, completions: {}, logging: {} };
    const server = new Server({ name: 'dual-mode', version: '1' }, { capabilities });
    server.setRequestHandler('tools/list', () => ({
      tools: TOOLS.map((name) => ({ name, inputSchema: { type: 'object' as const } })),
    }));
    server.setRequestHandler('prompts/list', () => ({ prompts: PROMPTS.map((name) => ({ name })) }));
    server.setRequestHandler('resources/list', () => ({ resources: RESOURCES.map((uri) => ({ uri, name: uri })) }));
    server.setRequestHandler('resources/templates/list', () => ({
      resourceTemplates: ['file:///public/{name}', 'file:///secret/{name}'].map((uriTemplate) => ({
        uriTemplate,
        name: uriTemplate,
      })),
    }));
    server.setRequestHandler('resources/read', ({ params: { uri } }) => ({ contents: [{ uri, text: `content of ${uri}` }] }));
    server.setRequestHandler('resources/subscribe', () => ({}));
    server.setRequestHandler('prompts/get', ({ params: { name } }) => ({
      messages: [{ role: 'user' as const, content: { type: 'text' as const, text: `prompt ${name}` } }],
    }));
    server.setRequestHandler('completion/complete', () => ({ completion: { values: ['a.txt', 'b.txt'] } }));
    server.setRequestHandler('tools/call', async ({ params }, ctx) => {
      if (!TOOLS.includes(params.name)) throw new ProtocolError(-32602, `Unknown tool: ${params.name}`);
      ran.push(params.name);
      if (params.name === 'progress') {
        const progressToken = ctx.mcpReq._meta?.progressToken;
        for (const progress of [1, 2]) {
          if (progressToken !== undefined) {
            await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 2 } });
          }
        }
      }
      if (params.name === 'links') {
        return { content: RESOURCES.map((uri) => ({ type: 'resource_link' as const, uri, name: uri })) };
      }
      if (params.name !== 'ask') return text(`${params.name} ${JSON.stringify(params.arguments ?? {})}`);
      const requestedSchema = { type: 'object' as const, properties: { word: { type: 'string' as const } }, required: ['word'] };
      const ask = { message: 'Which word?', requestedSchema };
      if (mode === 'stateful') {
        const answer = await ctx.mcpReq.send({ method: 'elicitation/create', params: ask });
        return text(`${answer.action} ${JSON.stringify(answer.content)}`);
      }
      const content = acceptedContent<{ word: string }>(ctx.mcpReq.inputResponses, 'word');
      return content === undefined
        ? inputRequired({ inputRequests: { word: inputRequired.elicit(ask) } })
        : text(`accept ${JSON.stringify(content)}`);
    });
    return server;
  }

  const stateless = toNodeHandler(createMcpHandler(() => build('stateless'), { legacy: 'reject' }));

  async function inSession(req: IncomingMessage, res: ServerResponse, body: unknown): Promise<void> {
    const id = req.headers['mcp-session-id'];
    const known = typeof id === 'string' ? sessions.get(id)?.transport : undefined;
    if (id !== undefined && known === undefined) return void res.writeHead(404).end();
    if (known !== undefined) return known.handleRequest(req, res, body);
    const server = build('stateful');
    const transport: NodeStreamableHTTPServerTransport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (opened) => void sessions.set(opened, { transport, server }),
    });
    await server.connect(transport);
    await transport.handleRequest(req, res, body);
  }

  const http = createServer(async (req, res) => {
    headers.push(req.headers);
    if (req.method !== 'POST') return inSession(req, res, undefined);
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const body: unknown = JSON.parse(Buffer.concat(chunks).toString('utf8'));
    const legacy = await isLegacyRequest(await toWebRequest(req, body), body);
    return legacy ? inSession(req, res, body) : stateless(req, res, body);
  });
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`,
    ran,
    headers,
    async announce(uri) {
      for (const { server } of sessions.values())
        await server.notification({ method: 'notifications/resources/updated', params: { uri } });
    },
    async stop() {
      for (const { transport } of sessions.values()) await transport.close();
      http.closeAllConnections();
      http.close();
      await once(http, 'close');
    },
  };
}
