/**
 * Requests that belong to another replica, because what they are about is in its memory. They go there as they came, token
 * included, and are judged there as if the client had sent them; only what depends on the client's connection (`Host`,
 * `Origin`, its address) has been checked here.
 */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { Agent, type Dispatcher, errors } from 'undici';
import type { Vault } from '../auth/vault.ts';

export interface Peers {
  /** Whether a replica of this gateway passes the request on. */
  isFromPeer(req: IncomingMessage): boolean;
  /**
   * `unreachable`: nothing has reached it. `broken`: it is not known what has, and nothing has been answered. Otherwise the
   * answer is written, or the client gone.
   */
  forward(
    address: string,
    req: IncomingMessage,
    body: Buffer,
    res: ServerResponse,
  ): Promise<'answered' | 'unreachable' | 'broken'>;
  close(): Promise<void>;
}

const HEADER = 'portcullis-peer';
const VALID_MS = 30_000;
const CONNECT_MS = 2_000;
/** Of one connection, or made anew. */
const NOT_PASSED_ON = new Set([
  'connection',
  'keep-alive',
  'transfer-encoding',
  'content-length',
  'host',
  'origin',
  'expect',
  'upgrade',
  HEADER,
]);

export function createPeers(vault: Vault, now: () => number): Peers {
  const key = vault.derive('peer');
  const agent = new Agent({ connect: { timeout: CONNECT_MS }, headersTimeout: 0, bodyTimeout: 0 });
  const macOf = (at: string, method: string, url: string, authorization: string): Buffer => {
    const token = createHash('sha256').update(authorization).digest('base64url');
    return createHmac('sha256', key)
      .update(JSON.stringify([at, method, url, token]))
      .digest();
  };
  return {
    isFromPeer(req) {
      const [, at, mac] = /^([0-9]{1,15})\.([A-Za-z0-9_-]{43})$/.exec(String(req.headers[HEADER] ?? '')) ?? [];
      if (at === undefined || mac === undefined || Math.abs(now() - Number(at)) > VALID_MS) return false;
      const expected = macOf(at, req.method ?? '', req.url ?? '', req.headers.authorization ?? '');
      return timingSafeEqual(expected, Buffer.from(mac, 'base64url'));
    },
    async forward(address, req, body, res) {
      const gone = new AbortController();
      res.once('close', () => gone.abort());
      if (res.closed) gone.abort();
      const method = req.method ?? '';
      const url = req.url ?? '';
      const at = String(now());
      const headers = req.rawHeaders.filter(
        (_, index) => !NOT_PASSED_ON.has((req.rawHeaders[index - (index % 2)] ?? '').toLowerCase()),
      );
      const mac = macOf(at, method, url, req.headers.authorization ?? '').toString('base64url');
      let answer: Dispatcher.ResponseData;
      try {
        answer = await agent.request({
          origin: address,
          path: url,
          method: method as Dispatcher.HttpMethod,
          headers: [...headers, HEADER, `${at}.${mac}`],
          body: body.length === 0 ? null : body,
          signal: gone.signal,
        });
      } catch (error) {
        if (gone.signal.aborted) return 'answered';
        return isUnreachable(error) ? 'unreachable' : 'broken';
      }
      for (const [name, value] of Object.entries(answer.headers)) {
        if (value !== undefined && !NOT_PASSED_ON.has(name)) res.setHeader(name, value);
      }
      res.writeHead(answer.statusCode);
      res.flushHeaders();
      // Whoever reads the answer learns from its end that it broke off.
      await pipeline(answer.body, res).catch(() => res.destroy());
      return 'answered';
    },
    close: () => agent.destroy(),
  };
}

function isUnreachable(error: unknown): boolean {
  if (error instanceof errors.ConnectTimeoutError) return true;
  const { code } = error as { code?: string };
  return code === 'ECONNREFUSED' || code === 'EHOSTUNREACH' || code === 'ENETUNREACH' || code === 'ENOTFOUND';
}
