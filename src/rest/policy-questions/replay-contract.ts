/** The replay of recorded decisions. */
import { instant, model } from '../../base/validate.ts';
import { EFFECTS } from '../../engine/compile/policy.ts';
import { policyFiles, type SetSource, sourceMembers, withSource } from '../../policies/sets/bodies.ts';
import { one, type Paths, REVISION } from '../openapi/operation.ts';
import { described, integer, listOf, named, object, oneOf, orNull, type Schema, string, time, uuid } from '../openapi/schema.ts';
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

const count = (description: string): Schema => described(description, { type: 'integer', minimum: 0 });

const decisionAt = named('DecisionAt', object({ id: uuid, created_at: time }));

/** The result of a replay or a shadow. */
export const replayed = {
  revision: described('The revision on which the files or the draft were planned.', integer),
  from: time,
  to: time,
  decisions: count('The decisions recorded in that time.'),
  replayed: count('How many of them could be replayed.'),
  coverage: described(
    'Replayed decisions in percent, rounded down to tenths; null: no decision is recorded.',
    orNull({ type: 'number' }),
  ),
  not_replayed: described(
    'Why the other decisions could not be replayed: no policy was evaluated, or the data of the decision is erased.',
    named('NotReplayed', object({ no_target: integer, not_canonical: integer, error: integer, erased: integer })),
  ),
  grants: count('Decisions that were denied and that the candidate set allows.'),
  refuses: count('Decisions that were allowed and that the candidate set denies.'),
  already: count('How many of the changes in `grants`, `refuses` and `lists.hides` the current policies already make.'),
  lists: named(
    'ReplayedLists',
    object({
      lists: count('The recorded lists.'),
      names: count('The names in these lists.'),
      hides: count('The names that the candidate set would hide.'),
      hidden: count('Names that the lists left out. They are not recorded, so they cannot be replayed.'),
      cut: count('Listed names that could not be replayed.'),
    }),
  ),
  unlisted: count('Changed decisions and names beyond those in `flips`.'),
  changes: count('The policies that would be created, updated or deleted.'),
  unexercised: described(
    'Changed policies that decide no recorded decision, before or after. The replay says nothing about them.',
    listOf(policyRef),
  ),
  flips: described(
    'The changed decisions, most frequent first.',
    listOf(
      named(
        'ReplayFlip',
        object({
          kind: described('`listed`: a name in a list.', oneOf(['request', 'listed'])),
          principal: named(
            'RecordedPrincipal',
            object({
              sub: string,
              email: described('null, together with `groups`: erased.', orNull(string)),
              role: orNull(string),
              groups: orNull(listOf(string)),
            }),
          ),
          target: named('RecordedTarget', object({ id: string, name: orNull(string) })),
          ...objectShown,
          recorded: named(
            'RecordedAnswer',
            object({
              effect: oneOf(EFFECTS),
              policy: orNull(named('RecordedPolicy', object({ id: string, name: orNull(string) }))),
            }),
          ),
          now: described(
            'The effect by the current policies. For a shadow: by the policies at the time of the count.',
            orNull(oneOf(EFFECTS)),
          ),
          would_be: verdict,
          count: integer,
          first: decisionAt,
          last: decisionAt,
        }),
      ),
    ),
  ),
};

export const POLICY_REPLAY_SCHEMAS = {
  PolicyReplayReport: object(replayed),
} satisfies Record<string, Schema>;

export const POLICY_REPLAY_PATHS: Paths = {
  '/api/policies/replay': {
    post: {
      id: 'replayDecisions',
      summary: 'Replay the recorded decisions of a period with files, a draft, or the current policies. Nothing is stored.',
      access: 'admin',
      takes: replayBody,
      gives: { 200: { ...one('PolicyReplayReport', REVISION), orMediaType: 'application/x-ndjson' } },
      refuses: [404, 412],
      heavy: true,
    },
  },
};
