/** An event stream of the gateway as a test reads it: message by message, until it ends. */
import { request } from 'node:http';
import type { ExecutionContext } from 'ava';
import { createSseReader } from '../../src/protocol/sse.ts';

export interface Heard {
  readonly id?: string | number;
  readonly method?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
  readonly error?: { readonly code: number; readonly message: string };
}

export interface Listener {
  readonly status: number;
  /** The events that have arrived. */
  readonly heard: Heard[];
  /** The first message, of those not yet asked for, that fits. Rejects when the stream ends first. */
  next(fits?: (message: Heard) => boolean): Promise<Heard>;
  /** Resolves when the stream has ended, from whichever side. */
  readonly ended: Promise<void>;
  leave(): void;
}

interface Listened {
  readonly method?: 'GET' | 'POST';
  readonly body?: object;
  readonly headers?: Readonly<Record<string, string>>;
}

export const named =
  (method: string) =>
  (message: Heard): boolean =>
    message.method === method;

/** Resolves with the head of the answer. */
export function listen(t: ExecutionContext, url: string, token: string, listened: Listened = {}): Promise<Listener> {
  const { method = 'GET', body, headers = {} } = listened;
  const heard: Heard[] = [];
  let asked = 0;
  let over = false;
  let wake = (): void => undefined;
  return new Promise((resolve, reject) => {
    const req = request(url, {
      method,
      headers: {
        authorization: `Bearer ${token}`,
        accept: 'application/json, text/event-stream',
        'mcp-protocol-version': '2025-11-25',
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
    });
    t.teardown(() => void req.destroy());
    req.on('error', reject);
    req.on('response', (res) => {
      const reader = createSseReader(1_000_000);
      const ended = new Promise<void>((gone) => {
        res.on('close', () => {
          over = true;
          wake();
          gone();
        });
      });
      res.on('error', () => undefined);
      res.on('data', (chunk: Buffer) => {
        if (!res.headers['content-type']?.startsWith('text/event-stream')) return;
        for (const { data } of reader.push(chunk)) if (data !== '') heard.push(JSON.parse(data) as Heard);
        wake();
      });
      resolve({
        status: res.statusCode ?? 0,
        heard,
        ended,
        leave: () => void req.destroy(),
        async next(fits = () => true) {
          for (;;) {
            while (asked < heard.length) {
              const message = heard[asked++];
              if (message !== undefined && fits(message)) return message;
            }
            if (over) throw new Error(`the stream has ended after ${JSON.stringify(heard)}`);
            await new Promise<void>((more) => {
              wake = more;
            });
          }
        },
      });
    });
    req.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

/** Waits until the condition holds. It must hold within `ms`, which is enough for a busy machine. */
export async function until(what: string, holds: () => boolean | Promise<boolean>, ms = 60_000): Promise<void> {
  for (const deadline = performance.now() + ms; performance.now() < deadline; ) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`never: ${what}`);
}
