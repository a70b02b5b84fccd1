/** The replay of recorded decisions. */
import { instant, model } from '../../base/validate.ts';
import { EFFECTS } from '../../engine/compile/policy.ts';
import type { ReplayReport } from '../../policies/replay/report.ts';
import { policyFiles, type SetSource, sourceMembers, withSource } from '../../policies/sets/bodies.ts';
import { type Operations, one, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { objectShown, policyRef } from '../policies/contract.ts';
import { verdict } from './contract.ts';

interface ReplayBody extends SetSource {
  from: number;
  to?: number;
}

export const replayBody = withSource(
  model<ReplayBody>('PolicyReplay', {
    ...sourceMembers,
    files: policyFiles.description('Absent, together with `draft`: the decisions are replayed with the current policies.'),
    from: instant().required(),
    to: instant().description('Absent: now.'),
  }),
  false,
).required();

const count = (description: string): s.Schema => s.described(description, { type: 'integer', minimum: 0 });

const decisionAt = s.model('DecisionAt', { id: s.uuid, created_at: s.time });

/** The result of a replay or a shadow. */
export const replayed = {
  revision: s.described('The revision on which the files or the draft were planned.', s.integer),
  from: s.time,
  to: s.time,
  decisions: count('The decisions recorded in that time.'),
  replayed: count('How many of them could be replayed.'),
  coverage: s.described(
    'Replayed decisions in percent, rounded down to tenths; null: no decision is recorded.',
    s.orNull({ type: 'number' }),
  ),
  not_replayed: s.described(
    'Why the other decisions could not be replayed: no policy was evaluated, or data of the decision is erased or missing.',
    s.model('NotReplayed', {
      ...{ no_target: s.integer, not_canonical: s.integer, error: s.integer, erased: s.integer },
      damaged: count('Decisions that refer to data that the log no longer has. `audit verify` reports them.'),
    }),
  ),
  grants: count('Decisions that were denied and that the candidate set allows.'),
  refuses: count('Decisions that were allowed and that the candidate set denies.'),
  already: count('How many of the changes in `grants`, `refuses` and `lists.hides` the current policies already make.'),
  lists: s.model('ReplayedLists', {
    lists: count('The recorded lists.'),
    names: count('The names in these lists.'),
    hides: count('The names that the candidate set would hide.'),
    hidden: count('Names that the lists left out. They are not recorded, so they cannot be replayed.'),
    cut: count('Listed names that could not be replayed.'),
  }),
  unlisted: count('Changed decisions and names beyond those in `flips`.'),
  changes: count('The policies that would be created, updated or deleted.'),
  unexercised: s.described(
    'Changed policies that decide no recorded decision, before or after. The replay says nothing about them.',
    s.listOf(policyRef),
  ),
  flips: s.described(
    'The changed decisions, most frequent first.',
    s.listOf(
      s.model('ReplayFlip', {
        kind: s.described('`listed`: a name in a list.', s.oneOf(['request', 'listed'])),
        principal: s.model('RecordedPrincipal', {
          sub: s.string,
          email: s.described('null, together with `groups`: erased.', s.orNull(s.string)),
          role: s.orNull(s.string),
          groups: s.orNull(s.listOf(s.string)),
        }),
        target: s.model('RecordedTarget', { id: s.string, name: s.orNull(s.string) }),
        ...objectShown,
        recorded: s.model('RecordedAnswer', {
          effect: s.oneOf(EFFECTS),
          policy: s.orNull(s.model('RecordedPolicy', { id: s.string, name: s.orNull(s.string) })),
        }),
        now: s.described(
          'The effect by the current policies. For a shadow: by the policies at the time of the count.',
          s.orNull(s.oneOf(EFFECTS)),
        ),
        would_be: verdict,
        count: s.integer,
        first: decisionAt,
        last: decisionAt,
      }),
    ),
  ),
};

export const PolicyReplayReport = s.model<ReplayReport & { revision: number; from: string; to: string }>(
  'PolicyReplayReport',
  replayed,
);

export const POLICY_REPLAY_OPERATIONS: Operations = {
  'POST /api/policies/replay': {
    id: 'replayDecisions',
    access: ['read'],
    summary: 'Replay the recorded decisions of a period with files, a draft, or the current policies. Nothing is stored.',
    takes: replayBody,
    gives: { 200: { ...one(PolicyReplayReport, REVISION), orMediaType: 'application/x-ndjson' } },
    refuses: [404, 409, 412],
    heavy: true,
  },
};
