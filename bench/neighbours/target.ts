/**
 * A target that does what a target should not, in a process of its own. The path says what: `/good`, `/hung` never answers, `/flood` fills
 * the standalone stream with notifications, `/mute` has no standalone stream, `/endless` answers a call with a stream that closes its
 * connection and does not end. At `/good` the tool `huge` answers with more than a million members, and `text` with 12 MiB of text.
 * `/long/<number>` has a long list of tools. `/modern` speaks only 2026-07-28, and agrees to all subscriptions.
 */
import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { announce } from '../gateway/announce.ts';

interface Request {
  readonly id?: string | number;
  readonly method?: string;
  readonly params?: {
    readonly protocolVersion?: string;
    readonly name?: string;
    readonly arguments?: { readonly message?: string };
    readonly notifications?: object;
  };
}

const MEMBERS = 1_150_000;
const TEXT_BYTES = 12 * 1024 * 1024;
/** Notifications a second. */
const FLOOD = 2_000;
const UPDATED =
  'data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///secret/plan.txt"}}\n\n';
const PROGRESS = Buffer.from(
  `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"${'x'.repeat(60_000)}"}}\n\n`,
);
const TICK_MS = 10;
const JSON_TYPE = { 'content-type': 'application/json' };

const members = Array.from({ length: MEMBERS }, (_, i) => `"k${i}":0`).join();
/** Encoded once: a target that encodes them for each call takes a core from the gateway. */
const HUGE = Buffer.from(`{"content":[{"type":"text","text":"huge"}],"structuredContent":{${members}}}`);
const TEXT = Buffer.from(`{"content":[{"type":"text","text":"${'a'.repeat(TEXT_BYTES)}"}]}`);
const TOOLS = ['echo', 'huge', 'text', 'endless'].map((name) => ({ name, inputSchema: { type: 'object' } }));

const LISTED = 500;
/** About 600 bytes, as the tools of real servers. */
const listed = (i: number): object => ({
  name: `records_${i}_update`,
  title: `Update records of collection ${i}`,
  description: `Updates the records of collection ${i} that match the filter. Returns the number of records that were changed.`,
  inputSchema: {
    type: 'object',
    properties: {
      filter: { type: 'string', description: 'An expression that selects records, such as `state = "open"`' },
      values: { type: 'object', description: 'The new values by field', additionalProperties: { type: 'string' } },
      limit: { type: 'integer', minimum: 1, maximum: 1000, default: 100 },
    },
    required: ['filter', 'values'],
  },
});
const LONG_LIST = Buffer.from(JSON.stringify({ tools: Array.from({ length: LISTED }, (_, i) => listed(i)) }));

function resultOf({ method, params }: Request, path: string): string | Buffer {
  switch (method) {
    case 'initialize':
      return JSON.stringify({
        protocolVersion: params?.protocolVersion,
        capabilities: { tools: {}, resources: { subscribe: true }, logging: {} },
        serverInfo: { name: 'bad-target', version: '1' },
      });
    case 'server/discover':
      return JSON.stringify({
        resultType: 'complete',
        supportedVersions: ['2026-07-28'],
        capabilities: { resources: { subscribe: true } },
        _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'bad-target', version: '1' } },
      });
    case 'tools/list':
      return path.startsWith('/long/') ? LONG_LIST : JSON.stringify({ tools: TOOLS });
    case 'tools/call':
      if (params?.name === 'huge') return HUGE;
      if (params?.name === 'text') return TEXT;
      return JSON.stringify({ content: [{ type: 'text', text: `Echo: ${params?.arguments?.message}` }] });
    case 'resources/list':
      return '{"resources":[]}';
    case 'resources/templates/list':
      return '{"resourceTemplates":[]}';
    case 'prompts/list':
      return '{"prompts":[]}';
    default:
      return '{}';
  }
}

const stream = (res: ServerResponse, headers: Record<string, string> = {}): void =>
  res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', ...headers }).flushHeaders();

/** Sends a fixed number of events a second, fewer if the reader is slow. */
async function flood(res: ServerResponse, event: string, perSecond: number): Promise<void> {
  let owed = 0;
  for (let last = performance.now(); !res.destroyed; ) {
    await sleep(TICK_MS);
    const now = performance.now();
    owed += ((now - last) * perSecond) / 1_000;
    last = now;
    if (res.writableNeedDrain) owed = 0;
    for (; owed >= 1; owed--) res.write(event);
  }
}

/** Sends as fast as the reader reads. */
function pour(res: ServerResponse, event: Buffer): void {
  while (!res.destroyed && res.write(event));
  if (!res.destroyed) res.once('drain', () => setImmediate(pour, res, event));
}

function respond(path: string, res: ServerResponse, request: Request): void {
  const { id, method } = request;
  if (id === undefined || method === undefined) return void res.writeHead(202).end();
  if (path === '/endless' && method === 'tools/call') {
    stream(res, { connection: 'close' });
    pour(res, PROGRESS);
    return;
  }
  if (path === '/modern' && method === 'initialize') {
    const error = { code: -32601, message: 'Method not found' };
    return void res.writeHead(400, JSON_TYPE).end(JSON.stringify({ jsonrpc: '2.0', id, error }));
  }
  if (method === 'subscriptions/listen') {
    const params = { notifications: request.params?.notifications, _meta: { 'io.modelcontextprotocol/subscriptionId': id } };
    stream(res);
    res.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/subscriptions/acknowledged', params })}\n\n`);
    return;
  }
  const result = resultOf(request, path);
  const head = `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"result":`;
  const session = method === 'initialize' ? { 'mcp-session-id': randomUUID() } : {};
  const length = Buffer.byteLength(head) + Buffer.byteLength(result) + 1;
  res.writeHead(200, { ...JSON_TYPE, 'content-length': length, ...session });
  res.write(head);
  res.write(result);
  res.end('}');
}

async function read(req: IncomingMessage): Promise<Request> {
  const chunks: Buffer[] = [];
  for await (const chunk of req) chunks.push(chunk as Buffer);
  return JSON.parse(Buffer.concat(chunks).toString()) as Request;
}

await announce(
  createServer((req, res) => {
    const path = req.url ?? '';
    res.on('error', () => undefined);
    if (path === '/hung') return;
    if (req.method === 'GET') {
      if (path === '/mute') return void res.writeHead(405).end();
      stream(res);
      if (path === '/flood') void flood(res, UPDATED, FLOOD);
      return;
    }
    if (req.method !== 'POST') return void req.resume().on('end', () => res.writeHead(200).end());
    read(req).then(
      (request) => respond(path, res, request),
      () => res.destroy(),
    );
  }),
);
