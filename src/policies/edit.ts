/** Changes to the policy set. Each is checked against the whole set, so two changes together cannot make a refused set. */

import type { Administer, Authority, Caller } from '../auth/caller.ts';
import { has } from '../auth/rights.ts';
import { AppError, type FieldError, invalidRequest } from '../base/errors.ts';
import { etagOf, requireMatch } from '../base/etag.ts';
import { perObject } from '../base/kept.ts';
import { laneSteps } from '../base/turns/lane.ts';
import { inSlices, type RunSteps } from '../base/turns/slices.ts';
import { readOnlyErrors } from '../base/validate.ts';
import { type Change, isInHistory, type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database, Transaction } from '../db/database.ts';
import { createTurns } from '../db/turns.ts';
import type { PatternCheck } from '../engine/compile/pattern.ts';
import type { Policy, PolicySubject, StoredPolicy } from '../engine/compile/policy.ts';
import { problemsOfChange } from '../engine/compile/set-limits.ts';
import { createLimitCheck, type FindNames, type Limits, type Outside } from './limits/limits.ts';
import { ownerStore } from './limits/owner-store.ts';
import { outsideLimits } from './limits/refusal.ts';
import { drifted, ownerOf, requireChanges } from './owners.ts';
import { type PolicyStore, policyStore, type StoredChange } from './policy-store.ts';
import {
  POLICY_LIMITS,
  type PolicyDocument,
  type PolicyUpdate,
  policyJson,
  type SubjectDocument,
  sortedSubjects,
  subjectKey,
} from './schema.ts';
import { Moved, type Settle, sizeOf } from './settle.ts';
import type { ReadStoredSet } from './stored-set.ts';

/** Keeps changes of policies from breaking invariants. */
export interface Guard {
  /** Returns a text that changes with the policies and the invariants, and whether there are invariants. */
  readonly glance: (db: Connection) => Promise<{ readonly glance: string; readonly guarded: boolean }>;
  /**
   * Takes long, so it runs outside of transactions, in a turn of the caller. Returns the state that was checked, and
   * AppError `invariant_broken` or `invariant_undecided` if the changes are refused in it. `widening` refuses them to callers without the
   * right `boundaries:manage`.
   */
  readonly check: (
    changes: readonly StoredChange[],
    caller: Caller,
  ) => Promise<{ readonly glance: string; readonly refusal: AppError | null; readonly widening: AppError | null }>;
  /** Runs a change that throws `Moved`. */
  readonly settle: Settle;
  /** Deletes the exceptions for these deleted policies. */
  readonly forget: (trx: Transaction, deleted: readonly string[]) => Promise<readonly Change[]>;
}

export interface PolicyEditParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly targetExists: (db: Connection, id: string) => Promise<boolean>;
  readonly checkPattern: PatternCheck;
  readonly guard: Guard;
  readonly readStoredSet: ReadStoredSet;
  /** Makes the engine of the set that is about to be stored, so that requests need not wait for it. Rejects if that cannot be done. */
  readonly prepare: (policies: readonly Policy[]) => Promise<unknown>;
  /** The names outside of limits. `caller` null: the search starts at once. */
  readonly findNames: FindNamesFor;
  /** UUIDv7: ids are in order of creation. */
  readonly newId: () => string;
  readonly now: () => number;
}

export type FindNamesFor = (...args: [...Parameters<FindNames>, caller: Caller | null]) => ReturnType<FindNames>;

export interface Edited<T> {
  readonly result: T;
  readonly position: Position;
}

export interface AddedSubject {
  readonly subject: PolicySubject;
  /** false: the subject already existed. */
  readonly added: boolean;
}

/**
 * Each method makes one administrative change, or none if nothing changes. All throw AppError `invalid_request`, `not_found`,
 * `precondition_failed`, `managed_by_files`, `outside_limits` and `retry`, and what `Guard` and `Administer` throw.
 */
export type PolicyEdits = ReturnType<typeof createPolicyEdits>;

/** The result of an edit, computed for the policies of one snapshot. */
export interface EditPlan<T> {
  readonly result: T;
  /** The candidate set, which must be possible to compile; null: the edit adds nothing that could be refused, or the plan has tried it. */
  readonly candidate: readonly Policy[] | null;
  /** What the result shows or changes of the policies: the caller must have the right for each. */
  readonly touches: readonly StoredChange[];
  /** null: nothing changes. */
  readonly apply: ((store: PolicyStore, trx: Transaction, authority: Authority) => Promise<readonly Change[]>) | null;
}

/** An edit that cannot be made. */
export interface RefusedPlan extends Pick<EditPlan<unknown>, 'touches'> {
  readonly candidate: null;
  /** It tells about the policy and its owner, so only a caller who may change the policy gets it. */
  readonly refusal: AppError;
}

export interface EditWork<T, State> {
  /** Returns a short fingerprint of the state: if it is the same, so is the state. */
  glance(db: Connection): Promise<object>;
  read(db: Connection): Promise<State>;
  /**
   * Computes the plan outside of the snapshot, so that others can write meanwhile. The result depends only on the state, and on the history
   * before it. `turnOf`: the caller in whose turn the work runs; null: it starts at once, because a transaction is open for it.
   */
  plan(state: State, turnOf: Caller | null): Promise<EditPlan<T> | RefusedPlan>;
}

export type PolicyEdit = <T, State>(caller: Caller, work: EditWork<T, State>) => Promise<Edited<T>>;

/** Edits and applies share it. */
const storingIn = perObject((_: Database) => createTurns());

/**
 * Returns how to run long steps for a change of this caller. null: in slices at once, because a transaction is open for it. Callers without
 * `managesAll` are many, so they take turns in the lane.
 */
export const stepsOf = (turnOf: Caller | null): RunSteps =>
  turnOf === null || turnOf.managesAll === true ? inSlices : (steps) => laneSteps(turnOf.principal.sub, steps);

/** A caller who may change only policies of owners plans again in the transaction only if that takes less, in milliseconds. */
const QUICK_MS = 100;

type EditorParts = Pick<PolicyEditParts, 'database' | 'administer' | 'readStoredSet' | 'prepare' | 'guard'>;

export function createPolicyEdit(parts: EditorParts): PolicyEdit {
  const { database, administer, guard } = parts;
  const storing = storingIn(database);
  async function attempt<T, State>(
    caller: Caller,
    { glance, read, plan }: EditWork<T, State>,
    calm: (size: number) => Promise<void>,
    isLast: boolean,
  ): Promise<Edited<T>> {
    const look = async (db: Connection) => ({
      position: await readPosition(db),
      glanced: JSON.stringify(await glance(db)),
      state: await read(db),
      policies: (await parts.readStoredSet(db)).policies,
    });
    const { position, glanced, state, policies } = await database.snapshot(look);
    const began = performance.now();
    const early = await plan(state, caller);
    const checked = await guard.check(early.touches, caller);
    let tookMs = performance.now() - began;
    await calm(sizeOf(early.touches));
    const stillHolds = async (db: Connection): Promise<boolean> =>
      JSON.stringify(await glance(db)) === glanced && (await isInHistory(db, position));
    const store = () =>
      administer(caller, ['policies:manage'], async (trx, authority) => {
        caller.signal?.throwIfAborted();
        const holds = await stillHolds(trx);
        await requireRevision(trx, caller);
        const current = await guard.glance(trx);
        // Invariants take too long to check under the lock.
        if (current.guarded && (!holds || current.glance !== checked.glance)) throw new Moved();
        // On SQLite, all requests wait for this transaction.
        if (!holds && !(isLast && (tookMs < QUICK_MS || caller.managesAll === true))) throw new Moved();
        const planned = holds ? early : await plan(await read(trx), null);
        if (!holds && planned.candidate !== null) await tryPolicySet(parts, planned.candidate);
        requireChanges(authority.held, planned.touches, await ownerStore(trx).names());
        if ('refusal' in planned) throw planned.refusal;
        const { result, touches, apply } = planned;
        if (current.guarded) {
          if (checked.widening !== null && !has(authority.held, 'boundaries:manage')) throw checked.widening;
          // The refusal shows other policies, so only a caller who may make the change gets it.
          if (checked.refusal !== null) throw checked.refusal;
        }
        if (apply === null) return { result, changes: [] };
        const deleted = touches.flatMap(({ before, after }) => (before !== null && after === null ? [before.id] : []));
        const forgotten = deleted.length === 0 ? [] : await guard.forget(trx, deleted);
        return { result, changes: [...(await apply(policyStore(trx), trx, authority)), ...forgotten] };
      });
    if ('refusal' in early || early.apply === null) return store();
    // One change at a time: a different change stored in between would make this engine useless, and all requests wait while engines are made.
    return storing(caller.principal.sub, async () => {
      caller.signal?.throwIfAborted();
      if (!isLast && !(await database.snapshot(stillHolds))) throw new Moved();
      if (early.candidate !== null) {
        const trying = performance.now();
        await tryPolicySet(parts, early.candidate);
        tookMs += performance.now() - trying;
      }
      // A set that cannot be compiled must be repairable by deletions.
      else await parts.prepare(setAfter(policies, early.touches)).catch(() => {});
      return store();
    });
  }
  /** Compute everything before taking the lock. Compute it again if the state has changed in the meantime. */
  return (caller, work) => guard.settle(caller, (calm, isLast) => attempt(caller, work, calm, isLast));
}

function setAfter(policies: readonly StoredPolicy[], changes: readonly StoredChange[]): StoredPolicy[] {
  const changed = new Set(changes.map(({ before }) => before?.id));
  return [...policies.filter(({ id }) => !changed.has(id)), ...changes.flatMap(({ after }) => after ?? [])];
}

/** Throws AppError `retry`. */
async function requireRevision(trx: Transaction, { atRevision }: Caller): Promise<void> {
  if (atRevision === undefined || (await readPosition(trx)).revision === atRevision) return;
  throw new AppError('retry', 'The policies changed while the gateway checked this change. Nothing was saved. Try again.');
}

/** Throws AppError `invalid_request` if no engine can be built from the set. */
async function tryPolicySet({ prepare }: Pick<PolicyEditParts, 'prepare'>, candidate: readonly Policy[]): Promise<void> {
  try {
    await prepare(candidate);
  } catch (error) {
    if (error instanceof AppError) throw error;
    throw new AppError('invalid_request', 'The change was not stored: the policies cannot be compiled with it.', {
      cause: error,
    });
  }
}

/** One policy, and the policies around it. */
interface OneState {
  readonly revision: number;
  /** null: no policy has the id. */
  readonly before: StoredPolicy | null;
  /** All policies; empty if the edit does not need them. */
  readonly policies: readonly StoredPolicy[];
  /** Whether the target that the request names exists, if it names one. */
  readonly targetExists: boolean;
  /** The limits of the owner of `before`; null: there are none. */
  readonly limits: Limits | null;
}

/** The conditions of a request. */
export interface EditConditions {
  /** The header `If-Match`. */
  readonly ifMatch?: string | undefined;
  /** Whether the policy may belong to a file. */
  readonly override?: boolean;
}

/** What a request changes in a policy. */
type OneChange<T> =
  | { readonly verb: null; readonly result: T }
  | {
      readonly verb: string;
      readonly after: StoredPolicy | null;
      /** `stored`: `after` as it is stored. */
      readonly resultOf: (stored: StoredPolicy | null) => T;
    };

export function createPolicyEdits(parts: PolicyEditParts) {
  const { newId, now } = parts;
  const edit = createPolicyEdit(parts);
  /** Returns the set with `policy` in it. Throws AppError `invalid_request`, `outside_limits` and `limits_undecided`. */
  async function soundSetWith(
    policy: StoredPolicy,
    { policies, targetExists, limits }: OneState,
    outsideOf: (policy: StoredPolicy, limits: Limits) => Promise<readonly Outside[]>,
    turnOf: Caller | null,
  ): Promise<Policy[]> {
    const errors: FieldError[] = [];
    if (!targetExists) errors.push({ path: 'target_id', message: 'no target has this id' });
    const refusal = policy.resource_pattern === null ? null : parts.checkPattern(policy.resource_pattern);
    if (refusal !== null) errors.push({ path: 'resource_pattern', message: refusal });
    if (errors.length > 0) throw invalidRequest(errors);
    const candidate = [...policies.filter(({ id }) => id !== policy.id), policy];
    const problems = problemsOfChange(candidate, new Set([policy.id]), async () => policies, undefined, stepsOf(turnOf));
    for (const { message, member } of await problems) errors.push({ path: member, message });
    if (errors.length > 0) throw invalidRequest(errors);
    const outside = limits === null ? [] : await outsideOf(policy, limits);
    if (outside.length > 0) throw outsideLimits(outside.map(({ member, ...rest }) => ({ ...rest, path: member })));
    return candidate;
  }

  /** `targetId`: the target that the request names. `adds`: the request may do more than remove. */
  function editOne<T>(
    caller: Caller,
    {
      id,
      targetId = null,
      adds,
      override = false,
    }: {
      readonly id: string | null;
      readonly targetId?: string | null | undefined;
      readonly adds: boolean;
      readonly override?: boolean;
    },
    change: (before: StoredPolicy | null) => OneChange<T>,
  ): Promise<Edited<T>> {
    const targetExists = async (db: Connection): Promise<boolean> => targetId === null || parts.targetExists(db, targetId);
    const check = createLimitCheck();
    const planOne = async (state: OneState, turnOf: Caller | null): Promise<EditPlan<T>> => {
      const { before } = state;
      const changed = change(before);
      if (changed.verb === null) {
        return { result: changed.result, candidate: null, touches: [{ before, after: before }], apply: null };
      }
      const { verb, resultOf } = changed;
      if (before !== null && before.managed_as !== null && !override) throw managedByFiles(before, before.managed_as);
      const outsideOf = async (policy: StoredPolicy, limits: Limits): Promise<readonly Outside[]> =>
        (await check([{ policy, limits }], (outside) => parts.findNames(outside, turnOf)))[0] ?? [];
      const revision = state.revision + 1;
      const after = changed.after && drifted(changed.after, before, revision);
      return {
        result: resultOf(after),
        candidate: after !== null && adds ? await soundSetWith(after, state, outsideOf, turnOf) : null,
        touches: [{ before, after }],
        apply: async (store) => {
          await store.change([{ before, after }], revision);
          return [changeOf(verb, before, after, true)];
        },
      };
    };
    return edit<T, OneState>(caller, {
      glance: async (db) => ({
        revision: (await readPosition(db)).revision,
        targetExists: await targetExists(db),
        owners: await ownerStore(db).glance(),
      }),
      async read(db) {
        const before = id === null ? null : await policyStore(db).find(id);
        const owner = before && ownerOf(before);
        return {
          revision: (await readPosition(db)).revision,
          before,
          policies: adds ? (await parts.readStoredSet(db)).policies : [],
          targetExists: await targetExists(db),
          limits: owner === null ? null : ((await ownerStore(db).find(owner))?.limits ?? null),
        };
      },
      async plan(state, turnOf) {
        const { before } = state;
        try {
          return await planOne(state, turnOf);
        } catch (error) {
          if (before === null || !(error instanceof AppError)) throw error;
          return { candidate: null, touches: [{ before, after: before }], refusal: error };
        }
      },
    });
  }

  const required = (policy: StoredPolicy | null, ifMatch: string | undefined): StoredPolicy => {
    if (!policy) throw new AppError('not_found', 'No policy has this id.');
    requireMatch(ifMatch, policyEtag(policy));
    return policy;
  };

  return {
    create(caller: Caller, document: PolicyDocument): Promise<Edited<StoredPolicy>> {
      const time = now();
      const subjects = document.subjects.map((subject) => ({ ...subject, id: newId() }));
      const policy: StoredPolicy = {
        ...document,
        id: newId(),
        subjects: sortedSubjects(subjects),
        managed_as: null,
        drift_since: null,
        created_at: time,
        updated_at: time,
      };
      return editOne(caller, { id: null, targetId: document.target_id, adds: true }, () => ({
        ...{ verb: 'create', after: policy, resultOf: () => policy },
      }));
    },

    update(
      caller: Caller,
      id: string,
      update: PolicyUpdate,
      { ifMatch, override }: EditConditions = {},
    ): Promise<Edited<StoredPolicy>> {
      const time = now();
      const ids = new Map<string, string>();
      const idOf = (key: string): string => {
        const made = ids.get(key) ?? newId();
        ids.set(key, made);
        return made;
      };
      return editOne(caller, { id, targetId: update.target_id, adds: true, override }, (found) => {
        const before = required(found, ifMatch);
        const after = updated(before, update, idOf, time);
        if (after === before) return { verb: null, result: before };
        return { verb: 'update', after, resultOf: (stored) => stored ?? after };
      });
    },

    delete: (caller: Caller, id: string, { ifMatch, override }: EditConditions = {}): Promise<Edited<null>> =>
      editOne(caller, { id, adds: false, override }, (found) => {
        required(found, ifMatch);
        return { verb: 'delete', after: null, resultOf: () => null };
      }),

    addSubject(
      caller: Caller,
      id: string,
      document: SubjectDocument,
      { ifMatch, override }: EditConditions = {},
    ): Promise<Edited<AddedSubject>> {
      const time = now();
      const subject: PolicySubject = { ...document, id: newId() };
      return editOne<AddedSubject>(caller, { id, adds: true, override }, (found) => {
        const before = required(found, ifMatch);
        const there = before.subjects.find((known) => subjectKey(known) === subjectKey(subject));
        if (there) return { verb: null, result: { subject: there, added: false } };
        if (before.subjects.length >= POLICY_LIMITS.subjects) {
          throw new AppError('limit_reached', `A policy can have at most ${POLICY_LIMITS.subjects} subjects. Remove one first.`);
        }
        const after = { ...before, subjects: sortedSubjects([...before.subjects, subject]), updated_at: time };
        return { verb: 'add_subject', after, resultOf: () => ({ subject, added: true }) };
      });
    },

    removeSubject(
      caller: Caller,
      id: string,
      subjectId: string,
      { ifMatch, override }: EditConditions = {},
    ): Promise<Edited<null>> {
      const time = now();
      return editOne(caller, { id, adds: false, override }, (found) => {
        const before = required(found, ifMatch);
        const subjects = before.subjects.filter((subject) => subject.id !== subjectId);
        if (subjects.length === before.subjects.length)
          throw new AppError('not_found', 'The policy has no subject with this id.');
        return { verb: 'remove_subject', after: { ...before, subjects, updated_at: time }, resultOf: () => null };
      });
    },
  };
}

export function managedByFiles({ name }: StoredPolicy, managedAs: string, override = '?override=true'): AppError {
  const [owner, file] = managedAs.split('/');
  const detail = `The policy ${JSON.stringify(name)} belongs to the file ${file}.yaml of the owner ${owner}, so the change was not stored. Change the file and apply it. In an emergency, repeat the request with ${override}. Plans then show the change as drift until the file is applied.`;
  return new AppError('managed_by_files', detail);
}

export const policyEtag = (policy: StoredPolicy): string => etagOf(policyJson(policy));

/** `outside`: the change is not made by files. */
export function changeOf(verb: string, before: StoredPolicy | null, after: StoredPolicy | null, outside: boolean): Change {
  const owners = new Set([before, after].flatMap((policy) => (policy === null ? [] : (ownerOf(policy) ?? []))));
  const [owner = ''] = owners;
  return {
    owner: owners.size > 1 ? undefined : owner,
    override: outside && owners.size > 0,
    action: `policy.${verb}`,
    object_id: (after ?? before)?.id ?? '',
    before: before && policyJson(before),
    after: after && policyJson(after),
  };
}

/** Returns `before` itself if nothing changes. Throws AppError `invalid_request` if a read-only member was changed. */
function updated(before: StoredPolicy, update: PolicyUpdate, idOf: (subjectKey: string) => string, time: number): StoredPolicy {
  const shown = policyJson(before);
  const errors = readOnlyErrors(['id', 'managed_as', 'drift_since', 'created_at', 'updated_at'], update, shown);
  const there = new Map(before.subjects.map((subject) => [subjectKey(subject), subject]));
  update.subjects?.forEach((subject, index) => {
    if (subject.id !== undefined && subject.id !== there.get(subjectKey(subject))?.id) {
      errors.push({
        path: `subjects.${index}.id`,
        message: 'is not the id of this subject: omit it, or send it as you read it',
      });
    }
  });
  if (errors.length > 0) throw invalidRequest(errors);

  const { id: _, managed_as: __, drift_since: ___, created_at: ____, updated_at: _____, subjects: given, ...members } = update;
  const wanted = given && new Map(given.map((subject) => [subjectKey(subject), subject]));
  const subjects = wanted
    ? sortedSubjects([...wanted].map(([key, subject]) => there.get(key) ?? { ...subject, id: idOf(key) }))
    : before.subjects;
  const after: StoredPolicy = { ...before, ...members, subjects };
  const same = JSON.stringify(policyJson(after)) === JSON.stringify(shown);
  return same ? before : { ...after, updated_at: time };
}
