/** `/api/status`: whether every replica has loaded the newest state. */
import { Router } from 'express';
import type { Changes } from '../../db/changes.ts';
import type { Presence } from '../../replicas/presence.ts';

export interface StatusRouteParts {
  readonly changes: Pick<Changes, 'position'>;
  readonly presence: Presence;
}

export function createStatusRoutes({ changes, presence }: StatusRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });
  router.get('/', async (_req, res) => {
    const { sequence, revision } = await changes.position();
    const replicas = await presence.live();
    res.json({
      sequence,
      revision,
      replicas: replicas.map((replica) => ({
        id: replica.id,
        this: replica.id === presence.id,
        started_at: new Date(replica.started_at).toISOString(),
        seen_ms_ago: replica.unseen_ms,
        sequence: replica.sequence,
        revision: replica.revision,
        // The data about other replicas is some seconds old. A replica loads what it lacks before its next decision.
        lag: Math.max(0, sequence - replica.sequence),
        engine_hash: replica.engine_hash,
      })),
    });
  });
  return router;
}
