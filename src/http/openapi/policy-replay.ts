/** Recorded decisions, made again. */
import { EFFECTS } from '../../policies/document.ts';
import { one, type Paths, REVISION } from './operation.ts';
import { objectShown, policyRef } from './policies.ts';
import { verdict } from './policy-questions.ts';
import { policyFiles, sourceMembers } from './policy-sets.ts';
import { described, integer, listOf, named, object, oneOf, orNull, type Schema, strict, string, time, uuid } from './schema.ts';

const count = (description: string): Schema => described(description, { type: 'integer', minimum: 0 });

const decisionAt = named('DecisionAt', object({ id: uuid, created_at: time }));

/** What a replay and a shadow have found. */
export const replayed = {
  revision: described('That the files or the draft were planned on.', integer),
  from: time,
  to: time,
  decisions: count('That are recorded in that time.'),
  replayed: count('Those of them that could be made again.'),
  coverage: described('Percent, rounded down to tenths; null: nothing is recorded.', orNull({ type: 'number' })),
  not_replayed: described(
    'Why others could not: no policy was asked, or it has been erased what they were made on.',
    named('NotReplayed', object({ no_target: integer, not_canonical: integer, error: integer, erased: integer })),
  ),
  grants: count('Denied then, and allowed by the set that is tried.'),
  refuses: count('The contrary.'),
  already: count('Of these, and of `lists.hides`: what the policies as they are now answer so already.'),
  lists: named(
    'ReplayedLists',
    object({
      lists: count('Recorded lists.'),
      names: count('That they showed.'),
      hides: count('Of these, those that would not be shown.'),
      hidden: count('Names that they did not show: these are not recorded, and of them nothing is known.'),
      cut: count('Names that they showed, and that could not be tried.'),
    }),
  ),
  unlisted: count('Decisions and names of flips beyond those that are listed.'),
  changes: count('Policies that would be made, changed or deleted.'),
  unexercised: described(
    'Those of them that no recorded decision was made by, or would be: of them the replay says nothing.',
    listOf(policyRef),
  ),
  flips: described(
    'The most frequent first.',
    listOf(
      named(
        'ReplayFlip',
        object({
          kind: described('listed: a name that a list showed.', oneOf(['request', 'listed'])),
          principal: named(
            'RecordedPrincipal',
            object({
              sub: string,
              email: described('null, with `groups`: erased.', orNull(string)),
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
            'By the policies as they are now, or, for a shadow, as they were when it was counted.',
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
  PolicyReplay: strict(
    {
      ...sourceMembers,
      files: described('Left out, with `draft`: the policies as they are are tried.', policyFiles),
      from: time,
      to: described('Left out: now.', time),
    },
    ['from'],
  ),
  PolicyReplayReport: object(replayed),
} satisfies Record<string, Schema>;

export const POLICY_REPLAY_PATHS: Paths = {
  '/api/policies/replay': {
    post: {
      id: 'replayDecisions',
      summary: 'Put the recorded decisions of a time to files, a draft, or the policies as they are. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyReplay',
      gives: { 200: { ...one('PolicyReplayReport', REVISION), orMediaType: 'application/x-ndjson' } },
      refuses: [404, 412],
      heavy: true,
    },
  },
};
