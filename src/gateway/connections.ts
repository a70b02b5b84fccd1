/** Users' own accounts at targets. */
import { inTime } from '../base/promises.ts';
import { createClients } from '../connections/clients.ts';
import { createFetchFor } from '../connections/fetch.ts';
import { createConnecting } from '../connections/flows.ts';
import { createRevocations } from '../connections/revocations.ts';
import { createServers } from '../connections/servers.ts';
import { createTokens } from '../connections/tokens.ts';
import { createAccountUpstream } from '../connections/upstream.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';

/** How long the end of the gateway waits for renewals, whose refresh tokens are used already. */
const RENEWALS_MS = 3_000;

export type Connections = ReturnType<typeof createConnections>;

export function createConnections(base: Base, { administer, outbound }: Accounts) {
  const { config, vault, database, changes, newId, now, log } = base;
  const { publicUrl } = config;
  const servers = createServers({ fetchFor: createFetchFor(outbound), now });
  const clients = createClients({ database, vault, publicUrl, now });
  const tokens = createTokens({ database, vault, servers, clients, processId: newId(), now, log });
  const revocations = createRevocations({ database, changes, vault, servers, now, log });
  const connecting = createConnecting({
    ...{ database, vault, administer, servers, clients, revocations, publicUrl, newId, now, log },
  });
  return {
    connecting,
    revocations,
    withAccounts: createAccountUpstream({ tokens, linkTo: connecting.linkTo }),
    async stop(): Promise<void> {
      await inTime(tokens.settled(), RENEWALS_MS);
      // Ends the requests of revocations. The next start sends them again.
      await outbound.close();
      await revocations.stop();
    },
  };
}
