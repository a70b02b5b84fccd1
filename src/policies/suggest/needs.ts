/** Collects from recorded decisions what a suggestion must allow. Pure. */
import type { RecordedDecision, RecordedList, RecordedPage } from '../../audit/search/recorded-store.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { Engine, PrincipalFacts } from '../../engine/decision.ts';
import { createAskAgain, factsOf, type NotReplayed, questionKey, REMEMBERED, unreplayable } from '../replay/tally.ts';

/** Requests for one object, or for the use of a target, that must be allowed to a subject. */
export interface Need {
  /** The value of the subject that is to get access. */
  readonly subject: string;
  readonly target_id: string;
  /** Both are null if the requests were about the target itself. */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** The policy that decides now; null: none matches. */
  readonly policy_id: string | null;
  /** One of the callers. */
  readonly principal: PrincipalFacts;
  readonly count: number;
  /** The newest decision. */
  readonly last: string;
}

/** Tells objects, and the uses of targets, apart. */
export const objectKey = ({
  target_id,
  resource_type,
  resource_name,
}: Pick<Need, 'target_id' | 'resource_type' | 'resource_name'>) => JSON.stringify([target_id, resource_type, resource_name]);

/** Why recorded decisions are not part of a suggestion. */
export type Skipped = NotReplayed | 'target_gone' | 'allowed' | 'allowed_now' | 'not_in_group';

export interface NeedBook {
  add(record: RecordedDecision, need: Pick<Need, 'subject' | 'resource_type' | 'resource_name' | 'policy_id'>): void;
  /** The most frequent first. */
  all(): Need[];
  /** The users who made the requests of a need, as far as they are remembered. */
  usersOf(need: Need): ReadonlySet<string>;
  /** Requests that found no room. */
  readonly unlisted: () => number;
}

/** The most needs in all and of one user, and the most users of one need. So no user can fill the book with invented names. */
export const NEED_LIMITS = { all: 10_000, perUser: 1_000, users: 1_000 } as const;

type Entry = { -readonly [K in keyof Need]: Need[K] } & { readonly users: Set<string> };

function createNeedBook(): NeedBook {
  const entries = new Map<string, Entry>();
  const perUser = new Map<string, number>();
  let unlisted = 0;
  return {
    add(record, need) {
      const { user_id, id } = record;
      const target_id = record.target_id ?? '';
      const key = JSON.stringify([need.subject, target_id, need.resource_type, need.resource_name, need.policy_id]);
      const known = entries.get(key);
      if (known === undefined) {
        const ofUser = perUser.get(user_id) ?? 0;
        if (entries.size >= NEED_LIMITS.all || ofUser >= NEED_LIMITS.perUser) {
          unlisted++;
          return;
        }
        perUser.set(user_id, ofUser + 1);
        entries.set(key, { ...need, target_id, principal: factsOf(record), count: 1, last: id, users: new Set([user_id]) });
        return;
      }
      known.count++;
      if (known.last < id) known.last = id;
      if (known.users.size < NEED_LIMITS.users) known.users.add(user_id);
    },
    all: () =>
      [...entries.values()].sort((a, b) => b.count - a.count || (a.last < b.last ? 1 : -1)).map(({ users: _, ...need }) => need),
    usersOf: ({ subject, target_id, resource_type, resource_name, policy_id }) =>
      entries.get(JSON.stringify([subject, target_id, resource_type, resource_name, policy_id]))?.users ?? new Set(),
    unlisted: () => unlisted,
  };
}

const NOTHING_SKIPPED: Readonly<Record<Skipped, number>> = {
  ...{ no_target: 0, not_canonical: 0, error: 0, erased: 0, damaged: 0 },
  ...{ target_gone: 0, allowed: 0, allowed_now: 0, not_in_group: 0 },
};

/** Takes a part of the log. Yields between records, so that other work can run. `sets`: the names of lists, by the hash of the set. */
export interface Collector {
  take(page: RecordedPage, sets: ReadonlyMap<string, readonly string[]>): Generator<undefined, void>;
}

export interface DenialParts {
  readonly now: Engine;
  /** The ids of the targets that exist. */
  readonly targets: ReadonlySet<string>;
  /** Whether the suggestion is about this decision. */
  readonly isAskedFor: (record: RecordedDecision) => boolean;
  /** null: the caller does not have the subject. */
  readonly subjectOf: (record: RecordedDecision) => string | null;
}

/** Collects what was denied and still is. */
export function createDeniedNeeds({ now, targets, isAskedFor, subjectOf }: DenialParts) {
  const book = createNeedBook();
  const ask = createAskAgain({ now });
  const skipped = { ...NOTHING_SKIPPED };
  let decisions = 0;

  function skips(record: RecordedDecision): Skipped | null {
    if (record.effect === 'allow') return 'allowed';
    const cause = unreplayable(record);
    if (cause !== null) return cause;
    if (!targets.has(record.target_id ?? '')) return 'target_gone';
    const answer = ask(record).now;
    if (answer.effect === 'allow') return 'allowed_now';
    const subject = subjectOf(record);
    if (subject === null) return 'not_in_group';
    const { resource_type, resource_name } = record;
    book.add(record, { subject, resource_type, resource_name, policy_id: answer.policy?.id ?? null });
    return null;
  }

  return {
    *take({ decisions: records, damaged }: RecordedPage): Generator<undefined, void> {
      decisions += damaged;
      skipped.damaged += damaged;
      for (const record of records) {
        decisions++;
        const why = isAskedFor(record) ? skips(record) : null;
        if (why !== null) skipped[why]++;
        yield;
      }
    },
    book,
    counts: () => ({ decisions, skipped }),
  };
}

export interface UseParts {
  readonly role: string;
  readonly now: Engine;
  /** The engine of the policies without this role in their allows. */
  readonly without: Engine;
  readonly targets: ReadonlySet<string>;
}

/** Collects what callers with the role asked for and may use only because of their role. */
export function createUsedNeeds({ role, now, without, targets }: UseParts) {
  const book = createNeedBook();
  const ask = createAskAgain({ now, without });
  const skipped = { ...NOTHING_SKIPPED };
  const listed = createNeedBook();
  const others = new Map<string, number>();
  const lists = new Set<string>();
  let decisions = 0;

  function skips(record: RecordedDecision): Skipped | null {
    return unreplayable(record) ?? (targets.has(record.target_id ?? '') ? null : 'target_gone');
  }

  function consider(record: RecordedDecision, to: NeedBook): void {
    const answers = ask(record);
    if (answers.now.effect === 'deny') return;
    const { resource_type, resource_name } = record;
    const policy_id = answers.now.policy?.id ?? null;
    if (answers.without.effect === 'deny') to.add(record, { subject: role, resource_type, resource_name, policy_id });
    else if (to === book) others.set(policy_id ?? '', (others.get(policy_id ?? '') ?? 0) + 1);
  }

  /** The names that a list showed to a caller. */
  function* takeList({ decision, resource_type, set_hash }: RecordedList, names: readonly string[]): Generator<undefined, void> {
    if (decision.user_role !== role || skips(decision) !== null) return;
    const key = questionKey(decision, resource_type, set_hash);
    if (lists.has(key)) return;
    if (lists.size >= REMEMBERED) lists.clear();
    lists.add(key);
    for (const resource_name of names) {
      consider({ ...decision, resource_type, resource_name }, listed);
      yield;
    }
  }

  return {
    *take(page: RecordedPage, sets: ReadonlyMap<string, readonly string[]>): Generator<undefined, void> {
      // They may be of the role: nobody knows.
      decisions += page.damaged;
      skipped.damaged += page.damaged;
      for (const record of page.decisions) {
        yield;
        if (record.user_role !== role) continue;
        decisions++;
        const why = skips(record);
        if (why === null) consider(record, book);
        else skipped[why]++;
      }
      for (const list of page.lists) yield* takeList(list, sets.get(list.set_hash) ?? []);
    },
    book,
    /** Names that lists showed only because of the role. */
    listed,
    counts: () => ({ decisions, skipped }),
    /** How many requests are allowed without the role, by the policy that decides now. */
    others: (): ReadonlyMap<string, number> => others,
  };
}

export interface SameParts {
  readonly role: string;
  readonly now: Engine;
  readonly candidate: Engine;
  readonly targets: ReadonlySet<string>;
  /** Whether the request may lose its access. */
  readonly mayLose: (record: RecordedDecision) => boolean;
}

/** Checks that the candidate set decides the recorded requests of the role as the current set does. */
export function createSameCheck({ role, now, candidate, targets, mayLose }: SameParts) {
  const ask = createAskAgain({ now, candidate });
  const counts = { replayed: 0, lost: 0, flipped: 0 };
  return {
    *take({ decisions }: RecordedPage): Generator<undefined, void> {
      for (const record of decisions) {
        yield;
        if (record.user_role !== role || unreplayable(record) !== null || !targets.has(record.target_id ?? '')) continue;
        counts.replayed++;
        const answers = ask(record);
        if (answers.now.effect === answers.candidate.effect) continue;
        if (answers.now.effect === 'allow' && mayLose(record)) counts.lost++;
        else counts.flipped++;
      }
    },
    counts: (): Readonly<typeof counts> => counts,
  };
}
