/** `/api/policies`, asked and not changed: why, what if, tests, who can use what, lint. Mounted behind authentication of administrators. */
import { pipeline } from 'node:stream/promises';
import { type Request, Router } from 'express';
import Joi from 'joi';
import { seenObjects } from '../audit/names/store.ts';
import { type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import type { NamedObject, PrincipalFacts } from '../decision/decision.ts';
import { createEngine, fittingPatterns, type LoadedEngine, type PolicyModule } from '../decision/engine.ts';
import { explain, type Misfit, patternsToTry, type Question, readingsFor } from '../decision/explain.ts';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';
import { ID_KEY, linkNext, readPage } from '../http/page.ts';
import { text, UUID, validate } from '../http/validate.ts';
import { createPause, inSlices } from '../slices.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { type User, userStore } from '../users/store.ts';
import {
  type AccessObject,
  type AccessRow,
  accessCsv,
  accessRows,
  type Holder,
  holderOf,
  holderOfUser,
  namedHolders,
} from './access.ts';
import { analyseInSteps } from './analysis/analyse.ts';
import { type Policy, RESOURCE_TYPES, type ResourceType, type StoredPolicy } from './document.ts';
import { FILE_NAME, FILE_NAME_RULE } from './files.ts';
import { lintJson } from './lint-report.ts';
import type { PolicyChange } from './plan.ts';
import { type Answered, decideEach, decideOne } from './questions.ts';
import { showRevision } from './routes.ts';
import { POLICY_LIMITS, subjectKey } from './schema.ts';
import { type PlanBody, planMembers, requestOf } from './set-routes.ts';
import { badFiles, type PolicySets, type TargetName } from './sets.ts';
import { policyStore } from './store.ts';
import { parseTestFile, type TestCase, URI_MAX } from './test-file.ts';
import { policyRef, runTests } from './test-run.ts';
import type { PolicyFileError } from './yaml.ts';

export interface QuestionRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly sets: PolicySets;
  readonly targets: (db: Connection) => Promise<readonly (TargetName & { readonly enabled: boolean })[]>;
}

export const QUESTION_LIMITS = { requests: 1_000, cases: 10_000, passedOver: 1_000 } as const;
/** Users whose access is worked out at once. */
const PAGE = {
  defaultLimit: 100,
  maxLimit: 1000,
  key: ID_KEY,
  also: ['target', 'resource_type', 'resource_name', 'who', 'format'],
};
/** A page ends with the user who brings it here. */
const ROWS_PER_PAGE = 10_000;

type PrincipalInput = { user: string } | { role: string; sub?: string; groups?: string[] };
interface RequestInput {
  principal: PrincipalInput;
  target: string;
  resource_type?: ResourceType;
  resource_name?: string;
}

const name = text(POLICY_LIMITS.subjectValue);
const objectMembers = {
  resource_type: Joi.valid(...RESOURCE_TYPES),
  resource_name: text(URI_MAX),
};
const requestBody = Joi.object<RequestInput>({
  principal: Joi.object({ user: name, role: name, sub: name, groups: Joi.array().items(name).max(POLICY_LIMITS.subjects) })
    .xor('user', 'role')
    .without('user', ['sub', 'groups'])
    .required()
    .messages({
      'object.missing': 'must have `user`, or `role`',
      'object.xor': 'must have `user`, or `role`, and not both',
      'object.without': 'must have `user` alone, or `role` with `sub` and `groups`',
    }),
  target: Joi.string().pattern(TARGET_NAME).required().messages({ 'string.pattern.base': 'must be the name of a target' }),
  ...objectMembers,
})
  .and('resource_type', 'resource_name')
  .messages({ 'object.and': 'must have `resource_type` and `resource_name`, or neither' })
  .required();
const simulateBody = Joi.object<PlanBody & { requests: RequestInput[] }>({
  ...planMembers,
  requests: Joi.array().items(requestBody).min(1).max(QUESTION_LIMITS.requests).required(),
}).required();
const testBody = Joi.object<Partial<PlanBody> & { tests: Record<string, string> }>({
  ...planMembers,
  files: Joi.object().pattern(Joi.string(), Joi.string().allow('')),
  tests: Joi.object().pattern(Joi.string(), Joi.string().allow('')).min(1).required(),
})
  .with('owner', 'files')
  .with('prune', 'files')
  .with('adopt', 'files')
  .with('expected_revision', 'files')
  .messages({ 'object.with': 'is for `files`, which are not there' })
  .required();

/** The set of one moment, and what else questions are asked about. */
interface Moment {
  readonly position: Position;
  readonly policies: readonly StoredPolicy[];
  /** The same, but where `policies` are those that files would make. */
  readonly stored: readonly StoredPolicy[];
  readonly targets: readonly (TargetName & { readonly enabled: boolean })[];
}

export function createQuestionRoutes({ database, module, sets, targets: allTargets }: QuestionRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  const momentIn = async (db: Connection): Promise<Moment> => {
    const policies = await policyStore(db).all();
    return { position: await readPosition(db), policies, stored: policies, targets: await allTargets(db) };
  };

  /** Compiling takes long, and most questions are about the set of the question before. */
  let last: { readonly json: string; readonly engine: Promise<LoadedEngine> } | null = null;
  function engineOf(policies: readonly Policy[], revision: number): Promise<LoadedEngine> {
    const json = JSON.stringify([revision, policies]);
    if (last?.json === json) return last.engine;
    const engine = createEngine({ module, policies, revision });
    const made = { json, engine };
    last = made;
    engine.catch(() => {
      if (last === made) last = null;
    });
    return engine;
  }

  router.post('/explain', async (req, res) => {
    const body = validate(requestBody, req.body);
    const { position, policies, targets, asked } = await database.snapshot(async (db) => {
      const moment = await momentIn(db);
      return { ...moment, asked: await readRequests(db, [body], moment.targets, () => '') };
    });
    showRevision(res, position);
    const [given] = asked;
    if (given === undefined) throw new AppError('internal', 'There is no question.');
    const engine = await engineOf(policies, position.revision);
    const answer = decideOne(engine, given.question);
    const readings = readingsFor(policies, engine.compiled.document.policies, given.question);
    const fitting = await fittingPatterns(module, patternsToTry(readings), given.question.object?.resource_name ?? '');
    const explanation = explain(readings, fitting);
    const decided = answer.reason === 'matched' || answer.reason === 'default';
    if (decided && (explanation.policy?.id ?? null) !== (answer.policy?.id ?? null)) {
      throw new AppError('internal', 'The explanation does not agree with the decision.');
    }
    // Where no policy was asked, none was passed over.
    const passedOver = decided ? explanation.passedOver : [];
    const names = namesOf(targets);
    const byId = new Map(policies.map((policy) => [policy.id, policy]));
    res.json({
      revision: position.revision,
      data_hash: engine.dataHash,
      engine_hash: engine.engineHash,
      principal: given.principal,
      target: given.target,
      ...objectJson(given.question.object),
      ...answerJson(answer, byId, () => true),
      passed_over: passedOver.slice(0, QUESTION_LIMITS.passedOver).map(({ policy, misfit }) => {
        const stored = byId.get(policy.id);
        return {
          ...(stored === undefined ? {} : policyRef(stored, () => true)),
          effect: policy.effect,
          misfit,
          wants: wantsOf(policy, misfit, (id) => names.get(id)),
        };
      }),
      passed_over_count: passedOver.length,
    });
  });

  router.post('/simulate', async (req, res) => {
    const { requests, ...plan } = validate(simulateBody, req.body);
    const would = await wouldBe(plan);
    showRevision(res, would.position);
    const asked = await database.snapshot((db) => readRequests(db, requests, would.targets, (i) => `requests.${i}.`));
    const questions = asked.map(({ question }) => question);
    const before = await decideEach(await engineOf(would.stored, would.position.revision), questions);
    const engine = await createEngine({ module, policies: would.policies, revision: 0 });
    const after = await decideEach(engine, questions);
    const [old, known] = [byIdOf(would.stored), byIdOf(would.policies)];
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
    res.json({
      revision: would.position.revision,
      changed: results.filter(({ change }) => change !== 'none').length,
      results,
    });
  });

  router.post('/test', async (req, res) => {
    const { tests, files, ...plan } = validate(testBody, req.body);
    const cases = await readTests(new Map(Object.entries(tests)));
    const tested = files === undefined ? await database.snapshot(momentIn) : await wouldBe({ ...plan, files });
    showRevision(res, tested.position);
    const engine = await createEngine({ module, policies: tested.policies, revision: 0 });
    const { policies, targets } = tested;
    const stored = byIdOf(tested.stored);
    const report = await runTests(cases, { engine, policies, targets, isStored: (id) => stored.has(id) });
    if ('errors' in report) throw badFiles(report.errors, 'tests');
    res.json({ revision: tested.position.revision, ...report });
  });

  router.get('/access', async (req, res) => {
    const page = readPage(req, PAGE);
    const asked = readAccess(req);
    const whole = asked.format === 'csv';
    if (whole && (req.query['limit'] !== undefined || page.cursor !== null)) {
      throw invalidRequest([{ path: 'format', message: 'csv has no pages' }]);
    }
    const { position, policies, targets, seen, who } = await database.snapshot(async (db) => ({
      ...(await momentIn(db)),
      seen: asked.object === null ? await seenObjects(db) : [],
      who: asked.who === null ? null : await findHolders(db, asked.who),
    }));
    showRevision(res, position);
    const objects = objectsOf(asked, targets, seen);
    const engine = await engineOf(policies, position.revision);
    const named = who ?? (page.cursor === null ? namedHolders(policies) : []);
    const users = async (limit: number, after: string | null): Promise<User[]> =>
      who === null ? database.snapshot((db) => userStore(db).page(limit, after)) : [];

    async function* everyRow(): AsyncGenerator<AccessRow> {
      yield* accessRows(engine, named, objects);
      for (let after: string | null = null; ; ) {
        const some = await users(PAGE.maxLimit, after);
        yield* accessRows(engine, enabledHolders(some), objects);
        after = some.at(-1)?.id ?? null;
        if (some.length < PAGE.maxLimit) return;
      }
    }
    if (whole) {
      res.setHeader('Content-Type', 'text/csv; charset=utf-8');
      res.setHeader('Content-Disposition', `attachment; filename="access-${position.revision}.csv"`);
      await pipeline(accessCsv(everyRow()), res).catch((error: unknown) => {
        // Whoever has left needs no answer.
        if ((error as { code?: string }).code !== 'ERR_STREAM_PREMATURE_CLOSE') throw error;
      });
      return;
    }

    const limit = page.limit ?? PAGE.defaultLimit;
    const rows: AccessRow[] = [];
    for await (const row of accessRows(engine, named, objects)) rows.push(row);
    const some = await users(limit + 1, page.cursor);
    let done = 0;
    for (const user of some.slice(0, limit)) {
      if (rows.length >= ROWS_PER_PAGE) break;
      for await (const row of accessRows(engine, enabledHolders([user]), objects)) rows.push(row);
      done++;
    }
    const next = some[done - 1];
    if (done < some.length) linkNext(req, res, page, next?.id ?? page.cursor ?? FIRST_ID);
    res.json(rows);
  });

  router.get('/lint', async (req, res) => {
    for (const path of Object.keys(req.query)) throw invalidRequest([{ path, message: 'unknown query parameter' }]);
    const { position, policies, targets, users } = await database.snapshot(async (db) => ({
      ...(await momentIn(db)),
      users: await userStore(db).page(null, null),
    }));
    showRevision(res, position);
    const known = {
      targets: new Set(targets.map(({ id }) => id)),
      roles: new Set(users.map(({ role }) => role)),
      groups: new Set(users.flatMap(({ groups }) => groups)),
      users: new Set(users.map(({ id }) => id)),
    };
    const report = await inSlices(analyseInSteps(policies, known));
    const names = namesOf(targets);
    res.json({ revision: position.revision, ...lintJson(report, policies, (id) => names.get(id)) });
  });

  /** What the files would make of the set; what could not be applied is refused. */
  async function wouldBe(body: PlanBody): Promise<Moment> {
    const { plan, position } = await sets.plan(requestOf(body));
    return {
      position,
      policies: plan.wouldBe,
      stored: withoutChanges(plan.wouldBe, plan.changes),
      targets: await database.snapshot(allTargets),
    };
  }

  return router;
}

const UNANSWERED: Answered = { effect: 'deny', reason: 'error', policy: null };
/** Before every id. */
const FIRST_ID = '00000000-0000-0000-0000-000000000000';

const byIdOf = (policies: readonly StoredPolicy[]): Map<string, StoredPolicy> =>
  new Map(policies.map((policy) => [policy.id, policy]));
const namesOf = (targets: readonly TargetName[]): Map<string, string> => new Map(targets.map(({ id, name }) => [id, name]));

/** The set that the changes were made on. */
function withoutChanges(wouldBe: readonly StoredPolicy[], changes: readonly PolicyChange[]): StoredPolicy[] {
  const set = byIdOf(wouldBe);
  for (const { before, after } of changes) {
    if (after !== null) set.delete(after.id);
    if (before !== null) set.set(before.id, before);
  }
  return [...set.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

interface Asked {
  readonly principal: PrincipalFacts & { readonly email: string | null; readonly enabled: boolean };
  readonly target: TargetName & { readonly enabled: boolean };
  readonly question: Question;
}

/** Throws AppError `invalid_request` where there is no such user or target. */
async function readRequests(
  db: Connection,
  requests: readonly RequestInput[],
  targets: Moment['targets'],
  pathOf: (at: number) => string,
): Promise<Asked[]> {
  const byName = new Map(targets.map((target) => [target.name, target]));
  const users = new Map<string, User | null>();
  const errors: FieldError[] = [];
  const asked: Asked[] = [];
  for (const [i, { principal: given, target: called, resource_type, resource_name }] of requests.entries()) {
    if ('user' in given && !users.has(given.user)) users.set(given.user, await findUser(db, given.user));
    const principal = 'user' in given ? principalOfUser(users.get(given.user)) : principalOf(given);
    const target = byName.get(called);
    if (principal === null) errors.push({ path: `${pathOf(i)}principal.user`, message: 'no user has this id or e-mail' });
    if (target === undefined) errors.push({ path: `${pathOf(i)}target`, message: 'no target has this name' });
    if (principal === null || target === undefined) continue;
    const object = resource_type === undefined || resource_name === undefined ? null : { resource_type, resource_name };
    const { id, name, enabled } = target;
    const { sub, role, groups } = principal;
    asked.push({
      principal,
      target: { id, name, enabled },
      question: { principal: { sub, role, groups }, targetId: id, object },
    });
  }
  if (errors.length > 0) throw invalidRequest(errors);
  return asked;
}

const findUser = (db: Connection, user: string): Promise<User | null> =>
  UUID.test(user) ? userStore(db).find(user) : userStore(db).findByEmail(user);

const principalOf = ({ role, sub = '', groups = [] }: Extract<PrincipalInput, { role: string }>): Asked['principal'] => ({
  ...{ sub, role, groups, email: null, enabled: true },
});

function principalOfUser(user: User | null | undefined): Asked['principal'] | null {
  if (!user) return null;
  const { id, role, groups, email, enabled } = user;
  return { sub: id, role, groups, email, enabled };
}

/** What would have to be so for the policy to fit; null where it says nothing. */
function wantsOf(policy: Policy, misfit: Misfit, targetName: (id: string) => string | undefined): string | null {
  switch (misfit) {
    case 'enabled':
    case 'unreadable':
      return null;
    case 'target':
      return policy.target_id === null ? null : (targetName(policy.target_id) ?? policy.target_id);
    case 'resource_type':
      return policy.resource_type;
    case 'subject': {
      const shown = policy.subjects.slice(0, SUBJECTS_SHOWN).map(subjectKey);
      const more = policy.subjects.length - shown.length;
      return shown.length === 0 ? 'nobody' : [...shown, ...(more > 0 ? [`and ${more} more`] : [])].join(', ');
    }
    case 'pattern':
      return policy.resource_pattern;
  }
}

const SUBJECTS_SHOWN = 5;

const objectJson = (object: NamedObject | null) => ({
  resource_type: object?.resource_type ?? null,
  resource_name: object?.resource_name ?? null,
});

function answerJson(answer: Answered, policies: ReadonlyMap<string, StoredPolicy>, isStored: (id: string) => boolean) {
  const policy = answer.policy === null ? undefined : policies.get(answer.policy.id);
  return { effect: answer.effect, reason: answer.reason, policy: policy === undefined ? null : policyRef(policy, isStored) };
}

function changeFrom(was: Answered, is: Answered): 'none' | 'grants' | 'refuses' | 'policy' {
  if (was.effect !== is.effect) return is.effect === 'allow' ? 'grants' : 'refuses';
  return was.policy?.id === is.policy?.id && was.reason === is.reason ? 'none' : 'policy';
}

/** Throws AppError `invalid_request` with the places of mistakes. */
async function readTests(texts: ReadonlyMap<string, string>): Promise<TestCase[]> {
  const pause = createPause();
  const errors: PolicyFileError[] = [];
  const cases: TestCase[] = [];
  for (const [file, text] of texts) {
    await pause();
    if (!FILE_NAME.test(file)) {
      errors.push({ file, line: 1, column: 1, message: FILE_NAME_RULE });
      continue;
    }
    const parsed = parseTestFile(text, file);
    if ('errors' in parsed) errors.push(...parsed.errors);
    else if (cases.length + parsed.cases.length > QUESTION_LIMITS.cases) {
      throw invalidRequest([{ path: 'tests', message: `must have at most ${QUESTION_LIMITS.cases} cases together` }]);
    } else for (const each of parsed.cases) cases.push(each);
  }
  if (errors.length > 0) throw badFiles(errors, 'tests');
  return cases;
}

interface AccessQuery {
  readonly format: 'json' | 'csv';
  /** null: every target. */
  readonly target: string | null;
  /** null: the target itself, and every name that is known. */
  readonly object: NamedObject | null;
  readonly who: Who | null;
}

type Who = { readonly kind: 'everyone' } | { readonly kind: 'role' | 'group' | 'user'; readonly value: string };

const accessQuery = Joi.object<Record<string, string>>({
  format: Joi.valid('json', 'csv'),
  target: Joi.string().pattern(TARGET_NAME),
  ...objectMembers,
  who: Joi.string()
    .pattern(/^(everyone|(role|group|user):.+)$/s)
    .max(300),
})
  .unknown()
  .and('resource_type', 'resource_name')
  .with('resource_type', 'target')
  .messages({
    'string.pattern.base': 'is not of its form',
    'object.and': 'resource_type and resource_name go together',
    'object.with': 'needs a target',
  });

function readAccess(req: Request): AccessQuery {
  const { format, target, resource_type, resource_name, who } = validate(accessQuery, { ...req.query });
  const at = who?.indexOf(':') ?? -1;
  return {
    format: format === 'csv' ? 'csv' : 'json',
    target: target ?? null,
    object:
      resource_type === undefined || resource_name === undefined
        ? null
        : { resource_type: resource_type as ResourceType, resource_name },
    who:
      who === undefined
        ? null
        : at === -1
          ? { kind: 'everyone' }
          : { kind: who.slice(0, at) as 'role' | 'group' | 'user', value: who.slice(at + 1) },
  };
}

async function findHolders(db: Connection, who: Who): Promise<Holder[]> {
  if (who.kind === 'everyone') return [holderOf('everyone', null)];
  if (who.kind !== 'user') return [holderOf(who.kind, who.value)];
  const user = await findUser(db, who.value);
  if (user === null) throw invalidRequest([{ path: 'who', message: 'no user has this id or e-mail' }]);
  return enabledHolders([user]);
}

/** Who is disabled can use nothing. */
const enabledHolders = (users: readonly User[]): Holder[] => users.filter(({ enabled }) => enabled).map(holderOfUser);

function objectsOf(
  { target, object }: AccessQuery,
  targets: Moment['targets'],
  seen: Awaited<ReturnType<typeof seenObjects>>,
): AccessObject[] {
  const wanted = target === null ? targets : targets.filter(({ name }) => name === target);
  if (target !== null && wanted.length === 0) throw invalidRequest([{ path: 'target', message: 'no target has this name' }]);
  return wanted
    .filter(({ enabled }) => enabled)
    .flatMap((each): AccessObject[] => {
      if (object !== null) return [{ target: each, object }];
      const names = seen.filter(({ target_id }) => target_id === each.id);
      return [
        { target: each, object: null },
        ...names.map(({ resource_type, resource_name }) => ({ target: each, object: { resource_type, resource_name } })),
      ];
    });
}
