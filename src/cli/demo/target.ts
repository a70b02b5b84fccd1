/** The MCP server of the demo: a few tools, resources and a prompt, on loopback. It needs no library, so the package can contain it. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text as textOf } from 'node:stream/consumers';

interface Request {
  readonly id?: number | string;
  readonly method: string;
  readonly params?: { readonly name?: string; readonly uri?: string; readonly arguments?: Readonly<Record<string, unknown>> };
}

const tool = (name: string, description: string, ...members: string[]) => ({
  name,
  description,
  inputSchema: { type: 'object', properties: Object.fromEntries(members.map((member) => [member, {}])), required: members },
});
const TOOLS = [
  tool('echo', 'Returns the message.', 'message'),
  tool('get-sum', 'Adds two numbers.', 'a', 'b'),
  tool('get-env', 'Prints the environment of the server, with its secrets.'),
  tool('simulate-research-query', 'Begins a long and expensive search.', 'topic'),
];
const RESOURCE = { uri: 'demo://resource/static/document/policies.md', name: 'policies.md', mimeType: 'text/markdown' };
const PROMPT = { name: 'simple-prompt', description: 'A prompt without arguments.' };

const content = (text: string) => ({ type: 'text', text });

const CALLS: Readonly<Record<string, (given: Readonly<Record<string, unknown>>) => string>> = {
  echo: ({ message }) => `Echo: ${message}`,
  'get-sum': ({ a, b }) => `The sum is ${Number(a) + Number(b)}`,
  'get-env': () => 'SECRET=hunter2',
  'simulate-research-query': ({ topic }) => `There is much to say about ${topic}`,
};

/** Returns the result. undefined: the server does not know the method, or what it names. */
function resultOf({ method, params = {} }: Request): unknown {
  switch (method) {
    case 'initialize':
      return {
        protocolVersion: '2025-06-18',
        capabilities: { tools: {}, resources: {}, prompts: {} },
        serverInfo: { name: 'portcullis-demo-target', version: '1' },
      };
    case 'ping':
      return {};
    case 'tools/list':
      return { tools: TOOLS };
    case 'tools/call': {
      const called = CALLS[params.name ?? ''];
      return called && { content: [content(called(params.arguments ?? {}))] };
    }
    case 'resources/list':
      return { resources: [RESOURCE] };
    case 'resources/read':
      return params.uri === RESOURCE.uri
        ? { contents: [{ ...RESOURCE, text: '# Policies\n\nThe first match decides.' }] }
        : undefined;
    case 'prompts/list':
      return { prompts: [PROMPT] };
    case 'prompts/get':
      return params.name === PROMPT.name
        ? { messages: [{ role: 'user', content: content('This is a simple prompt without arguments.') }] }
        : undefined;
    default:
      return undefined;
  }
}

/** Starts the server on a free port. */
export async function startTarget(): Promise<{ readonly url: string; stop(): void }> {
  const server = createServer(async (req, res) => {
    if (req.method !== 'POST') return void res.writeHead(405).end();
    const request = JSON.parse(await textOf(req)) as Request;
    if (request.id === undefined) return void res.writeHead(202).end();
    const result = resultOf(request);
    const answer = result === undefined ? { error: { code: -32601, message: 'unknown method or name' } } : { result };
    res.writeHead(200, { 'content-type': 'application/json' });
    res.end(JSON.stringify({ jsonrpc: '2.0', id: request.id, ...answer }));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/mcp`,
    stop() {
      server.close();
      server.closeAllConnections();
    },
  };
}
