/** Slices of known sizes, to try the instrument on: `GET /busy`, `/wait`, `/microtasks` or `/turns`, one at a time. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';

const MS = 80;

/** The thread's own processor time as the kernel's scheduler counts it, which is not the clock that the instrument reads. */
const spentMs = (): number => Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1e6;

function burn(ms: number): void {
  for (const until = spentMs() + ms; spentMs() < until; );
}

const WORKS: Readonly<Record<string, () => unknown>> = {
  '/busy': () => burn(MS),
  '/wait': () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, MS),
  /** One slice of many promises. */
  '/microtasks': async () => {
    for (const until = spentMs() + MS; spentMs() < until; ) await null;
  },
  /** Four slices. */
  '/turns': async () => {
    for (let i = 0; i < 4; i++) {
      burn(MS / 4);
      await new Promise(setImmediate);
    }
  },
};

createServer(async (req, res) => {
  await WORKS[req.url ?? '']?.();
  res.end();
}).listen(Number(process.argv[2]), '127.0.0.1');
