/** The jobs of the policy thread. It reads the bodies of requests and writes the answers, because both can be large. */
import type { LogJson } from '../../audit/search/log-json.ts';
import type { Genuineness } from '../../audit/verify/genuine.ts';
import type { Owners } from '../../auth/rights.ts';
import { AppError } from '../../base/errors.ts';
import { uuidv7 } from '../../base/ids.ts';
import { inSlices, telling } from '../../base/turns/slices.ts';
import { validate } from '../../base/validate.ts';
import type { Progress } from '../../base/work/messages.ts';
import type { Desk } from '../../base/work/thread.ts';
import type { Position } from '../../db/changes.ts';
import type { Policy, StoredPolicy } from '../../engine/compile/policy.ts';
import { createEngine, loadPolicyModule, type PolicyModule } from '../../engine/engine.ts';
import { parseBody } from '../../http/body.ts';
import type { FoundUser } from '../../state/found-users.ts';
import { analyseInSteps } from '../analysis/analyse.ts';
import { fileNames, fileOf } from '../files/file.ts';
import { readEach } from '../files/read-files.ts';
import { formatPolicyFile } from '../files/yaml.ts';
import { invariantFindings } from '../invariants/findings.ts';
import type { Invariant } from '../invariants/invariant.ts';
import type { Checked, ToCheck } from '../invariants/invariant-edits.ts';
import { exported, parseInvariantFile } from '../invariants/invariant-files.ts';
import { judge } from '../invariants/judge.ts';
import { createNameSearch, type NamesOutside } from '../limits/limits.ts';
import { requireAmong, requirePlannable } from '../owners.ts';
import { type Answered, decideEach } from '../questions.ts';
import { askedIn, differencesOf, reproduce } from '../reproduction.ts';
import { contextOf } from '../review/context.ts';
import {
  applyBody,
  moveOf,
  movePlanBody,
  type PlanBody,
  planBody,
  requestOf,
  rollbackOf,
  rollbackPlanBody,
  type SetSource,
} from '../sets/bodies.ts';
import { filesOf, type Moment } from '../sets/candidate-set.ts';
import { decisionChanges } from '../sets/decision-changes.ts';
import type { DraftContent } from '../sets/draft.ts';
import { invariantsJson, lintJson } from '../sets/lint-report.ts';
import { changesBetween, type PolicyPlan, setBefore, withChanges } from '../sets/plan.ts';
import { changesJson, planCounts, withFlips } from '../sets/plan-json.ts';
import { madeForRequest, type PlanParts, planMove, planOn, planRollback, readFiles, type SetState } from '../sets/planning.ts';
import { answerJson, objectJson, readRequests, simulateBody, testBody } from '../sets/questions-about.ts';
import { type Brought, createSetCheck, isAccepted, type SetVerdict } from '../sets/set-check.ts';
import { readTests, type SetToTest, testSet } from '../sets/test-set.ts';
import { type Holders, nobodyHas } from '../sets/unknown.ts';
import { type Suggestion, type SuggestTask, suggest } from '../suggest/job.ts';
import type { Need } from '../suggest/needs.ts';
import { foundFor, type Given, takePolicies } from './given.ts';

/** The answer to a request: JSON in UTF-8, and the revision that it describes. */
export interface HeavyAnswer {
  readonly json: Uint8Array;
  readonly position: Position;
}

/** A user to find. `since`: when policies and targets were read. */
export interface UserAsked {
  readonly name: string;
  readonly since: Position;
}

/** An earlier set to read. `since`: when the job first read the state. */
export interface EarlierAsked {
  readonly revision: number;
  readonly since: Position;
}

export interface UserNow {
  readonly user: FoundUser | null;
  /** Whether policies and targets are certainly as they were at `since`. */
  readonly isSame: boolean;
}

/** What a job needs from the gateway. Policies arrive as items. */
export interface Stored {
  readonly position: Position;
  readonly targets: Moment['targets'];
  readonly invariants: readonly Invariant[];
  /** The state of policies and invariants, as `glanceOf` returns it. */
  readonly glance: string;
  /** The time at which exceptions are judged, in milliseconds since the epoch. */
  readonly now: number;
}

/** The body of an apply has texts; the rest is everything else. */
export type ApplyText = readonly [member: 'files' | 'tests', name: string, text: string];
export type ApplyRest = Omit<PlanBody, 'files'> & { readonly reason?: string };

let loaded: Promise<PolicyModule> | null = null;
function policyModule(): Promise<PolicyModule> {
  loaded ??= loadPolicyModule();
  return loaded;
}

const textOf = new TextEncoder();
const answerOf = (position: Position, value: unknown): HeavyAnswer => ({ position, json: textOf.encode(JSON.stringify(value)) });
const bodyOf = (body: Uint8Array | null): unknown => (body === null ? undefined : parseBody(body));

/** `owner`: the owner whose files are planned. */
async function stateOf(desk: Desk, owner: string | null = null): Promise<SetState & Stored> {
  const { value, items } = await desk.ask<Stored & Pick<SetState, 'limits' | 'history'>, Given<StoredPolicy>>('state', owner);
  return { ...value, policies: takePolicies(items) };
}

/** `since`: when the job first read the state. Throws AppError `unavailable` if the database was restored after it. */
const policiesAt = async (desk: Desk, revision: number, since: Position): Promise<readonly StoredPolicy[]> =>
  takePolicies((await desk.ask<null, Given<StoredPolicy>>('at', { revision, since } satisfies EarlierAsked)).items);

async function made(): Promise<PlanParts> {
  const { checkPattern } = await policyModule();
  return {
    ...madeForRequest({ newId: uuidv7, now: Date.now }),
    run: inSlices,
    checkSet: createSetCheck(checkPattern),
    findNames: createNameSearch(),
  };
}

/** Throws AppError `invalid_request` if no engine can be built from the policies. */
async function build(policies: readonly Policy[]) {
  const module = await policyModule();
  return createEngine({ module, policies, revision: 0 }).catch((cause: unknown) => {
    throw new AppError('invalid_request', 'The policies cannot be compiled with this change.', { cause });
  });
}

/** Returns the set that a question is about. */
async function momentOf(desk: Desk, source: SetSource, owners: Owners): Promise<Moment> {
  const { rollback, move } = source;
  if (rollback !== undefined || move !== undefined) requireAmong(owners, rollback?.owner ?? null);
  if (rollback !== undefined) {
    const state = await stateOf(desk);
    const old = await policiesAt(desk, rollback.revision, state.position);
    return momentAfter(state, await planRollback(state, old, rollbackOf(rollback), await made()));
  }
  if (move !== undefined) {
    const state = await stateOf(desk);
    return momentAfter(state, await planMove(state, moveOf({ ...move, override: true }), await made()));
  }
  const body = await filesOf(source, async (draft) => (await desk.ask<DraftContent>('draft', draft)).value);
  if (body !== null) requirePlannable(owners, requestOf(body));
  const parsed = body === null ? null : await readFiles(new Map(Object.entries(body.files)));
  const state = await stateOf(desk, body && requestOf(body).owner);
  if (body === null || parsed === null) return { ...state, stored: state.policies, changes: [] };
  return momentAfter(state, await planOn(state, { ...requestOf(body), files: parsed }, await made()));
}

const momentAfter = (state: SetState & Stored, { candidate, changes }: Plan): Moment => ({
  ...{ ...state, policies: candidate, stored: setBefore(candidate, changes), changes },
});

const byId = (policies: readonly StoredPolicy[]) => new Map(policies.map((policy) => [policy.id, policy]));

const saying = (desk: Desk) => (progress: Progress | undefined) => {
  if (progress !== undefined) desk.progress(progress);
};

type Plan = Pick<PolicyPlan, 'changes' | 'candidate'>;

/** Returns what plans say besides their counts. Throws AppError `invalid_request` if the plan cannot be carried out. */
async function shownPlan(desk: Desk, { policies, targets, invariants, now }: SetState & Stored, { changes, candidate }: Plan) {
  if (changes.some(({ after }) => after !== null)) await build(candidate);
  const stored = new Set(policies.map(({ id }) => id));
  const { verdict, flipsOf } = await decisionChanges(policies, candidate, targets, (id) => stored.has(id), saying(desk));
  const holders = (await desk.ask<Holders>('holders')).value;
  const judged = { before: policies, after: candidate, invariants, targets, now, isStored: (id: string) => stored.has(id) };
  const broken = await judge(judged, build, saying(desk));
  return {
    verdict,
    invariants: broken,
    warnings: nobodyHas(changes, holders),
    changes: withFlips(changesJson(changes, targets), flipsOf),
  };
}

/** `owners`: those whose policies the caller may plan. */
interface Planning {
  readonly body: Uint8Array | null;
  readonly owners: Owners;
}

export const jobs = {
  async plan({ body, owners }: Planning, desk: Desk): Promise<HeavyAnswer> {
    const request = requestOf(validate(planBody, bodyOf(body)));
    requirePlannable(owners, request);
    const files = await readFiles(request.files);
    const state = await stateOf(desk, request.owner);
    const plan = await planOn(state, { ...request, files }, await made());
    const { changes, ...rest } = await shownPlan(desk, state, plan);
    return answerOf(state.position, {
      ...planCounts(plan, state.position),
      ...rest,
      // A policy that is not created yet has no id.
      changes: changes.map((change) => (change.action === 'create' ? { ...change, policy_id: null } : change)),
    });
  },

  async rollbackPlan({ body, owners }: Planning, desk: Desk): Promise<HeavyAnswer> {
    const request = rollbackOf(validate(rollbackPlanBody, bodyOf(body)));
    requireAmong(owners, request.owner);
    const state = await stateOf(desk);
    const { position } = state;
    const plan = await planRollback(state, await policiesAt(desk, request.revision, position), request, await made());
    return answerOf(position, { revision: position.revision, ...(await shownPlan(desk, state, plan)) });
  },

  async movePlan({ body, owners }: Planning, desk: Desk): Promise<HeavyAnswer> {
    const request = moveOf(validate(movePlanBody, bodyOf(body)));
    requireAmong(owners, null);
    const state = await stateOf(desk);
    const { position } = state;
    const plan = await planMove(state, request, await made());
    return answerOf(position, { revision: position.revision, ...(await shownPlan(desk, state, plan)) });
  },

  async compare({ from, to }: { from: number; to: number | null }, desk: Desk): Promise<HeavyAnswer> {
    const { position, targets } = (await desk.ask<Stored>('now')).value;
    const last = to ?? position.revision;
    const after = await policiesAt(desk, last, position);
    const before = await policiesAt(desk, from, position);
    const { verdict, flipsOf } = await decisionChanges(before, after, targets, () => true, saying(desk));
    const changes = withFlips(changesJson(changesBetween(before, after), targets), flipsOf);
    return answerOf(position, { from, to: last, verdict, changes });
  },

  /** Makes a recorded decision again, if its record is what the gateway wrote. */
  async reproduce({ genuineness, ...row }: LogJson & { readonly genuineness: Genuineness }, desk: Desk): Promise<HeavyAnswer> {
    const { position } = (await desk.ask<Stored>('now')).value;
    const { id, revision } = row;
    const question = genuineness === 'genuine' ? askedIn(row) : genuineness === 'altered' ? 'damaged' : genuineness;
    const nothing = { effect: null, policy_id: null, reason: null, data_hash: null, engine_hash: null, differences: [] };
    if (typeof question === 'string') return answerOf(position, { id, revision, result: question, ...nothing });
    const policies = await policiesAt(desk, revision, position);
    const again = reproduce(await createEngine({ module: await policyModule(), policies, revision }), question);
    const differences = differencesOf(row, again);
    return answerOf(position, { id, revision, result: differences.length === 0 ? 'same' : 'differs', ...again, differences });
  },

  /** `brief`: without witnesses, which are most of the answer. */
  async lint({ brief = false }: { brief?: boolean }, desk: Desk): Promise<HeavyAnswer> {
    const { position, policies, targets, invariants, now } = await stateOf(desk);
    const { roles, groups, users } = (await desk.ask<Holders>('holders')).value;
    const known = { targets: new Set(targets.map(({ id }) => id)), roles, groups, users };
    const report = await inSlices(telling(analyseInSteps(policies, known), saying(desk)));
    const names = new Map(targets.map(({ id, name }) => [id, name]));
    const { analysed, findings } = lintJson(report, policies, (id) => names.get(id));
    const broken = await judge({ before: [], after: policies, invariants, targets, now, isStored: () => true }, build);
    const existing = new Set(policies.map(({ id }) => id));
    const found = invariantFindings(broken, invariants, policies, { now, isLost: (id) => !existing.has(id) });
    const all = [
      ...invariantsJson(found, policies),
      ...(brief ? findings.map((each) => ({ ...each, witness: null })) : findings),
    ];
    return answerOf(position, { revision: position.revision, analysed, findings: all });
  },

  async context({ owner }: { owner: string }, desk: Desk): Promise<HeavyAnswer> {
    const { position, policies, targets } = await stateOf(desk);
    const today = new Date().toISOString().slice(0, 10);
    return answerOf(position, contextOf(policies, { owner, revision: position.revision, today, targets }));
  },

  async export({ owner }: { owner: string }, desk: Desk): Promise<HeavyAnswer> {
    const { position, policies, targets } = await stateOf(desk);
    const names = new Map(targets.map(({ id, name }) => [id, name]));
    const files = fileNames(policies, owner);
    const written: [string, string][] = [];
    for (const [done, policy] of policies.entries()) {
      const file = files.get(policy.id);
      if (file !== undefined) written.push([file, formatPolicyFile(fileOf(policy, (id) => names.get(id)))]);
      desk.progress({ done, total: policies.length });
    }
    return answerOf(position, { owner, files: Object.fromEntries(written.sort(([a], [b]) => (a < b ? -1 : 1))) });
  },

  async exportInvariants(_: object, desk: Desk): Promise<HeavyAnswer> {
    const state = await stateOf(desk);
    return answerOf(state.position, { files: Object.fromEntries(exported(state)) });
  },

  async simulate({ body }: { body: Uint8Array | null }, desk: Desk): Promise<HeavyAnswer> {
    const { requests, ...source } = validate(simulateBody, bodyOf(body));
    const { position, stored, policies, targets } = await momentOf(desk, source, null);
    // An answer is true if the user was like this while these policies and targets were in force. Users are read later than policies.
    const find = async (name: string): Promise<FoundUser | null> => {
      const { user, isSame } = (await desk.ask<UserNow>('user', { name, since: position } satisfies UserAsked)).value;
      if (!isSame)
        throw new AppError('unavailable', 'Policies or targets have changed while the answer was made.', { retryAfter: 1 });
      return user;
    };
    const asked = await readRequests(requests, targets, (i) => `requests.${i}.`, find);
    const questions = asked.map(({ question }) => question);
    const before = await decideEach(await build(stored), questions);
    const after = await decideEach(await build(policies), questions);
    const [old, known] = [byId(stored), byId(policies)];
    const results = asked.map(({ principal, target, question }, i) => {
      const [was, is] = [before[i] ?? UNANSWERED, after[i] ?? UNANSWERED];
      return {
        principal,
        target,
        ...objectJson(question.object),
        now: answerJson(was, old, (id) => old.has(id)),
        would_be: answerJson(is, known, (id) => old.has(id)),
        change: changeFrom(was, is),
      };
    });
    const changed = results.filter(({ change }) => change !== 'none').length;
    return answerOf(position, { revision: position.revision, changed, results });
  },

  /** Emits the changes that make the set of the source. */
  async moment(source: SetSource, desk: Desk): Promise<null> {
    const { policies, changes } = await momentOf(desk, source, null);
    if (changes.some(({ after }) => after !== null)) await build(policies);
    desk.give(changes);
    return null;
  },

  async test({ body, owners }: Planning, desk: Desk): Promise<HeavyAnswer> {
    const { tests, ...source } = validate(testBody, bodyOf(body));
    const cases = await readTests(new Map(Object.entries(tests)));
    const tested = await momentOf(desk, source, owners);
    const { position } = tested;
    return answerOf(position, { revision: position.revision, ...(await testSet(await policyModule(), cases, tested)) });
  },

  /** Makes a suggestion. Emits the policies that it would make as items. */
  async suggest(task: SuggestTask, desk: Desk): Promise<Suggestion> {
    const state = await stateOf(desk, task.owner);
    const needs = (await desk.ask<null, Need>('needs')).items;
    const parts = { made: await made(), engineOf: build, say: saying(desk) };
    const { suggestion, candidate } = await suggest(task, state, needs, parts);
    desk.give(candidate);
    return suggestion;
  },

  /** Reads the body of an apply. Emits its texts as items. */
  async applyBody({ body }: { body: Uint8Array | null }, desk: Desk): Promise<ApplyRest> {
    const { files, tests, ...rest } = validate(applyBody, bodyOf(body));
    const textsOf = (member: ApplyText[0], texts: Record<string, string>) =>
      Object.entries(texts).map(([name, text]): ApplyText => [member, name, text]);
    desk.give([...textsOf('files', files), ...textsOf('tests', tests ?? {})]);
    return rest;
  },

  /** Parses the files of policies. Emits each of them as an item. */
  async read({ texts }: { texts: readonly (readonly [string, string])[] }, desk: Desk): Promise<null> {
    desk.give((await readFiles(new Map(texts))).values());
    return null;
  },

  /** Parses the files of invariants. Emits each of them as an item. */
  async readInvariants({ texts }: { texts: readonly (readonly [string, string])[] }, desk: Desk): Promise<null> {
    desk.give((await readEach(new Map(texts), parseInvariantFile)).values());
    return null;
  },

  /** Checks the policies that a change brings, and builds an engine from an accepted set. Emits what the gateway needs to load it. */
  async checkSet(brought: Brought, desk: Desk): Promise<SetVerdict> {
    const given = (await desk.ask<null, Given<StoredPolicy>>('policies')).items;
    const policies = takePolicies(given);
    const { checkPattern } = await policyModule();
    const stored = async () => takePolicies((await desk.ask<null, Given<StoredPolicy>>('stored')).items);
    const verdict = await createSetCheck(checkPattern)(policies, brought, stored);
    if (!isAccepted(verdict)) return verdict;
    await build(policies);
    desk.give(foundFor(given));
    return verdict;
  },

  findNames: (outside: readonly NamesOutside[]) => createNameSearch()(outside),

  /** Checks invariants: the stored ones on changed policies, or new ones on the stored policies. */
  async checkInvariants(check: ToCheck, desk: Desk): Promise<Checked> {
    const { policies, targets, invariants, glance, now } = await stateOf(desk);
    const known = new Set(policies.map(({ id }) => id));
    const sets =
      'changes' in check
        ? { before: policies, after: withChanges(policies, check.changes), invariants }
        : { before: [], after: policies, invariants: check.invariants };
    return { glance, broken: await judge({ ...sets, targets, now, isStored: (id) => known.has(id) }, build) };
  },

  /** Says what is wrong with tests. */
  async checkTests({ texts }: { texts: readonly (readonly [string, string])[] }): Promise<null> {
    await readTests(new Map(texts));
    return null;
  },

  /** Runs the tests of a request on its candidate set. */
  async tests({ texts }: { texts: readonly (readonly [string, string])[] }, desk: Desk) {
    const cases = await readTests(new Map(texts));
    const { value, items } = await desk.ask<Pick<SetToTest, 'targets'>, Given<StoredPolicy>>('set');
    const policies = takePolicies(items);
    const { failed, results } = await testSet(await policyModule(), cases, { ...value, policies, stored: policies });
    return { failed, all: results.length, failures: results.filter(({ passed }) => !passed).slice(0, FAILURES_NAMED) };
  },
};

/** More failures would not help. */
const FAILURES_NAMED = 200;

const UNANSWERED: Answered = { effect: 'deny', reason: 'error', policy: null };

function changeFrom(was: Answered, is: Answered): 'none' | 'grants' | 'refuses' | 'policy' {
  if (was.effect !== is.effect) return is.effect === 'allow' ? 'grants' : 'refuses';
  return was.policy?.id === is.policy?.id && was.reason === is.reason ? 'none' : 'policy';
}
