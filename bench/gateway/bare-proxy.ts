/**
 * What any gateway in Node has to do and nothing else: each message is parsed and serialized anew in both directions. No token, no policy,
 * no audit. `node bare-proxy.ts <url of the target>`
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { type Dispatcher, Pool } from 'undici';
import { announce } from './announce.ts';

const upstream = new URL(process.argv[2] ?? '');
const pool = new Pool(upstream.origin, { keepAliveTimeout: 600_000, keepAliveMaxTimeout: 600_000 });
const path = upstream.pathname;
const FORWARDED = ['content-type', 'accept', 'mcp-session-id', 'mcp-protocol-version', 'last-event-id'] as const;

const again = (text: string): string => JSON.stringify(JSON.parse(text));

function headersOf(req: IncomingMessage): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const name of FORWARDED) {
    const value = req.headers[name];
    if (typeof value === 'string') headers[name] = value;
  }
  return headers;
}

function readBody(req: IncomingMessage): Promise<string> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    req.on('data', (chunk: Buffer) => chunks.push(chunk));
    req.on('end', () => resolve(chunks.length === 1 && chunks[0] ? chunks[0].toString() : Buffer.concat(chunks).toString()));
    req.on('error', reject);
  });
}

async function relayEvents(body: Dispatcher.ResponseData['body'], res: ServerResponse): Promise<void> {
  res.once('close', () => body.destroy());
  body.on('error', () => undefined);
  res.flushHeaders();
  let rest = '';
  for await (const chunk of body.setEncoding('utf8')) {
    const events = (rest + chunk).split('\n\n');
    rest = events.pop() ?? '';
    for (const event of events) {
      const lines = event.split('\n').map((line) => (line.startsWith('data: {') ? `data: ${again(line.slice(6))}` : line));
      res.write(`${lines.join('\n')}\n\n`);
    }
  }
  res.end();
}

async function serve(req: IncomingMessage, res: ServerResponse): Promise<void> {
  const method = req.method as Dispatcher.HttpMethod;
  const body = method === 'POST' ? again(await readBody(req)) : null;
  const answer = await pool.request({ path, method, headers: headersOf(req), body, headersTimeout: 0, bodyTimeout: 0 });
  const type = answer.headers['content-type'];
  const headers: Record<string, string | number> = {};
  if (typeof type === 'string') headers['content-type'] = type;
  const session = answer.headers['mcp-session-id'];
  if (typeof session === 'string') headers['mcp-session-id'] = session;
  if (type === 'text/event-stream') {
    res.writeHead(answer.statusCode, headers);
    return relayEvents(answer.body, res);
  }
  const text = await answer.body.text();
  const out = type === 'application/json' ? again(text) : text;
  headers['content-length'] = Buffer.byteLength(out);
  res.writeHead(answer.statusCode, headers).end(out);
}

await announce(
  createServer((req, res) => {
    serve(req, res).catch(() => res.destroy());
  }),
);
