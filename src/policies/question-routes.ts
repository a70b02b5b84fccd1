import { Router } from 'express';
import Joi from 'joi';
import type { Connection, Database } from '../db/database.ts';
import type { NamedObject, PrincipalFacts } from '../decision/decision.ts';
import { createEngine, fittingPatterns, type PolicyModule } from '../decision/engine.ts';
import { explain, type Misfit, patternsToTry, type Question, readingsFor } from '../decision/explain.ts';
import { AppError, type FieldError, invalidRequest } from '../errors.ts';
import { text, UUID, validate } from '../http/validate.ts';
import { inSlices } from '../slices.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { type User, userStore } from '../users/store.ts';
import { analyseInSteps } from './analysis/analyse.ts';
import { type Policy, RESOURCE_TYPES, type ResourceType, type StoredPolicy } from './document.ts';
import { lintJson } from './lint-report.ts';
import { type Answered, decideEach, decideOne } from './questions.ts';
import { showRevision } from './routes.ts';
import { POLICY_LIMITS, subjectKey } from './schema.ts';
import type { SetEngines } from './set-engine.ts';
import { texts } from './set-routes.ts';
import { URI_MAX } from './test-file.ts';
import { policyRef } from './test-run.ts';
import { readTests, testSet } from './test-set.ts';
import { type Moment, type Moments, type SetSource, sourceMembers, withSource } from './would-be.ts';

export interface QuestionRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: Moments;
  readonly engineOf: SetEngines;
}

export const QUESTION_LIMITS = { requests: 1_000, passedOver: 1_000 } as const;
type PrincipalInput = { user: string } | { role: string; sub?: string; groups?: string[] };
interface RequestInput {
  principal: PrincipalInput;
  target: string;
  resource_type?: ResourceType;
  resource_name?: string;
}

const name = text(POLICY_LIMITS.subjectValue);
export const objectMembers = {
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
const simulateBody = withSource(
  Joi.object<SetSource & { requests: RequestInput[] }>({
    ...sourceMembers,
    requests: Joi.array().items(requestBody).min(1).max(QUESTION_LIMITS.requests).required(),
  }),
  true,
).required();
const testBody = withSource(
  Joi.object<SetSource & { tests: Record<string, string> }>({
    ...sourceMembers,
    tests: texts.min(1).required(),
  }),
  false,
).required();

export function createQuestionRoutes({ database, module, moments, engineOf }: QuestionRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/explain', async (req, res) => {
    const body = validate(requestBody, req.body);
    const { position, policies, targets, asked } = await database.snapshot(async (db) => {
      const moment = await moments.now(db);
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
    const { requests, ...source } = validate(simulateBody, req.body);
    const would = await moments.of(source);
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
    const { tests, ...source } = validate(testBody, req.body);
    const cases = await readTests(new Map(Object.entries(tests)));
    const tested = await moments.of(source);
    showRevision(res, tested.position);
    res.json({ revision: tested.position.revision, ...(await testSet(module, cases, tested)) });
  });

  router.get('/lint', async (req, res) => {
    for (const path of Object.keys(req.query)) throw invalidRequest([{ path, message: 'unknown query parameter' }]);
    const { position, policies, targets, users } = await database.snapshot(async (db) => ({
      ...(await moments.now(db)),
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

  return router;
}

const UNANSWERED: Answered = { effect: 'deny', reason: 'error', policy: null };
const byIdOf = (policies: readonly StoredPolicy[]): Map<string, StoredPolicy> =>
  new Map(policies.map((policy) => [policy.id, policy]));
const namesOf = (targets: Moment['targets']): Map<string, string> => new Map(targets.map(({ id, name }) => [id, name]));

interface Asked {
  readonly principal: PrincipalFacts & { readonly email: string | null; readonly enabled: boolean };
  readonly target: Moment['targets'][number];
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

export const findUser = (db: Connection, user: string): Promise<User | null> =>
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
