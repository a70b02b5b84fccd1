// The "client under test" for `conformance client --command "node client-probe.mjs"`.
// Run it through a gateway and the suite's mock server judges the gateway's
// upstream half (headers, _meta, resumption, state echo, schema-valid messages).
// VIA=<module> may name an ES module whose default export is
//   async (mockServerUrl) => ({ url, headers })   // registers a gateway target
// Needs @modelcontextprotocol/client@2.
import { pathToFileURL } from 'node:url';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const direct = process.argv.at(-1);
const via = process.env.VIA ? (await import(pathToFileURL(process.env.VIA).href)).default : async (url) => ({ url });
const { url, headers = {} } = await via(direct);
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const modern = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION === '2026-07-28';

const client = new Client(
  { name: 'client-probe', version: '1.0.0' },
  {
    capabilities: { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: {} },
    versionNegotiation: { mode: modern ? 'auto' : 'legacy' },
  },
);
client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { confirmed: true } }));
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));

const { tools = [] } = await client.listTools();
const call = (name, args = {}) => client.callTool({ name, arguments: args }).catch((e) => console.error(`${name}: ${e.message}`));
if (scenario === 'tools_call') await call('add_numbers', { a: 5, b: 3 });
else if (context.toolCalls) for (const c of context.toolCalls) await call(c.name, c.arguments);
else if (scenario !== 'initialize' && scenario !== 'json-schema-ref-no-deref') for (const t of tools) await call(t.name);
if (scenario === 'http-standard-headers') {
  for (const r of (await client.listResources()).resources) await client.readResource({ uri: r.uri });
  for (const p of (await client.listPrompts()).prompts) await client.getPrompt({ name: p.name });
}
await client.close();
process.exit(0);
