/** The audit log of administrative changes. */
import { get, many, type Paths, paged } from './operation.ts';
import { actor, described, integer, object, oneOf, orNull, type Schema, string, time } from './schema.ts';

/** A change of which there is nothing to show but that it happened. */
const UNSHOWN = 'and for a logout and a password';

export const CHANGE_SCHEMAS = {
  Change: object({
    sequence: integer,
    revision: integer,
    created_at: time,
    actor,
    request_id: string,
    reason: described('In the words of who made it; null: not said.', orNull(string)),
    action: string,
    object_type: oneOf(['policy', 'user', 'token', 'target', 'credential', 'key', 'session', 'draft']),
    object_id: string,
    before: described(`As it was, without secrets; null where it was made, ${UNSHOWN}.`, { type: ['object', 'null'] }),
    after: described(`As it became, without secrets; null where it was deleted or revoked, ${UNSHOWN}.`, {
      type: ['object', 'null'],
    }),
  }),
} satisfies Record<string, Schema>;

export const CHANGE_PATHS: Paths = {
  '/api/changes': {
    get: get('listChanges', 'Who changed what, newest first.', 'admin or auditor', many('Change', 'Link'), { query: paged }),
  },
};
