/**
 * Forwards requests to the replica that owns their session, unchanged, token included. They are checked there as if the client
 * had sent them. Only checks that depend on the client's connection (`Host`, `Origin`, client address) have been made here.
 */
import { createHmac, hash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { Agent, type Dispatcher, errors } from 'undici';
import type { Vault } from '../auth/vault.ts';
import type { Log } from '../base/log.ts';

export interface Peer {
  readonly id: string;
  readonly address: string;
}

export type Peers = ReturnType<typeof createPeers>;

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
/** Headers that belong to one connection, or are set again for the next one. */
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

export function createPeers({ vault, now, log }: PeerParts) {
  const key = vault.derive('peer');
  const agent = new Agent({ connect: { timeout: CONNECT_MS }, headersTimeout: 0, bodyTimeout: 0 });
  const macOf = (at: string, req: IncomingMessage): Buffer => {
    const token = hash('sha256', req.headers.authorization ?? '', 'base64url');
    return createHmac('sha256', key)
      .update(JSON.stringify([at, req.method, req.url, token]))
      .digest();
  };
  return {
    /** Whether another replica of this gateway forwarded the request. */
    isFromPeer(req: IncomingMessage): boolean {
      const [, at, mac] = /^([0-9]{1,15})\.([A-Za-z0-9_-]{43})$/.exec(String(req.headers[HEADER] ?? '')) ?? [];
      if (at === undefined || mac === undefined || Math.abs(now() - Number(at)) > VALID_MS) return false;
      return timingSafeEqual(macOf(at, req), Buffer.from(mac, 'base64url'));
    },
    /**
     * Forwards a request. `unreachable`: nothing reached the replica. `misdirected`: the replica does not own the session.
     * `broken`: it is unknown what reached the replica, and no answer was written. `answered`: the answer was written, or the
     * client has left. `gone` aborts when the replica is considered gone.
     */
    async forward(
      { id, address }: Peer,
      req: IncomingMessage,
      body: Buffer,
      res: ServerResponse,
      gone: AbortSignal,
    ): Promise<Passed> {
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
        log.warn({ err, replica: id, address }, 'replica failed while it handled a forwarded request');
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
      // `pipeline` listens several times, and so do the layers before this one: node would take them for a leak, and warn at each request.
      res.setMaxListeners(0);
      // The client notices that the answer broke off when its connection closes.
      await pipeline(answer.body, res).catch(() => res.destroy());
      return 'answered';
    },
    close: (): Promise<void> => agent.destroy(),
  };
}

function isUnreachable(error: unknown): boolean {
  if (error instanceof errors.ConnectTimeoutError) return true;
  const { code } = error as { code?: string };
  return code === 'ECONNREFUSED' || code === 'EHOSTUNREACH' || code === 'ENETUNREACH' || code === 'ENOTFOUND';
}
