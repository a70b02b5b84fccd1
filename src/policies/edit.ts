/** Changes to the policy set. What they would make of it is known before they are stored, so that no two can add up to something refused. */
import type { Administer, Caller } from '../auth/administer.ts';
import { type Change, type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database, Transaction } from '../db/database.ts';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';
import { etagOf, requireMatch } from '../http/etag.ts';
import { readOnlyErrors } from '../http/validate.ts';
import { inSlices } from '../slices.ts';
import type { Policy, PolicySubject, StoredPolicy } from './document.ts';
import { checkPolicySetInSteps, type PatternCheck } from './pattern.ts';
import {
  POLICY_LIMITS,
  type PolicyDocument,
  type PolicyUpdate,
  policyJson,
  type SubjectDocument,
  sortedSubjects,
  subjectKey,
} from './schema.ts';
import { type PolicyStore, policyStore } from './store.ts';

export interface PolicyEditParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly targetExists: (db: Connection, id: string) => Promise<boolean>;
  readonly checkPattern: PatternCheck;
  /** Compiles the set and loads it into an engine that is thrown away. Rejects if that cannot be done. `by`: whose turn it takes. */
  readonly tryPolicies: (policies: readonly Policy[], by: string) => Promise<unknown>;
  /** UUIDv7: ids are in order of creation. */
  readonly newId: () => string;
  readonly now: () => number;
}

export interface Edited<T> {
  readonly result: T;
  readonly position: Position;
}

export interface AddedSubject {
  readonly subject: PolicySubject;
  /** false: it was there already. */
  readonly added: boolean;
}

/**
 * Each is one administrative change. `ifMatch` is the header of the request. All throw AppError: `invalid_request`,
 * `not_found`, `precondition_failed`, and what `Administer` throws. What changes nothing is no change.
 */
export interface PolicyEdits {
  create(caller: Caller, document: PolicyDocument): Promise<Edited<StoredPolicy>>;
  update(caller: Caller, id: string, update: PolicyUpdate, ifMatch: string | undefined): Promise<Edited<StoredPolicy>>;
  delete(caller: Caller, id: string, ifMatch: string | undefined): Promise<Edited<null>>;
  addSubject(caller: Caller, id: string, subject: SubjectDocument, ifMatch: string | undefined): Promise<Edited<AddedSubject>>;
  removeSubject(caller: Caller, id: string, subjectId: string, ifMatch: string | undefined): Promise<Edited<null>>;
}

/** What an edit comes to, worked out on the policies of one moment. */
export interface EditPlan<T> {
  readonly result: T;
  /** The set as it would be; null where nothing is added that could be refused. */
  readonly wouldBe: readonly Policy[] | null;
  /** null: nothing changes. */
  readonly apply: ((store: PolicyStore, trx: Transaction) => Promise<readonly Change[]>) | null;
}

export interface EditWork<T, State> {
  /** What the state depends on, in short: where that is the same, so is the state. */
  glance(db: Connection): Promise<object>;
  read(db: Connection): Promise<State>;
  /** Without the database, whose connection is free meanwhile. Must give the same for the same state. */
  plan(state: State): Promise<EditPlan<T>>;
}

export type PolicyEdit = <T, State>(caller: Caller, work: EditWork<T, State>) => Promise<Edited<T>>;

export function createPolicyEdit(parts: Pick<PolicyEditParts, 'database' | 'administer' | 'tryPolicies'>): PolicyEdit {
  const { database, administer } = parts;
  /** Everything is worked out before the lock is taken, and once more under it only if something has moved meanwhile. */
  return async (caller, { glance, read, plan }) => {
    const look = async (db: Connection) => ({ glanced: JSON.stringify(await glance(db)), state: await read(db) });
    const work = async (state: Awaited<ReturnType<typeof read>>) => {
      const planned = await plan(state);
      if (planned.wouldBe !== null) await tryPolicySet(parts, planned.wouldBe, caller.principal?.sub ?? '');
      return planned;
    };
    const { glanced, state } = await database.snapshot(look);
    const early = await work(state);
    return administer(caller, 'admin', async (trx) => {
      const holds = JSON.stringify(await glance(trx)) === glanced;
      const { result, apply } = holds ? early : await work(await read(trx));
      return { result, changes: apply ? await apply(policyStore(trx), trx) : [] };
    });
  };
}

/** Throws AppError `invalid_request` where no engine can be made of the set. */
export async function tryPolicySet(
  { tryPolicies }: Pick<PolicyEditParts, 'tryPolicies'>,
  wouldBe: readonly Policy[],
  by: string,
): Promise<void> {
  try {
    await tryPolicies(wouldBe, by);
  } catch (error) {
    if (error instanceof AppError) throw error;
    throw new AppError('invalid_request', 'The policies cannot be compiled with this change, so it is not stored.', {
      cause: error,
    });
  }
}

/** A policy, and those beside it. */
interface OneState {
  /** null: none has the id. */
  readonly before: StoredPolicy | null;
  /** Every policy; empty where nobody looks at them. */
  readonly policies: readonly StoredPolicy[];
  /** Of the target that the request names, if it names one. */
  readonly targetExists: boolean;
}

/** What a request makes of a policy. */
type OneChange<T> =
  | { readonly verb: null; readonly result: T }
  | { readonly verb: string; readonly after: StoredPolicy | null; readonly isSound: boolean; readonly result: T };

export function createPolicyEdits(parts: PolicyEditParts): PolicyEdits {
  const { newId, now } = parts;
  const edit = createPolicyEdit(parts);

  /** The set with `policy` in it. Throws AppError `invalid_request`. */
  async function soundSetWith(policy: StoredPolicy, { policies, targetExists }: OneState): Promise<Policy[]> {
    const errors: FieldError[] = [];
    if (!targetExists) errors.push({ path: 'target_id', message: 'no target has this id' });
    const refusal = policy.resource_pattern === null ? null : parts.checkPattern(policy.resource_pattern);
    if (refusal !== null) errors.push({ path: 'resource_pattern', message: refusal });
    if (errors.length > 0) throw invalidRequest(errors);
    const wouldBe = [...policies.filter(({ id }) => id !== policy.id), policy];
    for (const { message, policyIds } of await inSlices(checkPolicySetInSteps(wouldBe))) {
      if (policyIds.includes(policy.id)) errors.push({ path: 'resource_pattern', message });
    }
    if (errors.length > 0) throw invalidRequest(errors);
    return wouldBe;
  }

  /** `targetId`: the one that the request names. `adds`: it may do more than take away. */
  function editOne<T>(
    caller: Caller,
    {
      id,
      targetId = null,
      adds,
    }: { readonly id: string | null; readonly targetId?: string | null | undefined; readonly adds: boolean },
    change: (before: StoredPolicy | null) => OneChange<T>,
  ): Promise<Edited<T>> {
    const targetExists = async (db: Connection): Promise<boolean> => targetId === null || parts.targetExists(db, targetId);
    return edit<T, OneState>(caller, {
      glance: async (db) => ({ revision: (await readPosition(db)).revision, targetExists: await targetExists(db) }),
      read: async (db) => ({
        before: id === null ? null : await policyStore(db).find(id),
        policies: adds ? await policyStore(db).all() : [],
        targetExists: await targetExists(db),
      }),
      async plan(state) {
        const { before } = state;
        const changed = change(before);
        if (changed.verb === null) return { result: changed.result, wouldBe: null, apply: null };
        const { verb, after, isSound, result } = changed;
        return {
          result,
          wouldBe: after === null || isSound ? null : await soundSetWith(after, state),
          apply: async (store) => {
            await store.change([{ before, after }]);
            return [changeOf(verb, before, after)];
          },
        };
      },
    });
  }

  const required = (policy: StoredPolicy | null, ifMatch: string | undefined): StoredPolicy => {
    if (!policy) throw new AppError('not_found', 'No policy has this id.');
    requireMatch(ifMatch, policyEtag(policy));
    return policy;
  };

  return {
    create(caller, document) {
      const time = now();
      const subjects = document.subjects.map((subject) => ({ ...subject, id: newId() }));
      const policy: StoredPolicy = {
        ...document,
        id: newId(),
        subjects: sortedSubjects(subjects),
        managed_as: null,
        created_at: time,
        updated_at: time,
      };
      return editOne(caller, { id: null, targetId: document.target_id, adds: true }, () => ({
        ...{ verb: 'create', after: policy, isSound: false, result: policy },
      }));
    },

    update(caller, id, update, ifMatch) {
      const time = now();
      const ids = new Map<string, string>();
      const idOf = (key: string): string => {
        const made = ids.get(key) ?? newId();
        ids.set(key, made);
        return made;
      };
      return editOne(caller, { id, targetId: update.target_id, adds: true }, (found) => {
        const before = required(found, ifMatch);
        const after = updated(before, update, idOf, time);
        if (after === before) return { verb: null, result: before };
        return { verb: 'update', after, isSound: false, result: after };
      });
    },

    delete: (caller, id, ifMatch) =>
      editOne(caller, { id, adds: false }, (found) => {
        required(found, ifMatch);
        return { verb: 'delete', after: null, isSound: true, result: null };
      }),

    addSubject(caller, id, document, ifMatch) {
      const time = now();
      const subject: PolicySubject = { ...document, id: newId() };
      return editOne<AddedSubject>(caller, { id, adds: true }, (found) => {
        const before = required(found, ifMatch);
        const there = before.subjects.find((known) => subjectKey(known) === subjectKey(subject));
        if (there) return { verb: null, result: { subject: there, added: false } };
        if (before.subjects.length >= POLICY_LIMITS.subjects) {
          throw new AppError('limit_reached', `A policy has at most ${POLICY_LIMITS.subjects} subjects.`);
        }
        const after = { ...before, subjects: sortedSubjects([...before.subjects, subject]), updated_at: time };
        return { verb: 'add_subject', after, isSound: false, result: { subject, added: true } };
      });
    },

    removeSubject(caller, id, subjectId, ifMatch) {
      const time = now();
      return editOne(caller, { id, adds: false }, (found) => {
        const before = required(found, ifMatch);
        const subjects = before.subjects.filter((subject) => subject.id !== subjectId);
        if (subjects.length === before.subjects.length)
          throw new AppError('not_found', 'The policy has no subject with this id.');
        return { verb: 'remove_subject', after: { ...before, subjects, updated_at: time }, isSound: true, result: null };
      });
    },
  };
}

export const policyEtag = (policy: StoredPolicy): string => etagOf(policyJson(policy));

export function changeOf(verb: string, before: StoredPolicy | null, after: StoredPolicy | null): Change {
  return {
    action: `policy.${verb}`,
    object_type: 'policy',
    object_id: (after ?? before)?.id ?? '',
    before: before && policyJson(before),
    after: after && policyJson(after),
  };
}

/** The very `before` if nothing changes. Throws AppError `invalid_request` where a read-only member is not as it was read. */
function updated(before: StoredPolicy, update: PolicyUpdate, idOf: (subjectKey: string) => string, time: number): StoredPolicy {
  const shown = policyJson(before);
  const errors = readOnlyErrors(['id', 'managed_as', 'created_at', 'updated_at'], update, shown);
  const there = new Map(before.subjects.map((subject) => [subjectKey(subject), subject]));
  update.subjects?.forEach((subject, index) => {
    if (subject.id !== undefined && subject.id !== there.get(subjectKey(subject))?.id) {
      errors.push({
        path: `subjects.${index}.id`,
        message: 'is not the id of this subject: leave it out, or give it as it was read',
      });
    }
  });
  if (errors.length > 0) throw invalidRequest(errors);

  const { id: _, managed_as: _managed, created_at: __, updated_at: ___, subjects: given, ...members } = update;
  const wanted = given && new Map(given.map((subject) => [subjectKey(subject), subject]));
  const subjects = wanted
    ? sortedSubjects([...wanted].map(([key, subject]) => there.get(key) ?? { ...subject, id: idOf(key) }))
    : before.subjects;
  const after: StoredPolicy = { ...before, ...members, subjects };
  const same = JSON.stringify(policyJson(after)) === JSON.stringify(shown);
  return same ? before : { ...after, updated_at: time };
}
