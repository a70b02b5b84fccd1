/** Changes to the policy set: what they would make of it is checked under the lock of the change, so that no two can add up to something refused. */
import type { Administer, Caller } from '../auth/administer.ts';
import type { Change, Position } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';
import { etagOf, requireMatch } from '../http/etag.ts';
import type { Policy, PolicySubject } from './document.ts';
import { checkPolicySet, type PatternCheck } from './pattern.ts';
import { type PolicyDocument, type PolicyUpdate, policyJson, type SubjectDocument, subjectKey } from './schema.ts';
import { type PolicyStore, policyStore } from './store.ts';

export interface PolicyEditParts {
  readonly administer: Administer;
  readonly targetExists: (trx: Transaction, id: string) => Promise<boolean>;
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
  create(caller: Caller, document: PolicyDocument): Promise<Edited<Policy>>;
  update(caller: Caller, id: string, update: PolicyUpdate, ifMatch: string | undefined): Promise<Edited<Policy>>;
  delete(caller: Caller, id: string, ifMatch: string | undefined): Promise<Edited<null>>;
  addSubject(caller: Caller, id: string, subject: SubjectDocument, ifMatch: string | undefined): Promise<Edited<AddedSubject>>;
  removeSubject(caller: Caller, id: string, subjectId: string, ifMatch: string | undefined): Promise<Edited<null>>;
}

export function createPolicyEdits(parts: PolicyEditParts): PolicyEdits {
  const { administer, newId, now } = parts;

  const requirePolicy = async (store: PolicyStore, id: string, ifMatch: string | undefined): Promise<Policy> => {
    const policy = await store.find(id);
    if (!policy) throw new AppError('not_found', 'No policy has this id.');
    requireMatch(ifMatch, policyEtag(policy));
    return policy;
  };

  async function requireSound(trx: Transaction, policy: Policy, wouldBe: readonly Policy[]): Promise<void> {
    const errors: FieldError[] = [];
    if (policy.target_id !== null && !(await parts.targetExists(trx, policy.target_id))) {
      errors.push({ path: 'target_id', message: 'no target has this id' });
    }
    const refusal = policy.resource_pattern === null ? null : parts.checkPattern(policy.resource_pattern);
    if (refusal !== null) errors.push({ path: 'resource_pattern', message: refusal });
    if (errors.length > 0) throw invalidRequest(errors);
    for (const { message, policyIds } of checkPolicySet(wouldBe)) {
      if (policyIds.includes(policy.id)) errors.push({ path: 'resource_pattern', message });
    }
    if (errors.length > 0) throw invalidRequest(errors);
    try {
      await parts.tryPolicies(wouldBe);
    } catch (error) {
      if (error instanceof AppError) throw error;
      throw new AppError('invalid_request', 'The policies cannot be compiled with this change, so it is not stored.', {
        cause: error,
      });
    }
  }

  async function replace(trx: Transaction, before: Policy, after: Policy, verb: string): Promise<Change[]> {
    const store = policyStore(trx);
    const others = (await store.all()).filter((policy) => policy.id !== after.id);
    await requireSound(trx, after, [...others, after]);
    await store.update(before, after);
    return [changeOf(verb, before, after)];
  }

  return {
    create: (caller, document) =>
      administer(caller, 'admin', async (trx) => {
        const store = policyStore(trx);
        const time = now();
        const subjects = document.subjects.map((subject) => ({ ...subject, id: newId() }));
        const policy: Policy = { ...document, id: newId(), subjects: sorted(subjects), created_at: time, updated_at: time };
        await requireSound(trx, policy, [...(await store.all()), policy]);
        await store.insert(policy);
        return { result: policy, changes: [changeOf('create', null, policy)] };
      }),

    update: (caller, id, update, ifMatch) =>
      administer(caller, 'admin', async (trx) => {
        const before = await requirePolicy(policyStore(trx), id, ifMatch);
        const after = updated(before, update, newId, now());
        if (after === before) return { result: before, changes: [] };
        return { result: after, changes: await replace(trx, before, after, 'update') };
      }),

    delete: (caller, id, ifMatch) =>
      administer(caller, 'admin', async (trx) => {
        const store = policyStore(trx);
        const policy = await requirePolicy(store, id, ifMatch);
        await store.delete(id);
        return { result: null, changes: [changeOf('delete', policy, null)] };
      }),

    addSubject: (caller, id, document, ifMatch) =>
      administer<AddedSubject>(caller, 'admin', async (trx) => {
        const before = await requirePolicy(policyStore(trx), id, ifMatch);
        const there = before.subjects.find((subject) => subjectKey(subject) === subjectKey(document));
        if (there) return { result: { subject: there, added: false }, changes: [] };
        const subject: PolicySubject = { ...document, id: newId() };
        const after = { ...before, subjects: sorted([...before.subjects, subject]), updated_at: now() };
        return { result: { subject, added: true }, changes: await replace(trx, before, after, 'add_subject') };
      }),

    removeSubject: (caller, id, subjectId, ifMatch) =>
      administer(caller, 'admin', async (trx) => {
        const store = policyStore(trx);
        const before = await requirePolicy(store, id, ifMatch);
        const subjects = before.subjects.filter((subject) => subject.id !== subjectId);
        if (subjects.length === before.subjects.length)
          throw new AppError('not_found', 'The policy has no subject with this id.');
        const after = { ...before, subjects, updated_at: now() };
        await store.update(before, after);
        return { result: null, changes: [changeOf('remove_subject', before, after)] };
      }),
  };
}

export const policyEtag = (policy: Policy): string => etagOf(policyJson(policy));

const sorted = (subjects: readonly PolicySubject[]): PolicySubject[] =>
  subjects.toSorted((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));

function changeOf(verb: string, before: Policy | null, after: Policy | null): Change {
  return {
    action: `policy.${verb}`,
    object_type: 'policy',
    object_id: (after ?? before)?.id ?? '',
    before: before && policyJson(before),
    after: after && policyJson(after),
  };
}

/** The very `before` if nothing changes. Throws AppError `invalid_request` where a read-only member is not as it was read. */
function updated(before: Policy, update: PolicyUpdate, newId: () => string, time: number): Policy {
  const errors: FieldError[] = [];
  const shown = policyJson(before);
  for (const path of ['id', 'created_at', 'updated_at'] as const) {
    if (update[path] !== undefined && update[path] !== shown[path]) {
      errors.push({ path, message: 'cannot be changed: leave it out, or give it as it was read' });
    }
  }
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

  const { id: _, created_at: __, updated_at: ___, subjects: given, ...members } = update;
  const wanted = given && new Map(given.map((subject) => [subjectKey(subject), subject]));
  const subjects = wanted
    ? sorted([...wanted].map(([key, subject]) => there.get(key) ?? { ...subject, id: newId() }))
    : before.subjects;
  const after: Policy = { ...before, ...members, subjects };
  const same = JSON.stringify(policyJson(after)) === JSON.stringify(shown);
  return same ? before : { ...after, updated_at: time };
}
