/** A target on the official SDK 2.4 that speaks 2026-07-28 and nothing else. */
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { toNodeHandler } from '@modelcontextprotocol/node';
import {
  acceptedContent,
  createMcpHandler,
  fromJsonSchema,
  inputRequired,
  McpServer,
  ProtocolError,
  ResourceTemplate,
} from '@modelcontextprotocol/server';
import type { Message } from './recording.ts';

export interface ModernUpstream {
  readonly url: string;
  readonly received: { readonly headers: IncomingMessage['headers']; readonly message: Message }[];
  /** Tools whose call the client has given up. */
  readonly cancelled: string[];
  /** Methods in order of arrival. */
  seen(): (string | undefined)[];
  /** How many listen now. */
  listening(): number;
  updated(uri: string): void;
  toolsChanged(): void;
  stop(): Promise<void>;
}

const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });
const object = (properties: object = {}) => fromJsonSchema<Record<string, unknown>>({ type: 'object', properties } as never);
const ASK = {
  message: 'Which word?',
  requestedSchema: { type: 'object' as const, properties: { word: { type: 'string' as const } }, required: ['word'] },
};

export async function startModernOnly(): Promise<ModernUpstream> {
  const received: ModernUpstream['received'] = [];
  const cancelled: string[] = [];
  let listening = 0;

  function build(): McpServer {
    const server = new McpServer(
      { name: 'modern-only', version: '1' },
      {
        capabilities: { logging: {}, tools: { listChanged: true }, resources: { subscribe: true, listChanged: true } },
        instructions: 'Be nice.',
      },
    );
    server.registerTool('echo', { inputSchema: object() }, (args) => text(JSON.stringify(args)));
    server.registerTool('progress', { inputSchema: object() }, async (_, ctx) => {
      const progressToken = ctx.mcpReq._meta?.progressToken;
      for (const progress of [1, 2]) {
        if (progressToken === undefined) continue;
        await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 2 } });
      }
      return text('done');
    });
    server.registerTool('log', { inputSchema: object() }, async (_, ctx) => {
      await ctx.mcpReq.log('warning', 'careful');
      await ctx.mcpReq.log('debug', 'nobody reads this');
      return text('logged');
    });
    server.registerTool('ask', { inputSchema: object() }, (_, ctx) => {
      const content = acceptedContent<{ word: string }>(ctx.mcpReq.inputResponses, 'word');
      if (content !== undefined) return text(`accept ${content.word}`);
      const first = ctx.mcpReq.inputResponses === undefined;
      return first ? inputRequired({ inputRequests: { word: inputRequired.elicit(ASK) } }) : text('no word');
    });
    server.registerTool('ask-twice', { inputSchema: object() }, (_, ctx) => {
      const word = acceptedContent<{ word: string }>(ctx.mcpReq.inputResponses, 'word')?.word;
      const state = ctx.mcpReq.requestState() as string | undefined;
      if (state === undefined || word === undefined) {
        return inputRequired({ inputRequests: { word: inputRequired.elicit(ASK) }, requestState: 'first' });
      }
      if (state === 'first') {
        return inputRequired({ inputRequests: { word: inputRequired.elicit(ASK) }, requestState: `then ${word}` });
      }
      return text(`${state}, ${word}`);
    });
    server.registerTool('insatiable', { inputSchema: object() }, () =>
      inputRequired({ inputRequests: { word: inputRequired.elicit(ASK) } }),
    );
    server.registerTool('sample', { inputSchema: object() }, (_, ctx) => {
      if (ctx.mcpReq.inputResponses !== undefined) return text(JSON.stringify(ctx.mcpReq.inputResponses));
      const messages = [{ role: 'user' as const, content: { type: 'text' as const, text: 'hi' } }];
      return inputRequired({ inputRequests: { said: inputRequired.createMessage({ messages, maxTokens: 10 }) } });
    });
    server.registerTool('wait', { inputSchema: object() }, async (_, ctx) => {
      await new Promise<void>((resolve) => {
        ctx.mcpReq.signal.addEventListener('abort', () => {
          cancelled.push('wait');
          resolve();
        });
      });
      return text('never seen');
    });
    const region = { region: { type: 'string', 'x-mcp-header': 'Region' }, count: { type: 'integer', 'x-mcp-header': 'Count' } };
    server.registerTool('regional', { inputSchema: object(region) }, (args) => text(JSON.stringify(args)));
    server.registerPrompt('greet', {}, () => ({
      messages: [{ role: 'user', content: { type: 'text', text: 'hello' } }],
    }));
    const template = new ResourceTemplate('note:///{name}', {
      list: () => ({ resources: [{ uri: 'note:///a', name: 'a' }] }),
      complete: { name: () => ['a', 'b'] },
    });
    server.registerResource('note', template, {}, (uri) => {
      if (uri.href === 'note:///missing') throw new ProtocolError(-32602, 'Resource not found', { uri: uri.href });
      return { contents: [{ uri: uri.href, text: `text of ${uri.href}` }] };
    });
    return server;
  }

  const handler = createMcpHandler(build, { legacy: 'reject' });
  const handle = toNodeHandler(handler);
  const server = createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString('utf8');
    const message = body === '' ? undefined : (JSON.parse(body) as Message);
    received.push({ headers: req.headers, message: message ?? {} });
    if (message?.method === 'subscriptions/listen') {
      listening++;
      res.once('close', () => listening--);
    }
    await handle(req, res, message);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    received,
    cancelled,
    seen: () => received.map(({ message }) => message.method),
    listening: () => listening,
    updated: (uri) => handler.notify.resourceUpdated(uri),
    toolsChanged: () => handler.notify.toolsChanged(),
    async stop() {
      await handler.close();
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
