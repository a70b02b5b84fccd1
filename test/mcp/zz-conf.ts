import { createServer, request } from 'node:http';
import { routed, startGateway } from './gateway.ts';
const g = await startGateway({ targets: [routed('fixture', 'http://127.0.0.1:4110/mcp', {credential:'none'})], rights: { alice: () => true }, deps: {
 checkOrigin: (req) => null } });
// stable port
createServer((req, res) => {
  if (req.url?.startsWith('/.well-known/')) { res.writeHead(200, {'content-type':'application/json'}).end(JSON.stringify({resource:'x', authorization_servers:['https://a']})); return; }
  const o = request(g.origin + req.url, { method: req.method, headers: req.headers }, (a) => { res.writeHead(a.statusCode!, a.headers); res.flushHeaders(); a.pipe(res); });
  res.on('close', () => o.destroy()); o.on('error', () => res.destroy()); req.pipe(o);
}).listen(4200, '127.0.0.1');
setInterval(() => { for (const l of g.logged.splice(0)) console.log(JSON.stringify(l)); }, 500);
