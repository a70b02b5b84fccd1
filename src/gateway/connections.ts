/** Users' own accounts at targets. */
import { createClients } from '../connections/clients.ts';
import { createFetchFor } from '../connections/fetch.ts';
import { createConnecting } from '../connections/flows.ts';
import { createRevocations } from '../connections/revocations.ts';
import { createServers } from '../connections/servers.ts';
import { createTokens } from '../connections/tokens.ts';
import { createAccountUpstream } from '../connections/upstream.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';

export type Connections = ReturnType<typeof createConnections>;

export function createConnections(base: Base, { administer, outbound }: Accounts) {
  const { config, vault, database, newId, now, log } = base;
  const { publicUrl } = config;
  const servers = createServers({ fetchFor: createFetchFor(outbound), now });
  const clients = createClients({ database, vault, publicUrl, now });
  const tokens = createTokens({ database, vault, servers, clients, processId: newId(), now, log });
  const revocations = createRevocations({ database, vault, servers, now, log });
  const connecting = createConnecting({
    ...{ database, vault, administer, servers, clients, revocations, publicUrl, newId, now, log },
  });
  return {
    connecting,
    revocations,
    withAccounts: createAccountUpstream({ tokens, linkTo: connecting.linkTo }),
    stop: (): Promise<void> => revocations.stop(),
  };
}
