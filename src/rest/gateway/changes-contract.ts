/** The audit log of administrative changes. */
import { get, many, type Paths, paged } from '../openapi/operation.ts';
import { actor, described, integer, object, oneOf, orNull, type Schema, string, time } from '../openapi/schema.ts';

/** These changes have no content to show. */
const UNSHOWN = 'or for a logout or a password change';

export const CHANGE_SCHEMAS = {
  Change: object({
    sequence: integer,
    revision: integer,
    created_at: time,
    actor,
    request_id: string,
    reason: described('The reason in the words of the actor; null: the actor gave none.', orNull(string)),
    action: string,
    object_type: oneOf(['policy', 'user', 'token', 'target', 'credential', 'key', 'session', 'draft']),
    object_id: string,
    before: described(`The object before the change, without secrets; null for a creation, ${UNSHOWN}.`, {
      type: ['object', 'null'],
    }),
    after: described(`The object after the change, without secrets; null for a deletion or revocation, ${UNSHOWN}.`, {
      type: ['object', 'null'],
    }),
  }),
} satisfies Record<string, Schema>;

export const CHANGE_PATHS: Paths = {
  '/api/changes': {
    get: get('listChanges', 'List administrative changes, newest first.', 'admin or auditor', many('Change', 'Link'), {
      query: paged,
    }),
  },
};
