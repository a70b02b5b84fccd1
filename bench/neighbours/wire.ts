/** Sends one request of a bad neighbour, as slowly as it wants, and reads the answer or does not. */
import { type Agent, type IncomingMessage, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Sending {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer | null;
  readonly sendMs: number;
  readonly unread: boolean;
}

export interface Outcome {
  /** See `Tally`. */
  readonly how: string;
  /** Bytes of the body that were sent, and bytes of the answer that were read. */
  readonly sent: number;
  readonly received: number;
  /** The beginning of the answer, with its headers. */
  readonly text: string;
}

const CHUNK = 64 * 1024;
const KEPT_TEXT = 4_096;

/** Resolves when the answer has ended, the connection has broken, or `signal` has ended it. */
export async function send(origin: string, agent: Agent, sending: Sending, signal: AbortSignal): Promise<Outcome> {
  const { method, path, headers, body, sendMs, unread } = sending;
  const length = body === null ? {} : { 'content-length': String(body.length) };
  const req = request(origin + path, { method, agent, headers: { ...headers, ...length }, signal });
  let answered = false;
  let sent = 0;
  let received = 0;
  let text = '';

  const closed = new Promise<false>((resolve) => req.once('close', () => resolve(false)));
  /** Resolves when the kernel has taken it: with false if the connection has closed. */
  const write = (chunk: Buffer): Promise<boolean> =>
    Promise.race([closed, new Promise<boolean>((resolve) => req.write(chunk, (error) => resolve(!error)))]);

  async function sendBody(bytes: Buffer): Promise<void> {
    const pauseMs = sendMs / Math.max(1, Math.ceil(bytes.length / CHUNK));
    for (let at = 0; at < bytes.length && !answered && !req.destroyed; at += CHUNK) {
      const chunk = bytes.subarray(at, at + CHUNK);
      if (!(await write(chunk))) return;
      sent += chunk.length;
      if (pauseMs > 0) await sleep(pauseMs, undefined, { signal }).catch(() => undefined);
    }
    // A body that is not wanted is not sent on: this connection cannot be used again.
    if (sent < bytes.length && !answered) req.destroy();
    if (sent === bytes.length) req.end();
  }

  function read(res: IncomingMessage): void {
    const head = Object.entries(res.headers).map(([name, value]) => `${name}: ${value}\n`);
    text = `${head.join('')}\n`;
    received = text.length;
    if (unread) return;
    res.on('data', (chunk: Buffer) => {
      received += chunk.length;
      if (text.length < KEPT_TEXT) text += chunk.toString('latin1');
    });
    res.on('end', () => sent < (body?.length ?? 0) && req.destroy());
  }

  const ended = new Promise<string>((resolve) => {
    req.on('response', (res) => {
      answered = true;
      read(res);
      res.on('error', () => undefined);
      // An answer that is not read does not close by itself when its connection has.
      if (unread) req.once('close', () => res.destroy());
      res.on('close', () => {
        const code = /"error":\s*\{"code":\s*(-?\d+)/.exec(text)?.[1];
        const how = signal.aborted && !res.complete ? ' open' : res.complete ? '' : ' cut';
        resolve(`${res.statusCode}${code === undefined ? '' : ` error ${code}`}${how}`);
      });
    });
    req.on('error', (error: NodeJS.ErrnoException) => answered || resolve(signal.aborted ? 'open' : (error.code ?? error.name)));
    req.on('close', () => answered || resolve(signal.aborted ? 'open' : 'closed'));
  });
  if (body === null) req.end();
  else await sendBody(body);
  return { how: await ended, sent, received, text };
}
