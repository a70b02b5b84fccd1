/** A target of the session revisions that keeps sessions apart, and loses or ends them when the test says so. */
import type { ServerResponse } from 'node:http';
import { answerJson, type Message, type Received, type RecordingUpstream, startRecording } from './recording.ts';

export interface TargetSession {
  readonly id: string;
  /** The value of the `authorization` header that opened it. */
  readonly credential: string | undefined;
  /** The parameters of `initialize`. */
  readonly params: Record<string, unknown>;
  readonly subscribed: Set<string>;
  level: unknown;
  initialized: boolean;
  /** The standalone stream of the session. */
  stream: ServerResponse | null;
}

export interface Stateful extends RecordingUpstream {
  /** The open sessions, in the order in which they were opened. */
  readonly sessions: Map<string, TargetSession>;
  /** How many were ever opened. */
  opened(): number;
  /** Every session is gone; further ones last for `lasts` requests. Requests of a lost one are answered with `status`. */
  lose(status?: 404 | 400, lasts?: number): void;
  /** Sends a message on the standalone stream of the newest session that has one. */
  say(method: string, params?: object): void;
  /** Ends the calls of the tool `slow`. */
  release(): void;
  /** Called with each `initialize`, which waits for it. */
  onOpen: () => Promise<void>;
}

const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  logging: {},
};

export async function startStateful(): Promise<Stateful> {
  const sessions = new Map<string, TargetSession>();
  const asked = new Map<string, (answer: Message) => void>();
  let slow: (() => void)[] = [];
  let opened = 0;
  let lostStatus: 404 | 400 = 404;
  let left = Number.POSITIVE_INFINITY;

  const lost = (res: ServerResponse): void =>
    lostStatus === 404
      ? answerJson(res, { jsonrpc: '2.0', id: null, error: { code: -32001, message: 'Session not found' } }, {}, 404)
      : answerJson(
          res,
          { jsonrpc: '2.0', id: null, error: { code: -32000, message: 'Bad Request: No valid session ID provided' } },
          {},
          400,
        );

  async function open({ message, headers }: Received, res: ServerResponse): Promise<void> {
    await upstream.onOpen();
    const params = message?.params ?? {};
    const id = `up-${++opened}`;
    const credential = headers.authorization;
    sessions.set(id, { id, credential, params, subscribed: new Set(), level: null, initialized: false, stream: null });
    const { protocolVersion } = params;
    const result = { protocolVersion, capabilities: CAPABILITIES, serverInfo: { name: 'stateful', version: '1' } };
    answerJson(res, { jsonrpc: '2.0', id: message?.id, result }, { 'mcp-session-id': id });
  }

  function call(session: TargetSession, { id, params = {} }: Message, res: ServerResponse): void {
    const text = (value: string) => ({ jsonrpc: '2.0', id, result: { content: [{ type: 'text', text: value }] } });
    if (params['name'] === 'slow') {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.flushHeaders();
      slow.push(() => res.end(`data: ${JSON.stringify(text(`slow ${session.id}`))}\n\n`));
    } else if (params['name'] === 'ask') {
      const question = `question-${asked.size + 1}`;
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      const requestedSchema = { type: 'object', properties: { word: { type: 'string' } } };
      const ask = { jsonrpc: '2.0', id: question, method: 'elicitation/create', params: { message: 'Which?', requestedSchema } };
      asked.set(question, (answer) => res.end(`data: ${JSON.stringify(text(JSON.stringify(answer.result)))}\n\n`));
      res.write(`data: ${JSON.stringify(ask)}\n\n`);
    } else answerJson(res, text(`${session.id} ${session.credential}`));
  }

  function resultOf(session: TargetSession, { method, params = {} }: Message): object | null {
    const uri = String(params['uri']);
    switch (method) {
      case 'tools/list': {
        const page = params['cursor'] === undefined ? 'first' : 'second';
        const tools = ['echo', 'ask', 'slow'].map((name) => ({ name: `${page}-${name}`, inputSchema: { type: 'object' } }));
        return page === 'first' ? { tools, nextCursor: 'page-2' } : { tools };
      }
      case 'resources/subscribe':
        session.subscribed.add(uri);
        return {};
      case 'resources/unsubscribe':
        session.subscribed.delete(uri);
        return {};
      case 'logging/setLevel':
        session.level = params['level'];
        return {};
      case 'ping':
        return {};
      default:
        return null;
    }
  }

  function answer(session: TargetSession, message: Message, res: ServerResponse): void {
    const { id, method } = message;
    if (method === 'tools/call') {
      call(session, message, res);
      return;
    }
    const result = resultOf(session, message);
    answerJson(res, {
      jsonrpc: '2.0',
      id,
      ...(result === null ? { error: { code: -32601, message: `no ${method}` } } : { result }),
    });
  }

  const recording = await startRecording(async (received, res) => {
    const { httpMethod, headers, message } = received;
    if (message?.method === 'initialize') return open(received, res);
    const session = sessions.get(String(headers['mcp-session-id']));
    if (session === undefined) return lost(res);
    if (message?.id !== undefined && message.method !== undefined && left-- <= 0) {
      sessions.delete(session.id);
      return lost(res);
    }
    if (httpMethod === 'GET') {
      res.writeHead(200, { 'content-type': 'text/event-stream' });
      res.flushHeaders();
      session.stream = res;
      res.on('close', () => {
        if (session.stream === res) session.stream = null;
      });
      return;
    }
    if (httpMethod === 'DELETE') {
      sessions.delete(session.id);
      session.stream?.end();
      return void res.writeHead(200).end();
    }
    if (message?.method === 'notifications/initialized') session.initialized = true;
    if (message?.id === undefined || message.method === undefined) {
      if (message?.id !== undefined) asked.get(String(message.id))?.(message);
      return void res.writeHead(202).end();
    }
    answer(session, message, res);
  });
  const upstream: Stateful = Object.assign(recording, {
    sessions,
    opened: () => opened,
    lose(status: 404 | 400 = 404, lasts = Number.POSITIVE_INFINITY) {
      lostStatus = status;
      left = lasts;
      for (const { stream } of sessions.values()) stream?.end();
      sessions.clear();
    },
    say(method: string, params: object = {}) {
      const newest = [...sessions.values()].filter(({ stream }) => stream !== null).at(-1);
      if (newest === undefined) throw new Error('nobody listens');
      newest.stream?.write(`data: ${JSON.stringify({ jsonrpc: '2.0', method, params })}\n\n`);
    },
    release() {
      for (const end of slow.splice(0)) end();
      slow = [];
    },
    onOpen: async () => undefined,
  });
  return upstream;
}
