/** Users' own accounts at targets. */
import { createPublicAddressRule } from '../base/network-address.ts';
import { createClients } from '../connections/clients.ts';
import { createFetches } from '../connections/fetch.ts';
import { createConnecting } from '../connections/flows.ts';
import { createRevocations } from '../connections/revocations.ts';
import { createServers } from '../connections/servers.ts';
import { createTokens } from '../connections/tokens.ts';
import { createAccountUpstream } from '../connections/upstream.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';
import type { Targets } from './resources.ts';

export type Connections = ReturnType<typeof createConnections>;

export function createConnections(base: Base, { administer }: Accounts, { addresses }: Targets) {
  const { config, vault, database, newId, now, log } = base;
  const { publicUrl } = config;
  const fetches = createFetches({ addresses, publicAddresses: createPublicAddressRule(config.allowedAddresses) });
  const servers = createServers({ fetches, now });
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
    async stop(): Promise<void> {
      await revocations.stop();
      await fetches.close();
    },
  };
}
