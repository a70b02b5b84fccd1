// A stdio server that, once a tool is called, writes notifications without end: 20 MB a second, if they are read. With the argument `now`
// it begins at once. Plain JavaScript: the gateway runs it without any environment.
import { createInterface } from 'node:readline';

const EVENT = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"${'x'.repeat(1_000)}"}}\n`;
const BLOCK = EVENT.repeat(190);
const EVERY_MS = 10;
// Longer than any run. It ends the process if nobody else does.
setTimeout(() => process.exit(), 300_000).unref();
process.stdout.on('error', () => process.exit());

const send = (id, result) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, result })}\n`);
const begin = () => setInterval(() => process.stdout.writableNeedDrain || process.stdout.write(BLOCK), EVERY_MS);

let begun = false;
if (process.argv.includes('now')) {
  begin();
  await new Promise(() => {});
}
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) continue;
  if (method === 'initialize') {
    const { protocolVersion } = params;
    send(id, { protocolVersion, capabilities: { tools: {}, logging: {} }, serverInfo: { name: 'endless', version: '1' } });
  } else if (method === 'tools/list') send(id, { tools: [{ name: 'endless', inputSchema: { type: 'object' } }] });
  else if (method !== 'tools/call') send(id, {});
  else if (!begun) {
    begun = true;
    begin();
  }
}
process.exit();
