/** Changes to the policy set. What they would make of it is known before they are stored, so that no two can add up to something refused. */
import type { Administer, Caller } from '../auth/administer.ts';
import type { Change, Position } from '../db/changes.ts';
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
  /** Compiles the set and loads it into an engine that is thrown away. Rejects if that cannot be done. */
  readonly tryPolicies: (policies: readonly Policy[]) => Promise<unknown>;
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

/** `plan` must give the same for the same policies. */
export type PolicyEdit = <T>(caller: Caller, plan: (db: Connection) => Promise<EditPlan<T>>) => Promise<Edited<T>>;

export function createPolicyEdit(parts: Pick<PolicyEditParts, 'database' | 'administer' | 'tryPolicies'>): PolicyEdit {
  const { database, administer } = parts;
  const tryOut = (wouldBe: readonly Policy[]): Promise<void> => tryPolicySet(parts, wouldBe);
  /**
   * Everything is checked under the lock, but for the trial: it takes long and needs no database, so it is made before,
   * and again under the lock only if the set has moved meanwhile.
   */
  return async (caller, plan) => {
    const early = await database.snapshot(plan);
    if (early.wouldBe) await tryOut(early.wouldBe);
    return administer(caller, 'admin', async (trx) => {
      const { result, wouldBe, apply } = await plan(trx);
      if (wouldBe && JSON.stringify(wouldBe) !== JSON.stringify(early.wouldBe)) await tryOut(wouldBe);
      return { result, changes: apply ? await apply(policyStore(trx), trx) : [] };
    });
  };
}

/** Throws AppError `invalid_request` where no engine can be made of the set. */
export async function tryPolicySet(
  { tryPolicies }: Pick<PolicyEditParts, 'tryPolicies'>,
  wouldBe: readonly Policy[],
): Promise<void> {
  try {
    await tryPolicies(wouldBe);
  } catch (error) {
    if (error instanceof AppError) throw error;
    throw new AppError('invalid_request', 'The policies cannot be compiled with this change, so it is not stored.', {
      cause: error,
    });
  }
}

export function createPolicyEdits(parts: PolicyEditParts): PolicyEdits {
  const { newId, now } = parts;
  const edit = createPolicyEdit(parts);

  const requirePolicy = async (db: Connection, id: string, ifMatch: string | undefined): Promise<StoredPolicy> => {
    const policy = await policyStore(db).find(id);
    if (!policy) throw new AppError('not_found', 'No policy has this id.');
    requireMatch(ifMatch, policyEtag(policy));
    return policy;
  };

  /** The set with `policy` in it. Throws AppError `invalid_request`. */
  async function soundSetWith(db: Connection, policy: StoredPolicy): Promise<Policy[]> {
    const errors: FieldError[] = [];
    if (policy.target_id !== null && !(await parts.targetExists(db, policy.target_id))) {
      errors.push({ path: 'target_id', message: 'no target has this id' });
    }
    const refusal = policy.resource_pattern === null ? null : parts.checkPattern(policy.resource_pattern);
    if (refusal !== null) errors.push({ path: 'resource_pattern', message: refusal });
    if (errors.length > 0) throw invalidRequest(errors);
    const others = (await policyStore(db).all()).filter(({ id }) => id !== policy.id);
    const wouldBe = [...others, policy];
    for (const { message, policyIds } of await inSlices(checkPolicySetInSteps(wouldBe))) {
      if (policyIds.includes(policy.id)) errors.push({ path: 'resource_pattern', message });
    }
    if (errors.length > 0) throw invalidRequest(errors);
    return wouldBe;
  }

  const replacing = async <T>(
    db: Connection,
    before: StoredPolicy,
    after: StoredPolicy,
    verb: string,
    result: T,
  ): Promise<EditPlan<T>> => ({
    result,
    wouldBe: await soundSetWith(db, after),
    apply: async (store) => {
      await store.update(before, after);
      return [changeOf(verb, before, after)];
    },
  });

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
      return edit(caller, async (db) => ({
        result: policy,
        wouldBe: await soundSetWith(db, policy),
        apply: async (store) => {
          await store.insert(policy);
          return [changeOf('create', null, policy)];
        },
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
      return edit(caller, async (db) => {
        const before = await requirePolicy(db, id, ifMatch);
        const after = updated(before, update, idOf, time);
        if (after === before) return { result: before, wouldBe: null, apply: null };
        return replacing(db, before, after, 'update', after);
      });
    },

    delete: (caller, id, ifMatch) =>
      edit(caller, async (db) => {
        const policy = await requirePolicy(db, id, ifMatch);
        return {
          result: null,
          wouldBe: null,
          apply: async (store) => {
            await store.delete(id);
            return [changeOf('delete', policy, null)];
          },
        };
      }),

    addSubject(caller, id, document, ifMatch) {
      const time = now();
      const subject: PolicySubject = { ...document, id: newId() };
      return edit<AddedSubject>(caller, async (db) => {
        const before = await requirePolicy(db, id, ifMatch);
        const there = before.subjects.find((known) => subjectKey(known) === subjectKey(subject));
        if (there) return { result: { subject: there, added: false }, wouldBe: null, apply: null };
        if (before.subjects.length >= POLICY_LIMITS.subjects) {
          throw new AppError('limit_reached', `A policy has at most ${POLICY_LIMITS.subjects} subjects.`);
        }
        const after = { ...before, subjects: sortedSubjects([...before.subjects, subject]), updated_at: time };
        return replacing(db, before, after, 'add_subject', { subject, added: true });
      });
    },

    removeSubject(caller, id, subjectId, ifMatch) {
      const time = now();
      return edit(caller, async (db) => {
        const before = await requirePolicy(db, id, ifMatch);
        const subjects = before.subjects.filter((subject) => subject.id !== subjectId);
        if (subjects.length === before.subjects.length)
          throw new AppError('not_found', 'The policy has no subject with this id.');
        const after = { ...before, subjects, updated_at: time };
        return {
          result: null,
          wouldBe: null,
          apply: async (store) => {
            await store.update(before, after);
            return [changeOf('remove_subject', before, after)];
          },
        };
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
