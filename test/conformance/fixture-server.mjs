// A dual-mode MCP server with everything the official conformance suite asks a
// server for (names and texts are the suite's published requirements).
// Serves 2025-03-26 … 2025-11-25 with sessions, SSE and resumability, and
// 2026-07-28 statelessly, both on POST /mcp. Loopback only.
//   npm i @modelcontextprotocol/server@2 @modelcontextprotocol/node@2
//   PORT=4110 node fixture-server.mjs

import { randomBytes, randomUUID } from 'node:crypto';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  localhostHostValidation,
  localhostOriginValidation,
  NodeStreamableHTTPServerTransport,
  toNodeHandler,
  toWebRequest,
} from '@modelcontextprotocol/node';
import {
  acceptedContent,
  CLIENT_CAPABILITIES_META_KEY as CAPS,
  createMcpHandler,
  createRequestStateCodec,
  inputRequired,
  isLegacyRequest,
  ProtocolError,
  ResourceNotFoundError,
  Server,
} from '@modelcontextprotocol/server';

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const WAV = Buffer.from(
  '524946462400000057415645666d74201000000001000100401f0000803e0000020010006461746100000000',
  'hex',
).toString('base64');
const text = (t) => ({ content: [{ type: 'text', text: t }] });
const embed = (uri, mimeType, body) => ({ type: 'resource', resource: { uri, mimeType, text: body } });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const schema = (properties = {}, required = []) => ({ type: 'object', properties, ...(required.length && { required }) });
const str = { type: 'string' };

const state = createRequestStateCodec({ key: randomBytes(32) });
const ask = (message, field, type = 'string') =>
  inputRequired.elicit({ message, requestedSchema: schema({ [field]: { type } }, [field]) });
const sample = (prompt, maxTokens) =>
  inputRequired.createMessage({ messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens });
const answer = (ctx, key) => ctx.mcpReq.inputResponses?.[key];
const field = (ctx, key, name) => acceptedContent(ctx.mcpReq.inputResponses, key)?.[name];

async function elicitReport(ctx, message, requestedSchema, label) {
  const r = await ctx.mcpReq.send({ method: 'elicitation/create', params: { message, requestedSchema } });
  return text(`${label}: action=${r.action}, content=${JSON.stringify(r.content ?? {})}`);
}
const titled = (...pairs) => pairs.map(([c, title]) => ({ const: c, title }));
const listen = { notify: null }; // filled in once the modern handler exists

// name -> { d: description, s: input schema, run(args, ctx) }
const tools = {
  test_simple_text: { run: () => text('This is a simple text response for testing.') },
  test_image_content: { run: () => ({ content: [image] }) },
  test_audio_content: { run: () => ({ content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }] }) },
  test_embedded_resource: {
    run: () => ({ content: [embed('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')] }),
  },
  test_multiple_content_types: {
    run: () => ({
      content: [
        { type: 'text', text: 'Multiple content types test:' },
        image,
        embed('test://mixed-content-resource', 'application/json', JSON.stringify({ test: 'data', value: 123 })),
      ],
    }),
  },
  test_error_handling: { run: () => ({ ...text('This tool intentionally returns an error for testing'), isError: true }) },
  test_tool_with_logging: {
    run: async (_, ctx) => {
      await ctx.mcpReq.log('info', 'Tool execution started');
      await sleep(50);
      await ctx.mcpReq.log('info', 'Tool processing data');
      await sleep(50);
      await ctx.mcpReq.log('info', 'Tool execution completed');
      return text('logged three times');
    },
  },
  test_tool_with_progress: {
    run: async (_, ctx) => {
      const progressToken = ctx.mcpReq._meta?.progressToken;
      for (const progress of [0, 50, 100]) {
        if (progressToken !== undefined) {
          await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } });
        }
        if (progress < 100) await sleep(50);
      }
      return text('progress reported');
    },
  },
  test_sampling: {
    s: schema({ prompt: str }, ['prompt']),
    run: async ({ prompt }, ctx) => {
      const r = await ctx.mcpReq.send({
        method: 'sampling/createMessage',
        params: { messages: [{ role: 'user', content: { type: 'text', text: prompt } }], maxTokens: 100 },
      });
      return text(`LLM response: ${r.content?.text ?? ''}`);
    },
  },
  test_elicitation: {
    s: schema({ message: str }, ['message']),
    run: ({ message }, ctx) =>
      elicitReport(
        ctx,
        message,
        schema(
          {
            username: { ...str, description: "User's response" },
            email: { ...str, description: "User's email address" },
          },
          ['username', 'email'],
        ),
        'User response',
      ),
  },
  test_elicitation_sep1034_defaults: {
    run: (_, ctx) =>
      elicitReport(
        ctx,
        'Please review these defaults',
        schema({
          name: { ...str, default: 'John Doe' },
          age: { type: 'integer', default: 30 },
          score: { type: 'number', default: 95.5 },
          status: { ...str, enum: ['active', 'inactive', 'pending'], default: 'active' },
          verified: { type: 'boolean', default: true },
        }),
        'Elicitation completed',
      ),
  },
  test_elicitation_sep1330_enums: {
    run: (_, ctx) =>
      elicitReport(
        ctx,
        'Please choose',
        schema({
          untitledSingle: { ...str, enum: ['option1', 'option2', 'option3'] },
          titledSingle: {
            ...str,
            oneOf: titled(['value1', 'First Option'], ['value2', 'Second Option'], ['value3', 'Third Option']),
          },
          legacyEnum: { ...str, enum: ['opt1', 'opt2', 'opt3'], enumNames: ['Option One', 'Option Two', 'Option Three'] },
          untitledMulti: { type: 'array', items: { ...str, enum: ['option1', 'option2', 'option3'] } },
          titledMulti: {
            type: 'array',
            items: { anyOf: titled(['value1', 'First Choice'], ['value2', 'Second Choice'], ['value3', 'Third Choice']) },
          },
        }),
        'Elicitation completed',
      ),
  },
  test_reconnection: {
    // drops its own SSE connection half-way; the result is replayed on reconnect
    run: async (_, ctx) => {
      ctx.http?.closeSSE?.();
      await sleep(100);
      return text('reconnected');
    },
  },
  json_schema_2020_12_tool: {
    s: {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      $defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: str, city: str } } },
      properties: {
        name: str,
        address: { $ref: '#/$defs/address' },
        contactMethod: { ...str, enum: ['phone', 'email'] },
        phone: str,
        email: str,
      },
      allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
      if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
      // biome-ignore lint/suspicious/noThenProperty: JSON Schema's word
      then: { required: ['phone'] },
      else: { required: ['email'] },
      additionalProperties: false,
    },
    run: (a) => text(JSON.stringify(a)),
  },
  test_header_mirror: {
    s: schema({ region: { ...str, 'x-mcp-header': 'Region' }, note: str }),
    run: ({ region }) => text(`region ${region ?? 'unset'}`),
  },
  test_missing_capability: {
    run: (_, ctx) => (answer(ctx, 'pong') ? text('got it') : inputRequired({ inputRequests: { pong: sample('Say pong', 10) } })),
  },
  test_streaming_elicitation: { run: () => text('no server request was sent on this stream') },
  test_logging_tool: {
    run: async (_, ctx) => {
      await ctx.mcpReq.log('info', 'asked to log');
      return text('done');
    },
  },
  test_trigger_tool_change: {
    run: () => {
      listen.notify?.toolsChanged();
      return text('announced');
    },
  },
  test_trigger_prompt_change: {
    run: () => {
      listen.notify?.promptsChanged();
      return text('announced');
    },
  },
  test_input_required_result_elicitation: {
    run: (_, ctx) => {
      const name = field(ctx, 'user_name', 'name');
      return typeof name === 'string'
        ? text(`Hello, ${name}!`)
        : inputRequired({ inputRequests: { user_name: ask('What is your name?', 'name') } });
    },
  },
  test_input_required_result_sampling: {
    run: (_, ctx) => {
      const a = answer(ctx, 'capital_question');
      return a
        ? text(a.content?.text ?? '')
        : inputRequired({ inputRequests: { capital_question: sample('What is the capital of France?', 100) } });
    },
  },
  test_input_required_result_list_roots: {
    run: (_, ctx) => {
      const a = answer(ctx, 'client_roots');
      return a
        ? text(`roots: ${(a.roots ?? []).map((r) => r.uri).join(' ')}`)
        : inputRequired({ inputRequests: { client_roots: inputRequired.listRoots() } });
    },
  },
  test_input_required_result_request_state: {
    run: async (_, ctx) =>
      ctx.mcpReq.requestState() && answer(ctx, 'confirm')
        ? text('state-ok')
        : inputRequired({
            inputRequests: { confirm: ask('Please confirm', 'ok', 'boolean') },
            requestState: await state.mint({ n: 1 }),
          }),
  },
  test_input_required_result_multiple_inputs: {
    run: async (_, ctx) => {
      const r = ctx.mcpReq.inputResponses ?? {};
      if (r.user_name && r.greeting && r.client_roots) return text('all three answers received');
      return inputRequired({
        inputRequests: {
          user_name: ask('What is your name?', 'name'),
          greeting: sample('Generate a greeting', 50),
          client_roots: inputRequired.listRoots(),
        },
        requestState: await state.mint({ n: 1 }),
      });
    },
  },
  test_input_required_result_multi_round: {
    run: async (_, ctx) => {
      const round = ctx.mcpReq.requestState()?.round ?? 0;
      if (round === 2) return text(`rounds finished, colour ${field(ctx, 'step2', 'color') ?? 'unknown'}`);
      const next =
        round === 0
          ? { step1: ask('Step 1: What is your name?', 'name') }
          : { step2: ask('Step 2: What is your favorite color?', 'color') };
      return inputRequired({ inputRequests: next, requestState: await state.mint({ round: round + 1, nonce: randomUUID() }) });
    },
  },
  test_input_required_result_tampered_state: {
    run: async (_, ctx) =>
      ctx.mcpReq.requestState()
        ? text('state verified')
        : inputRequired({
            inputRequests: { confirm: ask('Please confirm', 'ok', 'boolean') },
            requestState: await state.mint({ n: 1 }),
          }),
  },
  test_input_required_result_capabilities: {
    run: (_, ctx) => {
      if (ctx.mcpReq.inputResponses) return text('answered');
      const caps = ctx.mcpReq.envelope?.[CAPS] ?? {};
      const inputRequests = {
        ...(caps.elicitation && { who: ask('What is your name?', 'name') }),
        ...(caps.sampling && { say: sample('Generate a greeting', 50) }),
      };
      return Object.keys(inputRequests).length ? inputRequired({ inputRequests }) : text('nothing to ask this client');
    },
  },
};

const resources = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: PNG },
  'test://watched-resource': { mimeType: 'text/plain', text: 'watched' },
};
const templateUri = /^test:\/\/template\/([^/]+)\/data$/;
const user = (content) => ({ role: 'user', content });
const arg = (name) => ({ name, description: `argument ${name}`, required: true });
const prompts = {
  test_simple_prompt: { get: () => [user({ type: 'text', text: 'This is a simple prompt for testing.' })] },
  test_prompt_with_arguments: {
    a: [arg('arg1'), arg('arg2')],
    get: ({ arg1, arg2 }) => [user({ type: 'text', text: `Prompt with arguments: arg1='${arg1}', arg2='${arg2}'` })],
  },
  test_prompt_with_embedded_resource: {
    a: [arg('resourceUri')],
    get: ({ resourceUri }) => [
      user(embed(resourceUri, 'text/plain', 'Embedded resource content for testing.')),
      user({ type: 'text', text: 'Please process the embedded resource above.' }),
    ],
  },
  test_prompt_with_image: { get: () => [user(image), user({ type: 'text', text: 'Please analyze the image above.' })] },
  test_input_required_result_prompt: {
    get: (_, ctx) => {
      const context = field(ctx, 'user_context', 'context');
      return typeof context === 'string'
        ? [user({ type: 'text', text: context })]
        : inputRequired({ inputRequests: { user_context: ask('What context should the prompt use?', 'context') } });
    },
  },
};

function build() {
  const server = new Server(
    { name: 'conformance-fixture', version: '1.0.0' },
    {
      capabilities: {
        tools: { listChanged: true },
        prompts: { listChanged: true },
        resources: { subscribe: true, listChanged: true },
        logging: {},
        completions: {},
      },
      requestState: { verify: state.verify },
    },
  );
  const on = (method, run) => server.setRequestHandler(method, run);
  const invalid = (message) => {
    throw new ProtocolError(-32602, message);
  };
  on('tools/list', () => ({
    tools: Object.entries(tools).map(([name, t]) => ({
      name,
      description: `Conformance tool ${name}`,
      inputSchema: t.s ?? schema(),
    })),
  }));
  on('tools/call', (req, ctx) => {
    const tool = Object.hasOwn(tools, req.params.name) ? tools[req.params.name] : invalid(`Unknown tool: ${req.params.name}`);
    return tool.run(req.params.arguments ?? {}, ctx);
  });
  on('resources/list', () => ({
    resources: Object.entries(resources).map(([uri, r]) => ({
      uri,
      name: uri.slice(7),
      description: `Conformance resource ${uri}`,
      mimeType: r.mimeType,
    })),
  }));
  on('resources/templates/list', () => ({
    resourceTemplates: [
      { uriTemplate: 'test://template/{id}/data', name: 'template', description: 'Echoes its id', mimeType: 'application/json' },
    ],
  }));
  on('resources/read', (req, _ctx) => {
    const { uri } = req.params;
    const id = templateUri.exec(uri)?.[1];
    if (id)
      return {
        contents: [
          { uri, mimeType: 'application/json', text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) },
        ],
      };
    if (!Object.hasOwn(resources, uri)) throw new ResourceNotFoundError(uri);
    return { contents: [{ uri, ...resources[uri] }] };
  });
  on('resources/subscribe', () => ({}));
  on('resources/unsubscribe', () => ({}));
  on('prompts/list', () => ({
    prompts: Object.entries(prompts).map(([name, p]) => ({
      name,
      description: `Conformance prompt ${name}`,
      arguments: p.a ?? [],
    })),
  }));
  on('prompts/get', async (req, ctx) => {
    const prompt = Object.hasOwn(prompts, req.params.name)
      ? prompts[req.params.name]
      : invalid(`Unknown prompt: ${req.params.name}`);
    const out = await prompt.get(req.params.arguments ?? {}, ctx);
    return Array.isArray(out) ? { messages: out } : out;
  });
  on('completion/complete', () => ({ completion: { values: ['paris', 'park', 'party'], total: 3, hasMore: false } }));
  return server;
}

const modern = createMcpHandler(build, { legacy: 'reject' });
listen.notify = modern.notify;
const modernNode = toNodeHandler(modern);

// Legacy sessions, with an event store so that dropped streams resume.
const sessions = new Map();
function eventStore() {
  const log = []; // [stream, message]; the event id is "<stream>~<index>"
  return {
    async storeEvent(stream, message) {
      return `${stream}~${log.push([stream, message]) - 1}`;
    },
    async replayEventsAfter(last, { send }) {
      const cut = last.lastIndexOf('~');
      const stream = last.slice(0, cut);
      for (let i = Number(last.slice(cut + 1)) + 1; i < log.length; i++) {
        if (log[i][0] === stream && Object.keys(log[i][1] ?? {}).length) await send(`${stream}~${i}`, log[i][1]);
      }
      return stream;
    },
  };
}
const fail = (res, status, code, message, id = null) =>
  res
    .writeHead(status, { 'content-type': 'application/json' })
    .end(JSON.stringify({ jsonrpc: '2.0', id, error: { code, message } }));

async function legacy(req, res, body) {
  const sid = req.headers['mcp-session-id'];
  let transport = sid && sessions.get(sid);
  if (sid && !transport) return fail(res, 404, -32001, 'Session not found');
  if (!transport) {
    if (body?.method !== 'initialize') return fail(res, 400, -32000, 'Session id required');
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      eventStore: eventStore(),
      retryInterval: 1000,
      onsessioninitialized: (id) => sessions.set(id, transport),
    });
    transport.onclose = () => sessions.delete(transport.sessionId);
    await build().connect(transport);
  }
  await transport.handleRequest(req, res, body);
}

// Mcp-Param-* headers must mirror the annotated arguments (the SDK checks this
// for McpServer tools, but a low-level Server keeps its own tool table).
function decodeHeader(value) {
  const b64 = /^=\?base64\?(.*)\?=$/.exec(value)?.[1];
  if (b64 === undefined) return value;
  const bytes = Buffer.from(b64, 'base64');
  return bytes.toString('base64') === b64 ? bytes.toString('utf8') : undefined;
}
function headersMirrorArguments(params, headers) {
  const annotated = Object.entries(tools[params?.name]?.s?.properties ?? {}).filter(([, p]) => p['x-mcp-header']);
  return annotated.every(([key, p]) => {
    const sent = headers[`mcp-param-${p['x-mcp-header'].toLowerCase()}`];
    const value = params.arguments?.[key] ?? undefined;
    return value === undefined ? sent === undefined : sent !== undefined && decodeHeader(sent) === String(value);
  });
}

const hostOk = localhostHostValidation();
const originOk = localhostOriginValidation();
const port = Number(process.env.PORT ?? 4110);
http
  .createServer(async (req, res) => {
    if (!hostOk(req, res) || !originOk(req, res)) return;
    try {
      if (req.url.split('?')[0] !== '/mcp') return fail(res, 404, -32000, 'Not found');
      if (req.method !== 'POST') return await legacy(req, res);
      let raw = '';
      req.setEncoding('utf8');
      for await (const chunk of req) raw += chunk;
      let body;
      try {
        body = JSON.parse(raw);
      } catch {
        return fail(res, 400, -32700, 'Parse error');
      }
      if (await isLegacyRequest(await toWebRequest(req, body), body)) return await legacy(req, res, body);
      if (body?.method === 'tools/call' && !headersMirrorArguments(body.params, req.headers)) {
        return fail(res, 400, -32020, 'Header mismatch: Mcp-Param', body.id);
      }
      await modernNode(req, res, body);
    } catch (e) {
      console.error(e);
      if (!res.headersSent) fail(res, 500, -32603, 'Internal error');
    }
  })
  .listen(port, '127.0.0.1', () => console.error(`fixture on http://127.0.0.1:${port}/mcp`));
