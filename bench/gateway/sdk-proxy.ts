/**
 * The obvious proxy: for each session a `Server` of the official SDK glued to a `Client` of it. No token, no policy, no audit.
 * `node sdk-proxy.ts <url of the target>`
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node';
import { Server } from '@modelcontextprotocol/server';
import { announce } from './announce.ts';

const upstream = new URL(process.argv[2] ?? '');
const sessions = new Map<string, NodeStreamableHTTPServerTransport>();

async function open(): Promise<NodeStreamableHTTPServerTransport> {
  const client = new Client({ name: 'sdk-proxy', version: '1' }, { versionNegotiation: { mode: 'legacy' } });
  await client.connect(new StreamableHTTPClientTransport(upstream));
  const server = new Server({ name: 'sdk-proxy', version: '1' }, { capabilities: { tools: {} } });
  server.setRequestHandler('tools/list', ({ params }) => client.listTools(params));
  server.setRequestHandler('tools/call', ({ params }) => client.callTool(params));
  const transport: NodeStreamableHTTPServerTransport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: true,
    onsessioninitialized: (id) => void sessions.set(id, transport),
  });
  await server.connect(transport);
  return transport;
}

async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
  const id = req.headers['mcp-session-id'];
  const known = typeof id === 'string' ? sessions.get(id) : undefined;
  if (id !== undefined && known === undefined) return void res.writeHead(404).end();
  await (known ?? (await open())).handleRequest(req, res);
}

await announce(
  createServer((req, res) => {
    serve(req, res).catch(() => res.destroy());
  }),
);
