/** The other replicas, and the sessions that each of them owns. */
import { createShadows } from '../policies/drafts/shadow.ts';
import { createPeers } from '../replicas/peers.ts';
import { createPresence } from '../replicas/presence.ts';
import { sessionStore } from '../sessions/session-store.ts';
import { createSessionUpkeep } from '../sessions/upkeep.ts';
import type { Base } from './base.ts';
import type { Decisions } from './decisions.ts';
import type { Policies } from './resources.ts';

export type Replicas = Awaited<ReturnType<typeof joinReplicas>>;

export async function joinReplicas(base: Base, { current }: Decisions, { module, moments }: Policies) {
  const { config, log, vault, database, metrics, newId, now } = base;
  let reached = await current.fresh();
  const presence = await createPresence({
    database,
    vault,
    id: newId(),
    address: config.replicaUrl,
    state: async () => {
      reached = await current.fresh().catch(() => reached);
      return { sequence: reached.sequence, revision: reached.engine.revision, engine_hash: reached.engine.engineHash };
    },
    now,
    log,
  });
  const shadows = createShadows({
    ...{ database, module, moments, log, now },
    replicaId: presence.id,
    diverged: (draft, effect, count) => metrics.shadowDivergences.inc({ draft, effect }, count),
  });
  const peers = createPeers({ vault, now, log });
  const upkeep = createSessionUpkeep({ database, now, log });
  return { presence, shadows, peers, upkeep, sessions: sessionStore(database.knex) };
}
