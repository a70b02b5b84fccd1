/**
 * The target behind every system, in a process of its own: Streamable HTTP of 2025-11-25 with the tool `echo`, on plain `node:http`, so
 * that it is never what the others wait for. Standing streams stay open and silent. The argument `pad` makes the result of `echo` that
 * many characters longer. The cursor of a list is the number of its tools.
 */
import { randomUUID } from 'node:crypto';
import { createServer, type ServerResponse } from 'node:http';
import { announce } from './announce.ts';

interface Request {
  readonly id?: string | number;
  readonly method?: string;
  readonly params?: Readonly<Record<string, unknown>>;
}

const TOOL = {
  name: 'echo',
  description: 'Says what it is told.',
  inputSchema: { type: 'object', properties: { message: { type: 'string' } }, required: ['message'] },
};

const lists = new Map<number, readonly object[]>();

/** `echo`, and others that no policy of the benchmark allows. */
function toolsOf(count: number): readonly object[] {
  const known = lists.get(count);
  if (known !== undefined) return known;
  const tools = [
    TOOL,
    ...Array.from({ length: count - 1 }, (_, i) => ({ ...TOOL, name: i % 2 === 0 ? `group_${i}_a` : `other_${i}` })),
  ];
  lists.set(count, tools);
  return tools;
}

/** Parsing a larger message would hold up everybody else's: 199,000 members take more than 100 ms. */
const LARGE = 128 * 1024;
const HEAD = /^\{"jsonrpc":"2\.0","id":("[^"\\]*"|\d+),"method":"([^"\\]*)"/;

/** Reads only the head of a large message. */
function requestIn(body: Buffer): Request {
  const [, id, method] = body.length > LARGE ? (HEAD.exec(body.toString('latin1', 0, 512)) ?? []) : [];
  if (id === undefined || method === undefined) return JSON.parse(body.toString()) as Request;
  return { id: JSON.parse(id) as string | number, method };
}

function answer(res: ServerResponse, body: object, headers: Record<string, string> = {}): void {
  const text = JSON.stringify(body);
  res.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text), ...headers });
  res.end(text);
}

function resultOf({ method, params }: Request): object | null {
  switch (method) {
    case 'initialize':
      return {
        protocolVersion: params?.['protocolVersion'],
        capabilities: { tools: {} },
        serverInfo: { name: 'bench-upstream', version: '1' },
      };
    case 'tools/call': {
      const { message, pad = 0 } = (params?.['arguments'] ?? {}) as { message?: string; pad?: number };
      return {
        content: [{ type: 'text', text: `Echo: ${message}` }, ...(pad === 0 ? [] : [{ type: 'text', text: 'x'.repeat(pad) }])],
      };
    }
    case 'tools/list':
      return { tools: toolsOf(Number(params?.['cursor'] ?? 1)) };
    case 'resources/list':
      return { resources: [] };
    case 'resources/templates/list':
      return { resourceTemplates: [] };
    case 'prompts/list':
      return { prompts: [] };
    case 'ping':
      return {};
    default:
      return null;
  }
}

function respond(res: ServerResponse, request: Request): void {
  const { id, method } = request;
  if (id === undefined || method === undefined) {
    res.writeHead(202).end();
    return;
  }
  const result = resultOf(request);
  if (result === null) answer(res, { jsonrpc: '2.0', id, error: { code: -32601, message: 'Method not found' } });
  else answer(res, { jsonrpc: '2.0', id, result }, method === 'initialize' ? { 'mcp-session-id': randomUUID() } : {});
}

const server = createServer((req, res) => {
  if (req.method === 'GET') {
    res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' }).flushHeaders();
    return;
  }
  if (req.method !== 'POST') return void req.resume().on('end', () => res.writeHead(200).end());
  const chunks: Buffer[] = [];
  req.on('data', (chunk: Buffer) => chunks.push(chunk));
  req.on('end', () => respond(res, requestIn(Buffer.concat(chunks))));
});
await announce(server);
