/** Revisions of the policy set. */
import { get, many, one, type Paths, paged, REVISION } from '../openapi/operation.ts';
import {
  actor,
  described,
  integer,
  listOf,
  named,
  object,
  orNull,
  ref,
  type Schema,
  string,
  time,
  uuid,
} from '../openapi/schema.ts';

const revisionMembers = {
  revision: integer,
  created_at: time,
  actor,
  request_id: string,
  reason: orNull(string),
  created: described('The number of created policies.', integer),
  updated: integer,
  deleted: integer,
  policy: described(
    'The changed policy, if the revision changed only one.',
    orNull(named('ChangedPolicy', object({ id: uuid, name: string }))),
  ),
};

const policy: Schema = ref('Policy');
const revision: Schema = ref('Revision');

export const POLICY_HISTORY_SCHEMAS = {
  Revision: object(revisionMembers),
  RevisionSet: object({
    revision: integer,
    made: described('How the revision was made; null for revision 0.', orNull(revision)),
    policies: listOf(policy),
  }),
} satisfies Record<string, Schema>;

export const POLICY_HISTORY_PATHS: Paths = {
  '/api/policies/history': {
    get: get(
      'listRevisions',
      'List the revisions of the policy set, newest first.',
      'admin',
      many('Revision', REVISION, 'Link'),
      {
        query: paged,
      },
    ),
  },
  '/api/policies/history/{revision}': {
    get: get(
      'getRevision',
      'Get the policy set at a revision. Revision 0 is the empty set before the first change.',
      'admin',
      one('RevisionSet', REVISION),
    ),
  },
};
