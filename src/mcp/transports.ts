/** Sends each request over the transport of its target, and records each target's mode (stateful or stateless). */
import type { AddressRule } from '../base/network/network-address.ts';
import { createBridge } from './upstream/bridge/bridge.ts';
import type { Health } from './upstream/health.ts';
import { createHttpUpstream } from './upstream/http.ts';
import { createUpstreamModes } from './upstream/modes.ts';
import { createSseUpstream } from './upstream/sse/sse.ts';
import { createStdioUpstream, type StdioDeps } from './upstream/stdio/stdio.ts';
import { createUnread } from './upstream/unread.ts';
import type { Upstream } from './upstream/upstream.ts';

type Parts = Omit<StdioDeps, 'unread'> & {
  readonly addresses: AddressRule;
  readonly health: Health;
  /** Adds the tokens of users' own accounts to the requests of a transport. */
  readonly withAccounts: (upstream: Upstream) => Upstream;
};

export function createUpstreams(deps: Parts) {
  const { limits, addresses, health, withAccounts, newId, now } = deps;
  const unread = createUnread(limits.answerBytes);
  const http = withAccounts(health.watched(createHttpUpstream(limits, addresses, unread)));
  const stdio = createStdioUpstream({ ...deps, unread });
  const byTransport = {
    'streamable-http': http,
    sse: withAccounts(health.watched(createSseUpstream(limits, newId, addresses, unread))),
    stdio: health.watched(stdio),
  };
  // The bridge itself looks up the mode of a target, so mode probes must not go through the bridge.
  const modes = createUpstreamModes(routed(byTransport), now);
  const bridge = createBridge({ http, modes, limits, newId, now, unread });
  return { upstream: routed({ ...byTransport, 'streamable-http': bridge }), modes, processes: stdio.processes };
}

function routed(byTransport: Readonly<Record<'streamable-http' | 'sse' | 'stdio', Upstream>>): Upstream {
  return {
    send: (request) => byTransport[request.target.transport].send(request),
    async close() {
      await Promise.all(Object.values(byTransport).map((upstream) => upstream.close()));
    },
  };
}
