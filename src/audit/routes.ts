/** `/api/logs`. Mounted behind authentication of administrators and auditors. */
import { Router } from 'express';
import type { Connection } from '../db/database.ts';
import { AppError } from '../errors.ts';
import { ID_KEY, readPage, sendPage } from '../http/page.ts';
import { pathId } from '../http/validate.ts';
import { type AuditEntry, auditStore } from './store.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: ID_KEY };

export function createLogRoutes({ db }: { readonly db: Connection }): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const store = auditStore(db);

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const entries = await store.list((page.limit ?? PAGE.defaultLimit) + 1, page.cursor);
    sendPage(req, res, page, entries.map(logJson), (entry) => entry.id);
  });

  router.get('/:id', async (req, res) => {
    const entry = await store.find(pathId(req.params.id));
    if (!entry) throw new AppError('not_found', 'No decision has this id.');
    res.json(logJson(entry));
  });

  return router;
}

/** In the order in which people read it: when, who, what, the answer and why; then what reproduces it. */
function logJson(entry: AuditEntry) {
  return {
    id: entry.id,
    created_at: new Date(entry.created_at).toISOString(),
    user_id: entry.user_id,
    user_email: entry.user_email,
    user_role: entry.user_role,
    user_groups: entry.user_groups,
    target_id: entry.target_id,
    target_name: entry.target_name,
    method: entry.method,
    resource_type: entry.resource_type,
    resource_name: entry.resource_name,
    effect: entry.effect,
    policy_id: entry.policy_id,
    policy_name: entry.policy_name,
    policy_priority: entry.policy_priority,
    reason: entry.reason,
    issuer: entry.issuer,
    revision: entry.revision,
    data_hash: entry.data_hash,
    engine_hash: entry.engine_hash,
    outcome: entry.outcome,
    duration_ms: entry.duration_ms,
    shown: entry.shown,
  };
}
