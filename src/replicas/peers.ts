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
import type { Log } from '../log.ts';

export interface Peer {
  readonly id: string;
  readonly address: string;
}

export interface Peers {
  /** Whether another replica of this gateway passes the request on. */
  isFromPeer(req: IncomingMessage): boolean;
  /**
   * `unreachable`: nothing has reached it. `misdirected`: the session is not with the replica that is there.
   * `broken`: it is not known what has reached it, and nothing has been answered. Otherwise the answer is written, or the
   * client gone. `gone`: it will not answer any more.
   */
  forward(peer: Peer, req: IncomingMessage, body: Buffer, res: ServerResponse, gone: AbortSignal): Promise<Passed>;
  close(): Promise<void>;
}

export type Passed = 'answered' | 'unreachable' | 'misdirected' | 'broken';

export interface PeerParts {
  readonly vault: Vault;
  readonly now: () => number;
  readonly log: Log;
}

const HEADER = 'portcullis-peer';
const VALID_MS = 30_000;
/** HTTP 421, Misdirected Request. */
export const MISDIRECTED = 421;
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

export function createPeers({ vault, now, log }: PeerParts): Peers {
  const key = vault.derive('peer');
  const agent = new Agent({ connect: { timeout: CONNECT_MS }, headersTimeout: 0, bodyTimeout: 0 });
  const macOf = (at: string, req: IncomingMessage): Buffer => {
    const token = createHash('sha256')
      .update(req.headers.authorization ?? '')
      .digest('base64url');
    return createHmac('sha256', key)
      .update(JSON.stringify([at, req.method, req.url, token]))
      .digest();
  };
  return {
    isFromPeer(req) {
      const [, at, mac] = /^([0-9]{1,15})\.([A-Za-z0-9_-]{43})$/.exec(String(req.headers[HEADER] ?? '')) ?? [];
      if (at === undefined || mac === undefined || Math.abs(now() - Number(at)) > VALID_MS) return false;
      return timingSafeEqual(macOf(at, req), Buffer.from(mac, 'base64url'));
    },
    async forward({ id, address }, req, body, res, gone) {
      const left = new AbortController();
      res.once('close', () => left.abort());
      if (res.closed) left.abort();
      const at = String(now());
      const headers = req.rawHeaders.filter(
        (_, index) => !NOT_PASSED_ON.has((req.rawHeaders[index - (index % 2)] ?? '').toLowerCase()),
      );
      const mac = macOf(at, req).toString('base64url');
      let answer: Dispatcher.ResponseData;
      try {
        answer = await agent.request({
          origin: address,
          path: req.url ?? '',
          method: req.method as Dispatcher.HttpMethod,
          headers: [...headers, HEADER, `${at}.${mac}`],
          body: body.length === 0 ? null : body,
          signal: AbortSignal.any([left.signal, gone]),
        });
      } catch (err) {
        if (left.signal.aborted) return 'answered';
        if (isUnreachable(err)) return 'unreachable';
        log.warn({ err, replica: id, address }, 'a replica failed while it had a request');
        return 'broken';
      }
      if (answer.statusCode === MISDIRECTED) {
        answer.body.on('error', () => undefined).destroy();
        return 'misdirected';
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
