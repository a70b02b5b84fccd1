/** Plans applies of files and rollbacks on a policy set that was read before. A plan is either refused here or can be applied. */
import { hash } from 'node:crypto';
import { AppError, type FieldError, invalidRequest } from '../../base/errors.ts';
import { pause, type RunSteps } from '../../base/turns/slices.ts';
import type { Position } from '../../db/changes.ts';
import { inReadingOrder } from '../../engine/compile/compile.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { managedByFiles } from '../edit.ts';
import { isOf } from '../files/file.ts';
import { badFiles, fieldOf, readEach, tooMany } from '../files/read-files.ts';
import { describePolicyFileError, errorAt, type ParsedPolicyFile, type PolicyFileError, parsePolicyFile } from '../files/yaml.ts';
import type { OwnerHistory } from '../history.ts';
import { createLimitCheck, type FindNames, type LimitCheck, type LimitsByOwner, type Outside } from '../limits/limits.ts';
import { type OutsideField, outsideLimits } from '../limits/refusal.ts';
import { drifted, ownerOf } from '../owners.ts';
import { prioritiesFor } from './move.ts';
import { changesBetween, type PlanRequest, type PolicyChange, type PolicyPlan, planFilesInSteps, withChanges } from './plan.ts';
import { ACCEPTED, type CheckSet } from './set-check.ts';

export interface TargetName {
  readonly id: string;
  readonly name: string;
}

/** The policies of one snapshot. */
export interface SetState {
  readonly position: Position;
  readonly policies: readonly StoredPolicy[];
  readonly targets: readonly TargetName[];
  readonly limits: LimitsByOwner;
  /** What changed policies of the owner whose files are planned. */
  readonly history: OwnerHistory;
}

export interface Expected {
  /** Refuse if the policies of the owner changed after this revision, or with `adopt` any policy; null: accept any revision. */
  readonly expectedRevision: number | null;
  /** Refuse if this is no longer the `targetsHash` of the files; null: accept any. */
  readonly expectedTargets: string | null;
  /**
   * Refuse if any policy changed after this revision, or if one of these targets was deleted or renamed: files name their targets, and the
   * revision says nothing about targets.
   */
  readonly tested?: { readonly position: Position; readonly targets: readonly TargetName[] };
}

/** Accepts any state. */
export const ANY: Expected = { expectedRevision: null, expectedTargets: null };

export interface PlannedFiles extends PolicyPlan {
  /** The revision to expect, so that exactly this plan is applied. */
  readonly ownerRevision: number;
  /**
   * Changes if a name in the files would mean a different target: revisions say nothing about targets. 16 hexadecimal digits are
   * enough, because the gateway makes the ids.
   */
  readonly targetsHash: string;
}

export interface PlanningParts {
  /** Returns a UUIDv7: ids sort in the order of creation. */
  readonly newId: () => string;
  readonly now: () => number;
}

/** Values that stay the same if the work of a request is repeated: ids, the time, and what is outside the limits of owners, which takes long. */
export interface Made {
  readonly idFor: (what: string) => string;
  readonly time: number;
  readonly outsideOf: LimitCheck;
}

export interface PlanParts extends Made {
  readonly run: RunSteps;
  readonly checkSet: CheckSet;
  readonly findNames: FindNames;
}

export function madeForRequest({ newId, now }: PlanningParts): Made {
  const ids = new Map<string, string>();
  return {
    time: now(),
    outsideOf: createLimitCheck(),
    idFor(what) {
      const id = ids.get(what) ?? newId();
      ids.set(what, id);
      return id;
    },
  };
}

/** Throws AppError `invalid_request` and `outside_limits` with the positions of the errors in files, and `precondition_failed`. */
export async function planOn(state: SetState, request: PlanRequest & Expected, parts: PlanParts): Promise<PlannedFiles> {
  const { position, history } = state;
  // An adoption changes policies without an owner.
  const ownerRevision = request.adopt ? position.revision : history.revision;
  const targetsHash = targetsHashOf(request.files, state.targets);
  requireExpected(state, { ownerRevision, targetsHash }, request);
  const plan = await parts.run(planFilesInSteps(request, { ...state, ...parts }));
  if ('errors' in plan) throw badFiles(plan.errors);
  await check(plan, request.files, state, parts);
  return { ...plan, ownerRevision, targetsHash };
}

function targetsHashOf(files: PlanRequest['files'], targets: readonly TargetName[]): string {
  const named = new Set([...files.values()].map(({ policy }) => policy.target));
  const meant = targets.filter(({ name }) => named.has(name)).map(({ name, id }) => [name, id] as const);
  const sorted = meant.sort(([a], [b]) => (a < b ? -1 : 1));
  return hash('sha256', JSON.stringify(sorted), 'hex').slice(0, 16);
}

/** Whether the error says that files can no longer be applied, because policies, targets or limits have changed. */
export const cannotBeApplied = (error: unknown): error is AppError =>
  error instanceof AppError && ['invalid_request', 'outside_limits', 'limits_undecided'].includes(error.code);

/** Checks everything that an edit of one policy checks. Each error has the position in its file. */
async function check(
  { candidate, changes }: PolicyPlan,
  files: PlanRequest['files'],
  state: SetState,
  parts: PlanParts,
): Promise<void> {
  const brought = new Map<string, ParsedPolicyFile>();
  for (const { file, after } of changes) {
    await pause();
    const parsed = files.get(file ?? '');
    if (after === null || parsed === undefined) continue;
    brought.set(after.id, parsed);
  }
  const { refusals, problems } =
    brought.size === 0
      ? ACCEPTED
      : await parts.checkSet(candidate, { ids: new Set(brought.keys()), wereStored: false }, async () => state.policies);
  const errors: PolicyFileError[] = [];
  for (const [id, parsed] of brought) {
    await pause();
    const refusal = refusals.get(id);
    if (refusal !== undefined) errors.push(errorAt(parsed, 'resource_pattern', `is refused. ${refusal}`));
  }
  for (const { message, member, policyId } of problems) {
    const parsed = brought.get(policyId);
    if (parsed !== undefined) errors.push(errorAt(parsed, member, `exceeds a limit of the policy set. ${message}`));
  }
  if (errors.length > 0) throw badFiles(errors);
  const outside = await outsideEach(changes, state, parts, ({ member, message, undecided }, { id }) => {
    const parsed = brought.get(id);
    const key = member === 'target_id' ? 'target' : member;
    return parsed === undefined ? [] : [{ ...fieldOf(errorAt(parsed, key, message)), undecided }];
  });
  if (outside.length > 0) throw outsideLimits(outside, (field) => describePolicyFileError(field as PolicyFileError));
}

/** Returns an error for each member of the changed policies that is not within the limits of its owner. */
async function outsideEach(
  changes: readonly PolicyChange[],
  { limits, targets }: SetState,
  { outsideOf, findNames }: Omit<PlanParts, 'checkSet'>,
  errorsOf: (outside: Outside, policy: StoredPolicy) => readonly OutsideField[],
): Promise<OutsideField[]> {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const limited = changes.flatMap(({ after: policy }) => {
    const its = policy === null ? undefined : limits.get(ownerOf(policy) ?? '');
    return policy === null || its === undefined ? [] : [{ policy, limits: its }];
  });
  const found = await outsideOf(limited, findNames, (id) => names.get(id) ?? id);
  const errors: OutsideField[] = [];
  for (const [at, { policy }] of limited.entries()) {
    await pause();
    errors.push(...(found[at] ?? []).flatMap((outside) => errorsOf(outside, policy)));
  }
  return errors;
}

export interface RollbackRequest {
  readonly revision: number;
  /** Roll back only the policies of this owner; null: every policy. */
  readonly owner: string | null;
  readonly expectedRevision: number | null;
}

/** A plan that files do not make. */
export interface SetPlan {
  readonly changes: readonly PolicyChange[];
  readonly candidate: readonly StoredPolicy[];
}

/** `old`: the set at the revision. It may be refused now, because targets, or limits of patterns or owners, have changed since. Throws like `planOn`. */
export async function planRollback(
  state: SetState,
  old: readonly StoredPolicy[],
  request: RollbackRequest,
  parts: PlanParts,
): Promise<SetPlan> {
  const { policies, position } = state;
  requireRevision(position, request.expectedRevision);
  const now = new Map(policies.map((policy) => [policy.id, policy]));
  const candidate = (request.owner === null ? old : ofOwnerAsThen(policies, old, request.owner)).map((policy) => ({
    ...policy,
    // A rollback ends no drift.
    drift_since: now.get(policy.id)?.drift_since ?? null,
  }));
  const changes = changesBetween(policies, candidate).map((change) => ({
    ...change,
    after: change.after && drifted({ ...change.after, updated_at: parts.time }, change.before, position.revision + 1),
  }));
  const known = new Set(state.targets.map(({ id }) => id));
  const brought = new Set(changes.flatMap(({ after }) => after?.id ?? []));
  const { refusals, problems } =
    brought.size === 0 ? ACCEPTED : await parts.checkSet(candidate, { ids: brought, wereStored: true }, async () => policies);
  const errors: FieldError[] = [];
  for (const { after } of changes) {
    if (after === null) continue;
    const called = calledIn(after);
    if (request.owner !== null && after.managed_as !== null && !isOf(after.managed_as, request.owner)) {
      // Refuse: the other owner may have a file of this name by now, and would not notice the policy.
      const [other] = after.managed_as.split('/');
      errors.push({
        path: 'owner',
        message: `${called} belonged to owner ${other} at that revision: only a rollback of all owners restores it`,
      });
    }
    if (after.target_id !== null && !known.has(after.target_id)) {
      errors.push({ path: 'revision', message: `${called} names a target that no longer exists (${after.target_id})` });
    }
    const refusal = refusals.get(after.id);
    if (refusal !== undefined) errors.push({ path: 'revision', message: `the pattern of ${called} is refused. ${refusal}` });
  }
  for (const { message } of problems) errors.push({ path: 'revision', message });
  if (errors.length > 0) throw tooMany(errors, ({ message }) => message);
  const outside = await outsideEach(changes, state, parts, ({ member, message, undecided }, policy) => [
    { path: 'revision', message: `${member} of ${calledIn(policy)} ${message}`, undecided },
  ]);
  if (outside.length > 0) throw outsideLimits(outside, ({ message }) => message);
  return { changes, candidate };
}

export interface MoveRequest {
  readonly policyId: string;
  /** Counts from 1. */
  readonly position: number;
  /** Whether policies of files may be changed. */
  readonly override: boolean;
  readonly expectedRevision: number | null;
}

/** Moves a policy in the order of evaluation. Throws AppError `invalid_request`, `not_found`, `managed_by_files`, `precondition_failed` and what limits throw. */
export async function planMove(state: SetState, request: MoveRequest, parts: Omit<PlanParts, 'checkSet'>): Promise<SetPlan> {
  const { policies, position } = state;
  requireRevision(position, request.expectedRevision);
  const order = policies.toSorted(inReadingOrder);
  const moved = order.find(({ id }) => id === request.policyId);
  if (moved === undefined) throw new AppError('not_found', 'No policy has this id.');
  if (request.position > order.length) {
    throw invalidRequest([{ path: 'position', message: `must be at most ${order.length}, the number of policies` }]);
  }
  const priorities = prioritiesFor(order, moved, request.position);
  const changes = order.flatMap((before): PolicyChange[] => {
    const priority = priorities.get(before.id);
    if (priority === undefined) return [];
    if (before.managed_as !== null && !request.override) throw managedByFiles(before, before.managed_as, '`override`');
    const after = drifted({ ...before, priority, updated_at: parts.time }, before, position.revision + 1);
    return [{ action: 'update', file: null, before, after }];
  });
  const outside = await outsideEach(changes, state, parts, ({ member, message, undecided }, policy) => [
    { path: 'position', message: `${member} of ${calledIn(policy)} ${message}`, undecided },
  ]);
  if (outside.length > 0) throw outsideLimits(outside, ({ message }) => message);
  return { changes, candidate: withChanges(policies, changes) };
}

const calledIn = ({ name, id }: StoredPolicy): string => `policy ${JSON.stringify(name)} (${id})`;

/**
 * Returns the policies of `now`, with some of `then` restored: those that the owner has now, and those that the owner had then
 * and no other owner has now.
 */
function ofOwnerAsThen(now: readonly StoredPolicy[], then: readonly StoredPolicy[], owner: string): StoredPolicy[] {
  const owners = new Map(now.map((policy) => [policy.id, policy.managed_as]));
  const goesBack = (policy: StoredPolicy): boolean => {
    const current = owners.get(policy.id) ?? null;
    return isOf(current, owner) || (current === null && isOf(policy.managed_as, owner));
  };
  const wasOwners = new Set(then.filter(goesBack).map(({ id }) => id));
  const stays = now.filter((policy) => !wasOwners.has(policy.id) && !isOf(policy.managed_as, owner));
  return [...stays, ...then.filter(({ id }) => wasOwners.has(id))].sort((a, b) => (a.id < b.id ? -1 : 1));
}

export const changed = (what: string): AppError =>
  new AppError('precondition_failed', `${what} Review the policies again, then repeat the request.`);

/** Throws AppError `precondition_failed`. */
function requireRevision({ revision }: Position, expected: number | null): void {
  if (expected !== null && expected !== revision) throw changed(`The policies are at revision ${revision}, not ${expected}.`);
}

/** Throws AppError `precondition_failed`. */
function requireExpected(
  { position: { revision }, targets }: SetState,
  { ownerRevision, targetsHash }: Pick<PlannedFiles, 'ownerRevision' | 'targetsHash'>,
  { owner, adopt, expectedRevision, expectedTargets, tested }: Pick<PlanRequest, 'owner' | 'adopt'> & Expected,
): void {
  if (expectedRevision !== null && expectedRevision > revision) {
    throw changed(`Revision ${expectedRevision} does not exist: the newest is ${revision}.`);
  }
  if (expectedRevision !== null && expectedRevision < ownerRevision) {
    const whose = adopt ? 'The policies' : `The policies of the owner ${owner}`;
    throw changed(`${whose} changed at revision ${ownerRevision}, so they are no longer those of revision ${expectedRevision}.`);
  }
  if (expectedTargets !== null && expectedTargets !== targetsHash) {
    throw changed('A target that the files name was created, renamed or deleted, so the files no longer mean the same targets.');
  }
  if (tested === undefined) return;
  if (tested.position.revision !== revision) {
    throw changed(`While the tests ran, the policies changed from revision ${tested.position.revision} to ${revision}.`);
  }
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const moved = tested.targets.find(({ id, name }) => names.get(id) !== name);
  if (moved !== undefined) throw changed(`The target ${moved.name} was renamed or deleted in the meantime.`);
}

/** Throws AppError `invalid_request` with the positions of the errors. `texts`: texts by file name. */
export const readFiles = (texts: ReadonlyMap<string, string>): Promise<Map<string, ParsedPolicyFile>> =>
  readEach(texts, parsePolicyFile);
