/** Counts the recorded decisions that a different policy set would have decided differently. Pure. */
import { hash } from 'node:crypto';
import { type RecordedDecision, type RecordedList, type RecordedPage, textsIn } from '../../audit/search/recorded-store.ts';
import type { Effect, ResourceType } from '../../engine/compile/policy.ts';
import type { Engine, NamedObject, PrincipalFacts } from '../../engine/decision.ts';
import { decideInSteps } from '../../engine/estimate.ts';
import type { PolicyRef } from '../files/test-run.ts';
import type { Answered } from '../questions.ts';

/** Why a recorded decision says nothing about policies. `damaged`: the log was changed, and lacks facts of the decision. */
export type NotReplayed = 'no_target' | 'not_canonical' | 'error' | 'erased' | 'damaged';

export interface Answer extends Omit<Answered, 'policy'> {
  readonly policy: PolicyRef | null;
}

/** A decision that would flip for one user: a call, or a name in a list. `count` says how often it occurred. */
export interface RecordedFlip {
  readonly kind: 'request' | 'listed';
  readonly user_id: string;
  readonly target_id: string;
  /** If this and `resource_name` are null, the request was about the target itself. */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  readonly recorded: Effect;
  /** The answer of the candidate set. */
  readonly would_be: Answer;
  /** The effect in the current set, which may also differ from the recorded one; null: not evaluated. */
  readonly now: Effect | null;
  readonly count: number;
  /** Decision ids. */
  readonly first: string;
  readonly last: string;
}

export interface Counts {
  /** Decisions that were read. `replayed` counts those that could be evaluated again. */
  readonly decisions: number;
  readonly replayed: number;
  readonly not_replayed: Readonly<Record<NotReplayed, number>>;
  /** Denied in the log, allowed by the candidate set. */
  readonly grants: number;
  readonly refuses: number;
  /** The part of these, and of `lists.hides`, that the current set also decides differently from the log. */
  readonly already: number;
  readonly lists: {
    readonly lists: number;
    /** The names that lists showed, and the part of them that the candidate set would hide. */
    readonly names: number;
    readonly hides: number;
    /** Names that the lists left out. They are not recorded, so nothing is known about them. */
    readonly hidden: number;
    /** Names that were listed in lists too long to be recorded completely. */
    readonly cut: number;
  };
  /** Decisions and names that would flip but have no entry in `flips`, because it is full. */
  readonly unlisted: number;
}

export interface TallyState {
  readonly counts: Counts;
  readonly flips: readonly RecordedFlip[];
  /** Keys of the changes whose policies decided, or would decide, a replayed decision. */
  readonly exercised: readonly string[];
}

export interface TallyParts {
  /** The engine of the candidate set. */
  readonly candidate: Engine;
  /** The engine of the current set; null: do not evaluate it. */
  readonly now: Engine | null;
  readonly refOf: (policyId: string) => PolicyRef | null;
  /** The change to which a policy belongs, by the policy's id before or after the change. */
  readonly changed: ReadonlyMap<string, string>;
  /** The maximum number of entries, and of entries for one user, so that no single user can fill the list. */
  readonly maxFlips: { readonly all: number; readonly perUser: number };
}

export type Tally = ReturnType<typeof createTally>;

export const NOTHING_TALLIED: TallyState = {
  counts: {
    ...{ decisions: 0, replayed: 0, grants: 0, refuses: 0, already: 0, unlisted: 0 },
    not_replayed: { no_target: 0, not_canonical: 0, error: 0, erased: 0, damaged: 0 },
    lists: { lists: 0, names: 0, hides: 0, hidden: 0, cut: 0 },
  },
  flips: [],
  exercised: [],
};

/** The number of cached answers, for requests and for names in lists: most repeat an earlier one. */
export const REMEMBERED = 50_000;

/** The number of names of a list that are evaluated without a pause. */
const NAMES_AT_ONCE = 100;

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** The answers to a recorded request, or to a name in a list. */
interface Asked {
  readonly candidate: Answered;
  readonly now: Answered | null;
}

/** Returns a function that asks each engine about a recorded request. */
export function createAskAgain<Engines extends Readonly<Record<string, Engine | null>>>(engines: Engines) {
  type Answers = { readonly [Name in keyof Engines]: Engines[Name] extends Engine ? Answered : Answered | null };
  const known = new Map<string, Answers>();
  return (record: RecordedDecision): Answers => {
    const { resource_type, resource_name } = record;
    const key = questionKey(record, resource_type, resource_name);
    const before = known.get(key);
    if (before !== undefined) return before;
    const [facts, targetId] = [factsOf(record), record.target_id ?? ''];
    const object = resource_type === null || resource_name === null ? null : { resource_type, resource_name };
    const ask = (engine: Engine): Answered =>
      object === null ? engine.decideTarget(facts, targetId) : engine.decide(facts, targetId, object);
    const answers = Object.fromEntries(Object.entries(engines).map(([name, engine]) => [name, engine && ask(engine)])) as Answers;
    if (known.size >= REMEMBERED) known.clear();
    known.set(key, answers);
    return answers;
  };
}

/** Continues from `start`. */
export function createTally({ candidate, now, refOf, changed, maxFlips }: TallyParts, start: TallyState) {
  const counts: Mutable<Counts> = { ...start.counts };
  // Shadows that began with an older version have no count of damaged decisions.
  const not_replayed = { ...NOTHING_TALLIED.counts.not_replayed, ...start.counts.not_replayed };
  const lists = { ...start.counts.lists };
  const flips = new Map(start.flips.map((flip): [string, Mutable<RecordedFlip>] => [flipKey(flip), { ...flip }]));
  const perUser = new Map<string, number>();
  for (const { user_id } of flips.values()) perUser.set(user_id, (perUser.get(user_id) ?? 0) + 1);
  const exercised = new Set(start.exercised);
  const ask = createAskAgain({ candidate, now });
  const listed = new Map<string, readonly Asked[]>();
  let listedNames = 0;

  function exercise(policyId: string | null | undefined): void {
    const key = policyId == null ? undefined : changed.get(policyId);
    if (key !== undefined) exercised.add(key);
  }

  function flip(
    record: RecordedDecision,
    kind: RecordedFlip['kind'],
    object: NamedObject | null,
    was: Effect,
    asked: Asked,
  ): void {
    if (asked.now !== null && asked.now.effect === asked.candidate.effect) counts.already++;
    const { effect, reason, policy } = asked.candidate;
    const found: Mutable<RecordedFlip> = {
      kind,
      user_id: record.user_id,
      target_id: record.target_id ?? '',
      resource_type: object?.resource_type ?? null,
      resource_name: object?.resource_name ?? null,
      recorded: was,
      would_be: { effect, reason, policy: policy === null ? null : refOf(policy.id) },
      now: asked.now?.effect ?? null,
      count: 1,
      first: record.id,
      last: record.id,
    };
    const key = flipKey(found);
    const known = flips.get(key);
    if (known === undefined) {
      const ofUser = perUser.get(record.user_id) ?? 0;
      if (flips.size >= maxFlips.all || ofUser >= maxFlips.perUser) {
        counts.unlisted++;
        return;
      }
      flips.set(key, found);
      perUser.set(record.user_id, ofUser + 1);
      return;
    }
    // Keep the answer of the latest decision: the deciding policy may change over time. Ids from different processes can arrive
    // out of order.
    const later = known.last < record.id;
    flips.set(key, {
      ...(later ? found : known),
      count: known.count + 1,
      first: known.first < record.id ? known.first : record.id,
    });
  }

  function takeDecision(record: RecordedDecision): void {
    counts.decisions++;
    const reason = unreplayable(record);
    if (reason !== null) {
      not_replayed[reason]++;
      return;
    }
    counts.replayed++;
    const { resource_type, resource_name } = record;
    const object = resource_type === null || resource_name === null ? null : { resource_type, resource_name };
    const asked = ask(record);
    exercise(record.policy_id);
    exercise(asked.candidate.policy?.id);
    if (asked.candidate.effect === record.effect) return;
    if (asked.candidate.effect === 'allow') counts.grants++;
    else counts.refuses++;
    flip(record, 'request', object, record.effect, asked);
  }

  function* takeList(list: RecordedList, names: readonly string[]): Generator<undefined, void> {
    const { decision, resource_type, shown, hidden, set_hash } = list;
    lists.lists++;
    lists.hidden += hidden;
    lists.cut += shown - names.length;
    if (unreplayable(decision) !== null) {
      lists.cut += names.length;
      return;
    }
    lists.names += names.length;
    const key = questionKey(decision, resource_type, set_hash);
    let asked = listed.get(key);
    if (asked === undefined) {
      asked = yield* askNames(decision, resource_type, names);
      if (listedNames > REMEMBERED) {
        listed.clear();
        listedNames = 0;
      }
      listed.set(key, asked);
      listedNames += 1 + names.length;
    }
    for (const [i, answer] of asked.entries()) {
      exercise(answer.candidate.policy?.id);
      if (answer.candidate.effect === 'allow') continue;
      lists.hides++;
      flip(decision, 'listed', { resource_type, resource_name: names[i] ?? '' }, 'allow', answer);
      if (i % NAMES_AT_ONCE === 0) yield;
    }
  }

  function* askNames(
    decision: RecordedDecision,
    resource_type: ResourceType,
    names: readonly string[],
  ): Generator<undefined, Asked[]> {
    const asked: Asked[] = [];
    for (let at = 0; at < names.length; at += NAMES_AT_ONCE) {
      const objects = names.slice(at, at + NAMES_AT_ONCE).map((resource_name) => ({ resource_type, resource_name }));
      const ask = (engine: Engine): Generator<undefined, Answered[]> =>
        decideInSteps(engine, factsOf(decision), decision.target_id ?? '', objects);
      const answers = now && (yield* ask(now));
      for (const [i, answer] of (yield* ask(candidate)).entries()) asked.push({ candidate: answer, now: answers?.[i] ?? null });
      yield;
    }
    return asked;
  }

  return {
    /** `sets`: the names of each list's set. Yields between records, so that the caller can let other work run. */
    *take(
      { decisions, lists: shown, damaged }: RecordedPage,
      sets: ReadonlyMap<string, readonly string[]>,
    ): Generator<undefined, void> {
      counts.decisions += damaged;
      not_replayed.damaged += damaged;
      for (const record of decisions) {
        takeDecision(record);
        yield;
      }
      for (const list of shown) {
        yield* takeList(list, sets.get(list.set_hash) ?? []);
        yield;
      }
    },
    state: (): TallyState => ({
      counts: { ...counts, not_replayed: { ...not_replayed }, lists: { ...lists } },
      flips: [...flips.values()],
      exercised: [...exercised],
    }),
  };
}

/** Returns null if the decision can be evaluated again. */
export function unreplayable({ reason, target_id, user_email, user_groups }: RecordedDecision): NotReplayed | null {
  switch (reason) {
    case 'no_target':
    case 'not_canonical':
    case 'error':
      return reason;
    case 'matched':
    case 'default':
      if (target_id === null) return 'no_target';
      if (user_email === '') return 'erased';
      return textsIn(user_groups) === null ? 'damaged' : null;
    default:
      // The gateway never writes another reason, but the log may have been changed.
      return 'damaged';
  }
}

export const factsOf = ({ user_id, user_role, user_groups }: RecordedDecision): PrincipalFacts => ({
  sub: user_id,
  role: user_role,
  groups: textsIn(user_groups) ?? [],
});

/** A key of fixed length, however long the texts from callers are. */
export const questionKey = (
  { user_id, user_role, user_groups, target_id }: RecordedDecision,
  ...of: readonly (string | null)[]
) => hash('sha256', JSON.stringify([user_id, user_role, user_groups, target_id, ...of]), 'base64');

const flipKey = ({ kind, user_id, target_id, resource_type, resource_name, recorded }: RecordedFlip): string =>
  JSON.stringify([kind, user_id, target_id, resource_type, resource_name, recorded]);
