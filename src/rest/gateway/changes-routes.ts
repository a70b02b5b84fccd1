/** `/api/changes`: who changed what. */
import { Router } from 'express';
import type { ChangeRow, Changes } from '../../db/changes.ts';
import { readInTurn } from '../../db/turns.ts';
import { admissionOf } from '../../http/context.ts';
import { linkNext, readPage, sendList } from '../../http/page.ts';

const PAGE = { defaultLimit: 100, maxLimit: 1000, key: /^[0-9]{1,15}$/ };

export function createChangesRoutes({ changes }: { readonly changes: Changes }): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/', async (req, res) => {
    const page = readPage(req, PAGE);
    const cursor = page.cursor === null ? null : Number(page.cursor);
    const read = () => changes.page(page.limit ?? PAGE.defaultLimit, cursor);
    const { changes: rows, next } = await readInTurn(admissionOf(res).principal.sub, read);
    if (next !== null) linkNext(req, res, page, String(next));
    await sendList(res, '', rows, changeJson, '');
  });

  return router;
}

function changeJson(row: ChangeRow) {
  return {
    sequence: row.sequence,
    revision: row.revision,
    created_at: new Date(row.created_at).toISOString(),
    actor: row.actor,
    request_id: row.request_id,
    reason: row.reason,
    override: row.override,
    action: row.action,
    object_type: row.object_type,
    object_id: row.object_id,
    before: row.before,
    after: row.after,
  };
}
