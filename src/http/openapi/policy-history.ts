/** Revisions of the policy set. */
import { get, many, one, type Paths, paged, REVISION } from './operation.ts';
import { actor, described, integer, listOf, named, object, orNull, ref, type Schema, string, time, uuid } from './schema.ts';

const revisionMembers = {
  revision: integer,
  created_at: time,
  actor,
  request_id: string,
  reason: orNull(string),
  created: described('Policies that were made.', integer),
  updated: integer,
  deleted: integer,
  policy: described('The policy, where it was one alone.', orNull(named('ChangedPolicy', object({ id: uuid, name: string })))),
};

const policy: Schema = ref('Policy');
const revision: Schema = ref('Revision');

export const POLICY_HISTORY_SCHEMAS = {
  Revision: object(revisionMembers),
  RevisionSet: object({
    revision: integer,
    made: described('null for revision 0.', orNull(revision)),
    policies: listOf(policy),
  }),
} satisfies Record<string, Schema>;

export const POLICY_HISTORY_PATHS: Paths = {
  '/api/policies/history': {
    get: get('listRevisions', 'Revisions of the policy set, newest first.', 'admin', many('Revision', REVISION, 'Link'), {
      query: paged,
    }),
  },
  '/api/policies/history/{revision}': {
    get: get(
      'getRevision',
      'The policy set at a revision; 0 is the empty set before the first.',
      'admin',
      one('RevisionSet', REVISION),
    ),
  },
};
