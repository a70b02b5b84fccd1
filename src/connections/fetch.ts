/**
 * HTTP requests to authorization servers. A URL may come from a target or from a server that it names, so the gateway refuses private
 * addresses unless an administrator chose the host, follows no redirects, and bounds size and time.
 */
import type { CustomFetch } from 'openid-client';
import type { Dispatcher } from 'undici';
import type { AddressRule } from '../base/network-address.ts';
import { createAgent } from '../mcp/upstream/connect.ts';
import type { Place } from '../targets/connections.ts';
import { isLoopback } from '../targets/document.ts';

const CONNECT_MS = 5_000;
/** The whole request, with its answer. */
export const REQUEST_MS = 10_000;
const MAX_BYTES = 256 * 1024;
const ACCOUNT = 'authorization servers';

/** The server answered with more than the gateway reads, or the URL is not one that the gateway requests. */
export class RefusedRequest extends Error {}

export type ServerFetch = CustomFetch;

export interface FetchParts {
  /** The addresses to which the gateway never connects. */
  readonly addresses: AddressRule;
  /** The same, with those of private networks. */
  readonly publicAddresses: AddressRule;
}

export type Fetches = ReturnType<typeof createFetches>;

export function createFetches({ addresses, publicAddresses }: FetchParts) {
  const inside = createAgent(CONNECT_MS, addresses, ACCOUNT);
  const outside = createAgent(CONNECT_MS, publicAddresses, ACCOUNT);

  /** Returns a fetch for what an administrator or a target has chosen. The host of the target itself is an administrator's choice. */
  function fetchFor({ url: targetUrl, trusted }: Place): ServerFetch {
    const { hostname, origin } = new URL(targetUrl);
    // A target on this machine may name a server on this machine without TLS. Other targets may not name what only this machine reaches.
    const mayUsePlain = trusted || isLoopback(new URL(targetUrl));
    return (address, { method, headers, body, signal }) => {
      const url = new URL(address);
      if (
        url.protocol !== 'https:' &&
        !(url.protocol === 'http:' && ((mayUsePlain && isLoopback(url)) || url.origin === origin))
      ) {
        throw new RefusedRequest(`${url.origin} does not use HTTPS`);
      }
      const agent = trusted || url.hostname === hostname ? inside : outside;
      const timeout = AbortSignal.timeout(REQUEST_MS);
      return ask(agent, url, {
        method: method as Dispatcher.HttpMethod,
        headers: { ...headers, 'user-agent': 'portcullis' },
        body: body === undefined || body === null ? null : String(body),
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      });
    };
  }

  return {
    fetchFor,
    async close(): Promise<void> {
      await Promise.all([inside.destroy(), outside.destroy()]);
    },
  };
}

async function ask(
  agent: ReturnType<typeof createAgent>,
  url: URL,
  options: Pick<Dispatcher.RequestOptions, 'method' | 'headers' | 'body' | 'signal'>,
): Promise<Response> {
  const { statusCode, headers, body } = await agent.request({
    ...options,
    origin: url.origin,
    path: url.pathname + url.search,
    headersTimeout: REQUEST_MS,
    bodyTimeout: REQUEST_MS,
  });
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > MAX_BYTES) {
      body.destroy();
      throw new RefusedRequest(`${url.origin} sent more than ${MAX_BYTES} bytes`);
    }
    chunks.push(chunk);
  }
  const given = new Headers();
  for (const [name, value] of Object.entries(headers)) {
    for (const one of Array.isArray(value) ? value : [value ?? '']) given.append(name, one);
  }
  const isEmpty = statusCode === 204 || statusCode === 205 || statusCode === 304;
  return new Response(isEmpty ? null : Buffer.concat(chunks), { status: statusCode, headers: given });
}
