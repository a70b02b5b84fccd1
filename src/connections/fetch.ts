/** Requests to authorization servers. A URL may come from a target, or from a server that it names. */
import type { Outbound, OutboundFetch } from '../base/network/outbound.ts';
import type { Place } from '../targets/connections.ts';
import { isLoopback } from '../targets/document.ts';

/** The whole request, with its answer. */
export const REQUEST_MS = 10_000;
const MAX_BYTES = 256 * 1024;

/** Returns a fetch for what an administrator or a target has chosen. The host of the target itself is an administrator's choice. */
export type FetchFor = (place: Place) => OutboundFetch;

export const createFetchFor =
  (outbound: Pick<Outbound, 'fetchWith'>): FetchFor =>
  ({ url: targetUrl, trusted }) => {
    const target = new URL(targetUrl);
    // A target on this machine may name a server on this machine without TLS. Other targets may not name what only this machine reaches.
    const mayUsePlain = trusted || isLoopback(target);
    return outbound.fetchWith({
      isChosen: ({ hostname }) => trusted || hostname === target.hostname,
      mayBePlain: (url) => (mayUsePlain && isLoopback(url)) || url.origin === target.origin,
      ...{ maxBytes: MAX_BYTES, withinMs: REQUEST_MS },
    });
  };
