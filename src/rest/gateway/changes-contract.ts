/** The audit log of administrative changes. */
import { get, many, type Paths, paged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

/** These changes have no content to show. */
const UNSHOWN = 'or for a logout or a password change';

const Change = s.model('Change', {
  sequence: s.integer,
  revision: s.integer,
  created_at: s.time,
  actor: s.actor,
  request_id: s.string,
  reason: s.described('The reason in the words of the actor; null: the actor gave none.', s.orNull(s.string)),
  action: s.string,
  object_type: s.oneOf(['policy', 'user', 'token', 'target', 'credential', 'key', 'session', 'draft']),
  object_id: s.string,
  before: s.described(`The object before the change, without secrets; null for a creation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
  after: s.described(`The object after the change, without secrets; null for a deletion or revocation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
});

export const CHANGE_PATHS: Paths = {
  '/api/changes': {
    get: get('listChanges', 'List administrative changes, newest first.', 'admin or auditor', many(Change, 'Link'), {
      query: paged,
    }),
  },
};
