/** Revisions of the policy set. */
import type { RevisionRow } from '../../db/changes.ts';
import { get, many, one, type Paths, paged, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { Policy } from './contract.ts';

const Revision = s.model<RevisionRow>('Revision', {
  revision: s.integer,
  created_at: s.time,
  actor: s.actor,
  request_id: s.string,
  reason: s.orNull(s.string),
  created: s.described('The number of created policies.', s.integer),
  updated: s.integer,
  deleted: s.integer,
  policy: s.described(
    'The changed policy, if the revision changed only one.',
    s.orNull(s.model('ChangedPolicy', { id: s.uuid, name: s.string })),
  ),
});
const RevisionSet = s.model('RevisionSet', {
  revision: s.integer,
  made: s.described('How the revision was made; null for revision 0.', s.orNull(Revision)),
  policies: s.listOf(Policy),
});

export const POLICY_HISTORY_PATHS: Paths = {
  '/api/policies/history': {
    get: get('listRevisions', 'List the revisions of the policy set, newest first.', 'admin', many(Revision, REVISION, 'Link'), {
      query: paged,
    }),
  },
  '/api/policies/history/{revision}': {
    get: get(
      'getRevision',
      'Get the policy set at a revision. Revision 0 is the empty set before the first change.',
      'admin',
      one(RevisionSet, REVISION),
    ),
  },
};
