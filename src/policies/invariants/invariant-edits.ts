/** Changes of invariants, and the guard that keeps changes of policies from breaking them. */
import type { Administer, Caller } from '../../auth/caller.ts';
import { AppError, type FieldError, invalidRequest } from '../../base/errors.ts';
import { etagOf, requireMatch } from '../../base/etag.ts';
import { readOnlyErrors } from '../../base/validate.ts';
import { type Change, isInHistory, type Position, readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import { type PatternCheck, stateProblemInSteps } from '../../engine/compile/pattern.ts';
import type { Policy } from '../../engine/compile/policy.ts';
import { type Guard, stepsOf } from '../edit.ts';
import { badFiles } from '../files/read-files.ts';
import { policyStore, type StoredChange } from '../policy-store.ts';
import { createSettle, Moved } from '../settle.ts';
import {
  INVARIANT_LIMITS,
  type Invariant,
  type InvariantChange,
  type InvariantDocument,
  type InvariantState,
  invariantJson,
  loosens,
  type readInvariantUpdate,
  widens,
} from './invariant.ts';
import { errorAt, type InvariantPlan, type ParsedInvariantFile, planInvariants } from './invariant-files.ts';
import { invariantStore } from './invariant-store.ts';
import { type BrokenInvariant, refusalOf } from './judge.ts';

/** What is checked: changes of policies with the stored invariants, or invariants with the stored policies. */
export type ToCheck = { readonly changes: readonly StoredChange[] } | { readonly invariants: readonly Invariant[] };

export interface Checked {
  /** The state that was checked, as `glanceOf` returns it. */
  readonly glance: string;
  readonly broken: readonly BrokenInvariant[];
}

/** Runs in a thread, outside of transactions, in a turn of the caller. */
export type CheckInvariants = (check: ToCheck, caller: Caller) => Promise<Checked>;

/** How many characters of JSON all invariants together may have. Each check reads all of them. */
const MOST_LENGTH = 2 * 1024 * 1024;

/** Returns a text that changes with every change of the policies or the invariants. */
export async function glanceOf(db: Connection): Promise<{ readonly glance: string; readonly guarded: boolean }> {
  const { revision } = await readPosition(db);
  const invariants = await invariantStore(db).glance();
  return { glance: JSON.stringify([revision, invariants]), guarded: invariants.length > 0 };
}

export interface GuardParts {
  readonly database: Database;
  readonly check: CheckInvariants;
  /** Resolves when the gateway decides by the stored policies. */
  readonly compiled: () => Promise<unknown>;
  readonly now: () => number;
}

export function createGuard({ database, check, compiled, now }: GuardParts): Guard {
  return {
    settle: createSettle(compiled),
    glance: glanceOf,
    async check(changes, caller) {
      const { invariants, ...found } = await database.snapshot(async (db) => ({
        ...(await glanceOf(db)),
        invariants: await invariantStore(db).all(),
      }));
      const widening = wideningOf(changes, invariants);
      if (!invariants.some(({ enabled }) => enabled) || !changes.some(changesDecisions))
        return { glance: found.glance, refusal: null, widening };
      const { glance, broken } = await check({ changes }, caller);
      if (glance !== found.glance) throw new Moved();
      return { glance, refusal: refusalOf(broken, 'policies'), widening };
    },
    async forget(trx, deleted) {
      const store = invariantStore(trx);
      const isKept = ({ policy }: Invariant['exceptions'][number]): boolean => !deleted.includes(policy);
      const changes = (await store.all())
        .filter(({ exceptions }) => !exceptions.every(isKept))
        .map((before) => changeOf(before, { exceptions: before.exceptions.filter(isKept) }, now()));
      await store.change(changes);
      return changes.map(recordOf);
    },
  };
}

/**
 * Returns AppError `forbidden` if an excepted policy may allow more afterwards: the exception was not made for that. Exceptions that do
 * not count now are included. Otherwise the policy could be widened until its invariant is enabled, or the exception renewed.
 */
function wideningOf(changes: readonly StoredChange[], invariants: readonly Invariant[]): AppError | null {
  const excepted = new Map(invariants.flatMap(({ name, exceptions }) => exceptions.map(({ policy }) => [policy, name])));
  for (const { before, after } of changes) {
    const invariant = excepted.get(before?.id ?? '');
    if (invariant === undefined || before === null || after === null || !widens(before, after)) continue;
    const detail = `The policy ${JSON.stringify(before.name)} has an exception of the invariant ${JSON.stringify(invariant)}, so it needs the right \`boundaries:manage\` to let this policy allow more. Make a second policy, or ask the owner of the invariant.`;
    return new AppError('forbidden', detail);
  }
  return null;
}

/** Whether the change can matter to a decision. */
const changesDecisions = ({ before, after }: StoredChange): boolean => decidedBy(before) !== decidedBy(after);

function decidedBy(policy: Policy | null): string | null {
  if (policy === null || !policy.enabled) return null;
  const { effect, priority, target_id, resource_type, resource_pattern, subjects } = policy;
  const callers = subjects.map(({ subject_type, subject_value }) => [subject_type, subject_value]);
  return JSON.stringify([effect, priority, target_id, resource_type, resource_pattern, callers]);
}

export const invariantEtag = (invariant: Invariant): string => etagOf(invariantJson(invariant));

const changeOf = (before: Invariant, update: Partial<InvariantDocument>, updated_at: number) => ({
  before,
  after: { ...before, ...update, version: before.version + 1, updated_at },
});

const recordOf = ({ before, after }: InvariantChange): Change => ({
  action: `invariant.${before === null ? 'create' : after === null ? 'delete' : 'update'}`,
  object_id: (after ?? before)?.id ?? '',
  before: before && invariantJson(before),
  after: after && invariantJson(after),
});

export interface InvariantEditParts extends Omit<GuardParts, 'compiled'> {
  readonly administer: Administer;
  readonly guard: Pick<Guard, 'settle'>;
  readonly targets: (db: Connection) => Promise<readonly { readonly id: string; readonly name: string }[]>;
  readonly checkPattern: PatternCheck;
  /** Runs in a thread, in a turn of the caller. */
  readonly readFiles: (texts: InvariantApply['files'], caller: Caller) => Promise<ReadonlyMap<string, ParsedInvariantFile>>;
  readonly newId: () => string;
}

/** The result of a change, computed for the state of one snapshot. */
interface Planned<T> {
  readonly result: T;
  readonly changes: readonly InvariantChange[];
  /** Returns where the request has this member of a changed invariant. */
  readonly fieldOf?: (change: InvariantChange, error: FieldError) => FieldError;
}

export interface InvariantApply {
  /** Texts by file name. */
  readonly files: ReadonlyMap<string, string>;
  /** Whether invariants without a file are deleted. */
  readonly prune: boolean;
}

/**
 * All throw AppError `invalid_request`, `invariant_broken`, `invariant_undecided` and `retry`, what `Administer` throws, and those with an
 * id `not_found` and `precondition_failed`. `ifMatch` is the header of the request.
 */
export type InvariantEdits = ReturnType<typeof createInvariantEdits>;

export function createInvariantEdits(parts: InvariantEditParts) {
  const { database, administer, guard, check, checkPattern, newId, now } = parts;

  const targetNames = async (db: Connection) => (await parts.targets(db)).map(({ id, name }) => ({ id, name }));
  const read = async (db: Connection): Promise<InvariantState & { readonly glance: string; readonly position: Position }> => ({
    position: await readPosition(db),
    glance: (await glanceOf(db)).glance,
    invariants: await invariantStore(db).all(),
    policies: await policyStore(db).all(),
    targets: await targetNames(db),
  });

  /** Returns the plan, and the changed invariants that the policies break. Throws `Moved` if the state changed in the meantime. */
  async function judged<T>(caller: Caller, plan: (state: InvariantState) => Planned<T>) {
    const state = await database.snapshot(read);
    const planned = plan(state);
    await stepsOf(caller)(requireSound(state, planned, checkPattern));
    const time = now();
    const invariants = planned.changes.flatMap(({ before, after }) =>
      after === null || (before === null ? !after.enabled : loosens(before, after, time)) ? [] : [after],
    );
    const checked = invariants.length === 0 ? { ...state, broken: [] } : await check({ invariants }, caller);
    if (checked.glance !== state.glance) throw new Moved();
    return { state, planned, broken: checked.broken };
  }

  const change = <T>(caller: Caller, plan: (state: InvariantState) => Planned<T>): Promise<T> =>
    guard.settle(caller, async (calm) => {
      const { state, planned, broken } = await judged(caller, plan);
      const { result, changes } = planned;
      const refusal = refusalOf(broken, 'invariant');
      await calm();
      const done = await administer(caller, ['boundaries:manage'], async (trx) => {
        const isSame = (await glanceOf(trx)).glance === state.glance && (await isInHistory(trx, state.position));
        if (!isSame || JSON.stringify(await targetNames(trx)) !== JSON.stringify(state.targets)) throw new Moved();
        if (refusal !== null) throw refusal;
        await invariantStore(trx).change(changes);
        return { result, changes: changes.map(recordOf) };
      });
      return done.result;
    });

  const required = ({ invariants }: InvariantState, id: string, ifMatch: string | undefined): Invariant => {
    const invariant = invariants.find((one) => one.id === id);
    if (invariant === undefined) throw new AppError('not_found', 'No invariant has this id.');
    requireMatch(ifMatch, invariantEtag(invariant));
    return invariant;
  };

  /** Returns the plan of an apply. Ids stay the same if it runs again. Throws AppError `invalid_request`. */
  async function planning(caller: Caller, { files, prune }: InvariantApply) {
    const parsed: ReadonlyMap<string | null, ParsedInvariantFile> = await parts.readFiles(files, caller);
    const ids = new Map([...files.keys()].map((file) => [file, newId()]));
    const options = { prune, time: now(), idFor: (file: string) => ids.get(file) ?? newId() };
    return (state: InvariantState): Planned<InvariantPlan & InvariantState> => {
      const plan = planInvariants([...parsed.values()], state, options);
      if ('errors' in plan) throw badFiles(plan.errors);
      return {
        ...{ result: { ...plan, ...state }, changes: plan.changes },
        fieldOf(change, { path, message }) {
          const { file = null } = plan.changes.find((one) => one === change) ?? {};
          const read = parsed.get(file);
          return read === undefined ? { path, message } : { ...errorAt(read, path, `${path} ${message}`), path: `files.${file}` };
        },
      };
    };
  }

  return {
    create(caller: Caller, document: InvariantDocument): Promise<Invariant> {
      const time = now();
      const after = { ...document, id: newId(), version: 1, created_at: time, updated_at: time };
      return change(caller, () => ({ result: after, changes: [{ before: null, after }] }));
    },

    update(
      caller: Caller,
      id: string,
      { members, readOnly }: ReturnType<typeof readInvariantUpdate>,
      ifMatch: string | undefined,
    ): Promise<Invariant> {
      const time = now();
      return change(caller, (state) => {
        const before = required(state, id, ifMatch);
        const errors = readOnlyErrors(['id', 'created_at', 'updated_at'], readOnly, invariantJson(before));
        if (errors.length > 0) throw invalidRequest(errors);
        const { after } = changeOf(before, members, time);
        const isSame = invariantEtag({ ...after, updated_at: before.updated_at }) === invariantEtag(before);
        return isSame ? { result: before, changes: [] } : { result: after, changes: [{ before, after }] };
      });
    },

    async delete(caller: Caller, id: string, ifMatch: string | undefined): Promise<void> {
      await change(caller, (state) => ({
        result: null,
        changes: [{ before: required(state, id, ifMatch), after: null }],
      }));
    },

    /** Returns what `apply` would do, and the invariants that would make the gateway refuse it. */
    async plan(caller: Caller, request: InvariantApply) {
      const plan = await planning(caller, request);
      return guard.settle(caller, async () => {
        const { planned, broken } = await judged(caller, plan);
        return { plan: planned.result, broken };
      });
    },

    /** Makes the invariants match the files, in one change. */
    async apply(caller: Caller, request: InvariantApply) {
      return change(caller, await planning(caller, request));
    },
  };
}

function* lengthOf(invariants: readonly Invariant[]): Generator<undefined, number> {
  let length = 0;
  for (const invariant of invariants) {
    length += JSON.stringify(invariant).length;
    yield;
  }
  return length;
}

/** Throws AppError `invalid_request` if changed invariants name what does not exist, or share a name, and `limit_reached`. Pauses in between. */
function* requireSound<T>(
  state: InvariantState,
  { changes, fieldOf = (_, error) => error }: Planned<T>,
  checkPattern: PatternCheck,
): Generator<undefined, void> {
  const ids = (items: readonly { readonly id: string }[]): ReadonlySet<string> => new Set(items.map(({ id }) => id));
  const [targets, policies] = [ids(state.targets), ids(state.policies)];
  const replaced = ids(changes.flatMap(({ before }) => before ?? []));
  const left = state.invariants.filter(({ id }) => !replaced.has(id));
  const brought = changes.flatMap(({ after }) => after ?? []);
  if (left.length + brought.length > INVARIANT_LIMITS.invariants && brought.length > 0) {
    throw new AppError('limit_reached', `There can be at most ${INVARIANT_LIMITS.invariants} invariants. Delete one first.`);
  }
  const before = yield* lengthOf(changes.flatMap(({ before }) => before ?? []));
  const after = yield* lengthOf(brought);
  if (after > before && after + (yield* lengthOf(left)) > MOST_LENGTH)
    throw new AppError(
      'limit_reached',
      `All invariants have more than ${MOST_LENGTH} characters of JSON. Use fewer or shorter exceptions.`,
    );
  const errors: FieldError[] = [];
  for (const change of changes) {
    yield;
    if (change.after === null) continue;
    const { id, name, never, exceptions } = change.after;
    const refuse = (path: string, message: string): number => errors.push(fieldOf(change, { path, message }));
    if ([...left, ...brought].some((other) => other.id !== id && other.name === name))
      refuse('name', 'a different invariant has this name');
    const problem =
      never.resource_pattern === null
        ? null
        : (checkPattern(never.resource_pattern) ?? (yield* stateProblemInSteps(never.resource_pattern)));
    if (problem !== null) refuse('never.resource_pattern', problem);
    for (const [at, some] of [
      ['targets', never.targets ?? []],
      ['except.targets', never.except.targets],
    ] as const) {
      for (const [n, id] of some.entries()) if (!targets.has(id)) refuse(`never.${at}.${n}`, 'no target has this id');
    }
    for (const [n, { policy }] of exceptions.entries()) {
      if (!policies.has(policy)) refuse(`exceptions.${n}.policy`, 'no policy has this id');
    }
  }
  if (errors.length > 0) throw invalidRequest(errors);
}
