/** Suggested policies. */
import { RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { suggestBody } from '../../policies/suggest/bodies.ts';
import type { Skipped } from '../../policies/suggest/needs.ts';
import type { LeftOutJson, RoleJson, SuggestedJson } from '../../policies/suggest/report.ts';
import { type Operations, one, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { objectShown, policyRef, subjectType } from '../policies/contract.ts';
import { ownerName, policyChangesWithFlips, policyFiles, verdict } from '../policy-sets/contract.ts';
import { PolicyReplayReport } from './replay-contract.ts';

const count = (description: string): s.Schema => s.described(description, { type: 'integer', minimum: 0 });
const targetShown = s.described('The name of the target.', s.string);

const PolicySuggestion = s.model('PolicySuggestion', {
  revision: s.described('The revision for which the suggestion holds.', s.integer),
  from: s.time,
  to: s.time,
  decisions: count('The decisions that were read; for a role, those of its callers.'),
  skipped: s.described(
    'Decisions that are not part of the suggestion. `no_target`: the target does not exist or is disabled. `not_canonical`: the URI is ambiguous. `error`: the evaluation failed. `erased`: the data of the user is erased. `damaged`: the log lacks data of the decision, which `audit verify` reports. `target_gone`: the target was deleted. `allowed`: the request was allowed. `allowed_now`: the current policies allow it. `not_in_group`: the caller is not in the group.',
    s.model<Record<Skipped, number>>('SkippedDecisions', {
      ...{ no_target: s.integer, not_canonical: s.integer, error: s.integer, erased: s.integer, damaged: s.integer },
      ...{ target_gone: s.integer, allowed: s.integer, allowed_now: s.integer, not_in_group: s.integer },
    }),
  ),
  unlisted: count('Requests that are not part of the suggestion, because there were too many different ones.'),
  owner: ownerName,
  prune: s.described('Whether the files must be applied with `prune`.', s.boolean),
  adopt: s.described('Whether the files must be applied with `adopt`.', s.boolean),
  files: policyFiles,
  verdict,
  changes: s.described('What applying the files would change.', policyChangesWithFlips),
  suggested: s.listOf(
    s.model<SuggestedJson>('SuggestedPolicy', {
      file: s.string,
      subject_type: subjectType,
      subject_value: s.string,
      target: targetShown,
      resource_type: s.oneOf(RESOURCE_TYPES),
      names: s.described(
        'What was asked for. A null name stands for the use of the target.',
        s.listOf(
          s.model('SuggestedName', {
            resource_name: s.orNull(s.string),
            count: s.integer,
            users: s.described('How many users asked, up to 1,000.', s.integer),
          }),
        ),
      ),
      priority: s.int32,
      outranks: s.described('Denies that would no longer decide some of these requests.', s.listOf(policyRef)),
      holders: count('The users who have the subject. Denies may still keep some of them out.'),
      other_holders: s.described(
        'Some users who have the subject and did not ask: e-mails, or ids of users without one.',
        s.listOf(s.string),
      ),
    }),
  ),
  left_out: s.described(
    'What the suggestion does not allow, at most 1,000 entries. `denied`: a deny decides, and `over_denies` is not set. `highest`: a deny with the highest priority decides. `inexpressible`: no pattern matches exactly this name. `rare`: fewer than `min_count`. `too_many`: more than 500 policies.',
    s.listOf(
      s.model<LeftOutJson>('LeftOutRequest', {
        reason: s.oneOf(['denied', 'highest', 'inexpressible', 'rare', 'too_many']),
        subject_value: s.string,
        target: targetShown,
        ...objectShown,
        count: s.integer,
        policy: s.described('The policy that decides now.', s.orNull(policyRef)),
        last: s.model('LastDecision', { id: s.uuid, created_at: s.time }),
      }),
    ),
  ),
  left_out_count: count('How many entries `left_out` would have without its limit.'),
  replay: s.described(
    'The recorded decisions that would flip. null: nothing is suggested, or the suggestion is for a role.',
    s.orNull(PolicyReplayReport),
  ),
  beyond: s.described(
    'The places in `replay.flips`, from 0, of decisions that the suggestion is not about.',
    s.listOf(s.integer),
  ),
  role: s.described(
    'What a suggestion for a role keeps and takes away; null for denied requests.',
    s.orNull(
      s.model<RoleJson>('SuggestionForRole', {
        role: s.string,
        replayed: count(
          'Recorded requests of the role that were evaluated again. Each gets the same effect, except those in `lost`.',
        ),
        lost: count('How many of them would be denied, because there were fewer than `min_count`.'),
        kept: s.described(
          'Policies that stay, with the number of requests that they allow. `other_subjects`: they allow these for different subjects than the role. `other_owner`: their files belong to a different owner. `inexpressible`: they allow a name that no pattern matches exactly.',
          s.listOf(
            s.model('KeptPolicy', {
              policy: policyRef,
              reason: s.oneOf(['other_subjects', 'other_owner', 'inexpressible']),
              count: s.integer,
            }),
          ),
        ),
        unused: s.described(
          'Objects that lists showed to callers with the role, but that none of these callers asked for. The role would lose them. At most 1,000 entries.',
          s.listOf(s.model('UnusedObject', { target: targetShown, ...objectShown })),
        ),
        unused_count: count('How many entries `unused` would have without its limit.'),
      }),
    ),
  ),
});

export const POLICY_SUGGEST_OPERATIONS: Operations = {
  'POST /api/policies/suggest': {
    id: 'suggestPolicies',
    access: ['read'],
    summary: 'Suggest policies that allow denied requests, or only what a role uses. Nothing is stored.',
    takes: suggestBody,
    gives: { 200: { ...one(PolicySuggestion, REVISION), orMediaType: 'application/x-ndjson' } },
    refuses: [404, 409],
    heavy: true,
  },
};
