/** The server of the control. It discards the bodies, and answers with the requested number of bytes. */
import { createServer } from 'node:http';
import { announce } from '../gateway/announce.ts';
import { ANSWER_BYTES } from './workload.ts';

const BYTES = Buffer.alloc(1024 * 1024, ' ');

const server = createServer((req, res) => {
  req.on('error', () => undefined);
  req.resume().on('end', () => {
    let left = Number(req.headers[ANSWER_BYTES] ?? 0);
    res.writeHead(200, { 'content-type': 'text/plain', 'content-length': left });
    const more = (): void => {
      while (left > 0) {
        const chunk = BYTES.subarray(0, left);
        left -= chunk.length;
        if (!res.write(chunk)) return void res.once('drain', more);
      }
      res.end();
    };
    more();
  });
});
await announce(server);
