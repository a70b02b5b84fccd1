/** Revisions of the policy set. */
import { get, many, one, type Paths, paged, REVISION } from './operation.ts';
import { described, integer, listOf, object, orNull, ref, type Schema, string, time, uuid } from './schema.ts';

const revisionMembers = {
  revision: integer,
  created_at: time,
  actor: object({ id: string, email: string }),
  request_id: string,
  reason: orNull(string),
  created: described('Policies that were made.', integer),
  updated: integer,
  deleted: integer,
  policy: described('The policy, where it was one alone.', orNull(object({ id: uuid, name: string }))),
};

const policy: Schema = ref('Policy');

export const POLICY_HISTORY_SCHEMAS = {
  Revision: object(revisionMembers),
  RevisionSet: object({
    revision: integer,
    made: described('null for revision 0.', orNull(object(revisionMembers))),
    policies: listOf(policy),
  }),
} satisfies Record<string, Schema>;

export const POLICY_HISTORY_PATHS: Paths = {
  '/api/policies/history': {
    get: get('Revisions of the policy set, newest first.', 'admin', many('Revision', REVISION, 'Link'), { query: paged }),
  },
  '/api/policies/history/{revision}': {
    get: get('The policy set at a revision; 0 is the empty set before the first.', 'admin', one('RevisionSet', REVISION)),
  },
};
