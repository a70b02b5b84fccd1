/**
 * Requests to servers that a document, a client or an administrator names, apart from the calls of targets. The gateway connects only to
 * addresses that the rules allow, follows no redirect, and limits the time and the size of the whole answer.
 */
import type { IncomingHttpHeaders } from 'node:http';
import { Agent, type Dispatcher } from 'undici';
import { DeniedAddress, guardedConnector, namesWith, strangerNames } from './guarded-connect.ts';
import { createAddressRule, createPublicAddressRule } from './network-address.ts';

const CONNECT_MS = 5_000;
/** The lookup of a stranger's name. It leaves time for the connection itself. */
const LOOKUP_MS = 3_000;

/** The message says what failed, for the administrator. */
export class OutboundFault extends Error {
  /** Whether the server may have read the request. */
  readonly sent: boolean;

  constructor(message: string, { sent = true, ...options }: { readonly sent?: boolean; readonly cause?: unknown } = {}) {
    super(message, options);
    this.name = 'OutboundFault';
    this.sent = sent;
  }
}

export interface OutboundRules {
  /** Whether an administrator chose the server, which may then have a private address. Without this, a stranger chose all of them. */
  readonly isChosen?: (url: URL) => boolean;
  /** Whether the request may go without TLS. */
  readonly mayBePlain?: (url: URL) => boolean;
  readonly maxBytes: number;
  /** The limit for the whole request with its answer, in milliseconds. */
  readonly withinMs: number;
}

/** Throws OutboundFault. Redirects are answered as they are. The body has arrived when the promise resolves. */
export type OutboundFetch = (
  url: string | URL,
  request?: {
    readonly method?: string;
    readonly headers?: Readonly<Record<string, string>>;
    readonly body?: unknown;
    readonly signal?: AbortSignal | undefined;
  },
) => Promise<Response>;

interface Limits {
  readonly name: string;
  readonly maxBytes: number;
  readonly signal: AbortSignal;
}

export interface OutboundParts {
  /** Addresses and networks that take precedence over the refused ones. */
  readonly allowed: readonly string[];
  /** The setting that has `allowed`, for messages. */
  readonly setting?: string;
  /** For tests: certificates of authorities, and DNS servers. */
  readonly ca?: string;
  readonly dns?: readonly string[];
}

export type Outbound = ReturnType<typeof createOutbound>;

export function createOutbound({ allowed, setting, ca, dns }: OutboundParts) {
  // A connection for each request: one that the server closes meanwhile could lose an answer that has a new refresh token.
  const agentOf = (...[rule, resolve]: [Parameters<typeof guardedConnector>[0], ReturnType<typeof namesWith>]): Agent =>
    new Agent({ pipelining: 0, connect: guardedConnector(rule, { timeout: CONNECT_MS, resolve, ca }) });
  const chosen = agentOf(createAddressRule(allowed, setting), namesWith(dns));
  const foreign = agentOf(createPublicAddressRule(allowed, setting), strangerNames(LOOKUP_MS, dns));

  return {
    fetchWith:
      ({ isChosen = () => false, mayBePlain = () => false, maxBytes, withinMs }: OutboundRules): OutboundFetch =>
      async (address, { method = 'GET', headers, body, signal } = {}) => {
        const url = new URL(address);
        const name = url.origin + url.pathname;
        if (url.protocol !== 'https:' && !(url.protocol === 'http:' && mayBePlain(url))) {
          throw new OutboundFault(`${name} does not use HTTPS`, { sent: false });
        }
        const limit = AbortSignal.timeout(withinMs);
        const options: Dispatcher.DispatchOptions = {
          ...{ origin: url.origin, path: url.pathname + url.search, method: method as Dispatcher.HttpMethod },
          headers: { ...headers, 'accept-encoding': 'identity', 'user-agent': 'portcullis' },
          body: body instanceof Uint8Array ? body : (body ?? null) === null ? null : String(body),
        };
        const limits = { name, maxBytes, signal: signal === undefined ? limit : AbortSignal.any([signal, limit]) };
        const { answer, sent } = exchange(isChosen(url) ? chosen : foreign, options, limits);
        try {
          return await answer;
        } catch (error) {
          if (error instanceof OutboundFault) throw error;
          const reason = limit.aborted ? `has not answered within ${withinMs / 1_000} s` : reasonOf(error);
          throw new OutboundFault(`${name} ${reason}`, { cause: error, sent: sent() });
        }
      },
    async close(): Promise<void> {
      await Promise.all([chosen.destroy(), foreign.destroy()]);
    },
  };
}

function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  if (cause instanceof Error) return reasonOf(cause);
  return error instanceof DeniedAddress ? `is refused: ${message}` : `cannot be reached: ${message}`;
}

/** Sends one request. It never pauses the connection, because the limit of size is reached first. */
function exchange(agent: Agent, options: Dispatcher.DispatchOptions, { name, maxBytes, signal }: Limits) {
  let sent = false;
  const answer = new Promise<Response>((resolve, reject) => {
    let [status, bytes] = [0, 0];
    let headers: IncomingHttpHeaders = {};
    const parts: Buffer[] = [];
    let stop = (_reason: Error): void => undefined;
    const end = (): void => {
      stop(signal.reason);
      reject(signal.reason);
    };
    if (signal.aborted) return end();
    signal.addEventListener('abort', end);
    const settle = (finish: () => void): void => {
      signal.removeEventListener('abort', end);
      try {
        finish();
      } catch (error) {
        reject(error);
      }
    };
    agent.dispatch(options, {
      onRequestStart(controller) {
        if (signal.aborted) return controller.abort(signal.reason);
        sent = true;
        stop = (reason) => controller.abort(reason);
      },
      onResponseStart(controller, code, given) {
        [status, headers] = [code, given];
        // A small body could unpack to a very large one.
        const { 'content-encoding': encoding = 'identity' } = given;
        if (encoding !== 'identity') controller.abort(new OutboundFault(`${name} answers with a compressed body`));
      },
      onResponseData(controller, part) {
        bytes += part.length;
        if (bytes > maxBytes) controller.abort(new OutboundFault(`${name} answers with more than ${maxBytes} bytes`));
        else parts.push(part);
      },
      onResponseEnd: () => settle(() => resolve(responseOf(status, headers, Buffer.concat(parts)))),
      onResponseError: (_controller, error) => settle(() => reject(error)),
    });
  });
  return { answer, sent: () => sent };
}

function responseOf(status: number, given: IncomingHttpHeaders, body: Buffer<ArrayBuffer>): Response {
  const headers = new Headers();
  for (const [name, value = ''] of Object.entries(given)) for (const one of [value].flat()) headers.append(name, one);
  return new Response([204, 205, 304].includes(status) ? null : body, { status, headers });
}
