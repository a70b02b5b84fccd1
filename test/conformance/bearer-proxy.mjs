// Adds "Authorization: Bearer <token>" to every request and forwards it
// unchanged (method, path, Host, Origin, body, streaming). The conformance CLI
// has no option for request headers, so it talks to this instead of the gateway.
// Usage: TOKEN=... node bearer-proxy.mjs <listen port> <gateway origin, e.g. http://127.0.0.1:8080>
import http from 'node:http';

const [port, origin] = process.argv.slice(2);
const upstream = new URL(origin);
const authorization = `Bearer ${process.env.TOKEN}`;
const agent = new http.Agent({ keepAlive: true });

http
  .createServer((req, res) => {
    const out = http.request(
      {
        host: upstream.hostname,
        port: upstream.port,
        agent,
        method: req.method,
        path: req.url,
        headers: { ...req.headers, authorization },
        setHost: false,
      },
      (answer) => {
        res.writeHead(answer.statusCode, answer.headers);
        res.flushHeaders();
        answer.pipe(res);
        answer.on('close', () => res.end());
      },
    );
    out.on('error', (e) => {
      res.headersSent ? res.destroy() : res.writeHead(502).end(e.message);
    });
    res.on('close', () => out.destroy()); // a client disconnect is a cancellation
    req.pipe(out);
  })
  .listen(Number(port), '127.0.0.1', () => console.error(`bearer-proxy 127.0.0.1:${port} -> ${origin}`));
