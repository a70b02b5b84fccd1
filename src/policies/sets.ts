/** The policy set as a whole: as files, and back to an earlier revision. Each apply and each rollback is one administrative change. */
import type { Caller } from '../auth/administer.ts';
import { type Change, type Position, readPosition } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { AppError, type FieldError } from '../errors.ts';
import { createPause, inSlices } from '../slices.ts';
import type { StoredPolicy } from './document.ts';
import { changeOf, createPolicyEdit, type Edited, type EditPlan, type PolicyEditParts, tryPolicySet } from './edit.ts';
import { FILE_NAME, FILE_NAME_RULE, fileNames, fileOf } from './files.ts';
import { policiesAt } from './history.ts';
import { checkPolicySetInSteps } from './pattern.ts';
import { changesBetween, type PlanRequest, type PolicyChange, type PolicyPlan, planFilesInSteps } from './plan.ts';
import { policyStore } from './store.ts';
import {
  describePolicyFileError,
  formatPolicyFile,
  type ParsedPolicyFile,
  type PolicyFileError,
  parsePolicyFile,
} from './yaml.ts';

export interface PolicySetParts extends Omit<PolicyEditParts, 'targetExists'> {
  readonly targets: (db: Connection) => Promise<readonly TargetName[]>;
}

export interface TargetName {
  readonly id: string;
  readonly name: string;
}

export interface ApplyRequest extends Omit<PlanRequest, 'files'> {
  /** Texts by file name. */
  readonly files: ReadonlyMap<string, string>;
  /** Refused where the set is at another revision; null: whatever it is at. */
  readonly expectedRevision: number | null;
  /** Refused where one of these is gone or called otherwise: the revision does not move with targets, and files name them. */
  readonly expectedTargets?: readonly TargetName[];
}

export interface Planned<P> {
  readonly plan: P;
  /** What the targets are called that policies name. */
  readonly targets: readonly TargetName[];
}

/** May run several times. Rejects where the policies must not be applied. */
export type Alongside = (trx: Transaction) => Promise<readonly Change[]>;

export type RollbackPlan = Pick<PolicyPlan, 'changes'>;

/**
 * All throw AppError: `invalid_request` with the places of mistakes in files, `precondition_failed` where the set is not at the
 * expected revision, and `apply` and `rollback` what `Administer` throws. What changes nothing is no change.
 */
export interface PolicySets {
  /** The files of one owner, policies of nobody among them, by name. */
  export(owner: string): Promise<{ files: Map<string, string>; position: Position }>;
  /** What `apply` would do. What it would refuse is refused. */
  plan(request: ApplyRequest): Promise<Planned<PolicyPlan> & { readonly position: Position }>;
  /** `alongside`: made in the same transaction, also where the policies say so already. */
  apply(caller: Caller, request: ApplyRequest, alongside?: Alongside): Promise<Edited<Planned<PolicyPlan>>>;
  /** Makes the set what it was at `revision`: ids and creation times as they were. */
  rollback(caller: Caller, revision: number, expectedRevision: number | null): Promise<Edited<Planned<RollbackPlan>>>;
}

/** More would tell no more. */
const ERRORS_NAMED = 200;
const ERRORS_IN_DETAIL = 10;

export function createPolicySets(parts: PolicySetParts): PolicySets {
  const { database, now } = parts;
  const edit = createPolicyEdit(parts);

  /** The same ids each time that the work of one request is done over. */
  function idsOfRequest(): (what: string) => string {
    const ids = new Map<string, string>();
    return (what) => {
      const id = ids.get(what) ?? parts.newId();
      ids.set(what, id);
      return id;
    };
  }

  /** A request is planned twice, the second time under the lock: its patterns, which take long, are looked at once. */
  function refusalsOfRequest(): (policy: StoredPolicy) => Promise<string | null> {
    const known = new Map<string, string | null>();
    const pause = createPause();
    return async ({ resource_pattern: pattern }) => {
      if (pattern === null) return null;
      const before = known.get(pattern);
      if (before !== undefined) return before;
      await pause();
      const refusal = parts.checkPattern(pattern);
      known.set(pattern, refusal);
      return refusal;
    };
  }

  /** Everything that an edit of one policy is checked for, at the place in the file that brings it. */
  async function check(
    { wouldBe, changes }: PolicyPlan,
    files: PlanRequest['files'],
    refusalOf: (policy: StoredPolicy) => Promise<string | null>,
  ): Promise<void> {
    const errors: PolicyFileError[] = [];
    const brought = new Map<string, ParsedPolicyFile>();
    for (const { file, after } of changes) {
      const parsed = files.get(file ?? '');
      if (after === null || parsed === undefined) continue;
      brought.set(after.id, parsed);
      const refusal = await refusalOf(after);
      if (refusal !== null) errors.push(parsed.errorAt('resource_pattern', `is refused. ${refusal}`));
    }
    if (errors.length === 0) {
      for (const { message, policyIds } of await inSlices(checkPolicySetInSteps(wouldBe))) {
        const at = policyIds.map((id) => brought.get(id)).find((parsed) => parsed !== undefined);
        if (at !== undefined) errors.push(at.errorAt('resource_pattern', `is one too many. ${message}`));
      }
    }
    if (errors.length > 0) throw badFiles(errors);
  }

  const madeForRequest = () => ({ idFor: idsOfRequest(), time: now(), refusalOf: refusalsOfRequest() });

  async function planIn(
    db: Connection,
    request: PlanRequest & Pick<ApplyRequest, 'expectedRevision' | 'expectedTargets'>,
    made: ReturnType<typeof madeForRequest>,
  ): Promise<Planned<PolicyPlan>> {
    await requireRevisionNow(db, request.expectedRevision);
    const targets = await parts.targets(db);
    requireTargets(targets, request.expectedTargets ?? []);
    const context = { policies: await policyStore(db).all(), targets, ...made };
    const plan = await inSlices(planFilesInSteps(request, context));
    if ('errors' in plan) throw badFiles(plan.errors);
    await check(plan, request.files, made.refusalOf);
    return { plan, targets };
  }

  return {
    async export(owner) {
      const { position, policies, targets } = await database.snapshot(async (db) => ({
        position: await readPosition(db),
        policies: await policyStore(db).all(),
        targets: await parts.targets(db),
      }));
      const names = new Map(targets.map(({ id, name }) => [id, name]));
      const files = fileNames(policies, owner);
      const texts: [string, string][] = [];
      const pause = createPause();
      for (const policy of policies) {
        await pause();
        const file = files.get(policy.id);
        if (file !== undefined) texts.push([file, formatPolicyFile(fileOf(policy, (id) => names.get(id)))]);
      }
      return { files: new Map(texts.sort(([a], [b]) => (a < b ? -1 : 1))), position };
    },

    async plan(request) {
      const files = await readFiles(request.files);
      const made = madeForRequest();
      const planned = await database.snapshot(async (db) => ({
        position: await readPosition(db),
        ...(await planIn(db, { ...request, files }, made)),
      }));
      const { wouldBe, changes } = planned.plan;
      if (changes.some(({ after }) => after !== null)) await tryPolicySet(parts, wouldBe);
      return planned;
    },

    async apply(caller, request, alongside = async () => []) {
      const files = await readFiles(request.files);
      const made = madeForRequest();
      return edit(caller, async (db) => {
        const result = await planIn(db, { ...request, files }, made);
        const planned = carryingOut(result, result.plan.changes, result.plan.wouldBe);
        return {
          ...planned,
          apply: async (store, trx) => [...(await alongside(trx)), ...((await planned.apply?.(store, trx)) ?? [])],
        };
      });
    },

    rollback(caller, revision, expectedRevision) {
      const time = now();
      const refusalOf = refusalsOfRequest();
      const why = caller.reason ?? `rollback to revision ${revision}`;
      return edit({ ...caller, reason: why }, async (db) => {
        await requireRevisionNow(db, expectedRevision);
        const wouldBe = await policiesAt(db, revision);
        const targets = await parts.targets(db);
        const changes = changesBetween(await policyStore(db).all(), wouldBe);
        await checkOld(wouldBe, changes, targets, refusalOf);
        const timed = changes.map((change) => ({ ...change, after: change.after && { ...change.after, updated_at: time } }));
        return carryingOut({ plan: { changes: timed }, targets }, timed, wouldBe);
      });
    },
  };

  /** What has been taken once may not be any more: targets go, and limits are lowered. */
  async function checkOld(
    wouldBe: readonly StoredPolicy[],
    changes: readonly PolicyChange[],
    targets: readonly TargetName[],
    refusalOf: (policy: StoredPolicy) => Promise<string | null>,
  ): Promise<void> {
    const known = new Set(targets.map(({ id }) => id));
    const errors: FieldError[] = [];
    for (const { after } of changes) {
      if (after === null) continue;
      const called = `policy ${JSON.stringify(after.name)} (${after.id})`;
      if (after.target_id !== null && !known.has(after.target_id)) {
        errors.push({ path: 'revision', message: `${called} names a target that is gone (${after.target_id})` });
      }
      const refusal = await refusalOf(after);
      if (refusal !== null) errors.push({ path: 'revision', message: `the pattern of ${called} is refused. ${refusal}` });
    }
    for (const { message } of await inSlices(checkPolicySetInSteps(wouldBe))) errors.push({ path: 'revision', message });
    if (errors.length > 0) throw tooMany(errors, ({ message }) => message);
  }
}

function carryingOut<T>(result: T, changes: readonly PolicyChange[], wouldBe: readonly StoredPolicy[]): EditPlan<T> {
  return {
    result,
    // A set that cannot be built must be possible to repair by taking away.
    wouldBe: changes.some(({ after }) => after !== null) ? wouldBe : null,
    apply:
      changes.length === 0
        ? null
        : async (store) => {
            await store.change(changes);
            return changes.map(({ before, after }) =>
              changeOf(before === null ? 'create' : after === null ? 'delete' : 'update', before, after),
            );
          },
  };
}

async function requireRevisionNow(db: Connection, expected: number | null): Promise<void> {
  const { revision } = await readPosition(db);
  if (expected === null || expected === revision) return;
  throw new AppError('precondition_failed', `The policies are at revision ${revision}, not ${expected}. Look at them again.`);
}

function requireTargets(targets: readonly TargetName[], expected: readonly TargetName[]): void {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const moved = expected.find(({ id, name }) => names.get(id) !== name);
  if (moved === undefined) return;
  throw new AppError('precondition_failed', `The target ${moved.name} has changed meanwhile. Look at the policies again.`);
}

async function readFiles(texts: ReadonlyMap<string, string>): Promise<Map<string, ParsedPolicyFile>> {
  const files = new Map<string, ParsedPolicyFile>();
  const errors: PolicyFileError[] = [];
  const pause = createPause();
  for (const [file, text] of texts) {
    await pause();
    if (!FILE_NAME.test(file)) {
      errors.push({ file, line: 1, column: 1, message: FILE_NAME_RULE });
      continue;
    }
    const parsed = parsePolicyFile(text, file);
    if ('errors' in parsed) errors.push(...parsed.errors);
    else files.set(file, parsed);
  }
  if (errors.length > 0) throw badFiles(errors);
  return files;
}

/** `member`: that of the request which has the files. */
export function badFiles(errors: readonly PolicyFileError[], member = 'files'): AppError {
  const fields = errors.map(({ file, line, column, message }) => ({
    path: `${member}.${file}`,
    ...{ message, file, line, column },
  }));
  return tooMany(fields, describePolicyFileError);
}

function tooMany<E extends FieldError>(errors: readonly E[], describe: (error: E) => string): AppError {
  const more = errors.length - ERRORS_IN_DETAIL;
  const lines = [...errors.slice(0, ERRORS_IN_DETAIL).map(describe), ...(more > 0 ? [`and ${more} more`] : [])];
  return new AppError('invalid_request', lines.join('; '), { errors: errors.slice(0, ERRORS_NAMED) });
}
