import { Router } from 'express';
import { AppError } from '../../base/errors.ts';
import { inSlices, pause } from '../../base/turns/slices.ts';
import { validate } from '../../base/validate.ts';
import type { Position } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import type { Policy } from '../../engine/compile/policy.ts';
import { fittingPatterns, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import { explain, type Misfit, patternsToTry, readingsInSteps } from '../../engine/explain.ts';
import { admissionOf } from '../../http/context.ts';
import { policyRef } from '../../policies/files/test-run.ts';
import type { HeavyWork } from '../../policies/heavy/heavy.ts';
import { createKeptLint } from '../../policies/heavy/kept-lint.ts';
import type { Moments } from '../../policies/heavy/moments.ts';
import { decideOne } from '../../policies/questions.ts';
import { subjectKey } from '../../policies/schema.ts';
import type { Moment } from '../../policies/sets/candidate-set.ts';
import {
  answerJson,
  objectJson,
  QUESTION_LIMITS,
  type RequestInput,
  readRequests,
  requestBody,
} from '../../policies/sets/questions-about.ts';
import type { FoundUsers } from '../../state/found-users.ts';
import { answerWork, bytesOf } from '../policies/heavy-answer.ts';
import { showRevision } from '../policies/routes.ts';
import { lintQuery } from './reports-contract.ts';

export interface QuestionRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: Moments;
  readonly engineOf: EngineCache;
  readonly heavy: HeavyWork;
  readonly foundUsers: Pick<FoundUsers, 'find'>;
}

export function createQuestionRoutes(parts: QuestionRouteParts): Router {
  const { database, module, moments, engineOf, heavy, foundUsers } = parts;
  const router = Router({ caseSensitive: true, strict: true });
  const keptLint = createKeptLint({ database, heavy });

  router.post('/explain', async (req, res) => {
    const body = validate(requestBody, req.body);
    const { position, answer } = await readInTurn(admissionOf(res).principal.sub, () => explained(body));
    showRevision(res, position);
    res.json(answer);
  });

  async function explained(body: RequestInput): Promise<{ readonly position: Position; readonly answer: object }> {
    const { position, policies, targets, asked } = await database.snapshot(async (db) => {
      const moment = await moments.now(db);
      return {
        ...moment,
        asked: await readRequests(
          [body],
          moment.targets,
          () => '',
          (user) => foundUsers.find(db, user),
        ),
      };
    });
    const [given] = asked;
    if (given === undefined) throw new AppError('internal', 'The request has no question.');
    const engine = await engineOf(policies, position.revision);
    // With 10,000 policies, each step takes some milliseconds.
    const answer = decideOne(engine, given.question);
    await pause();
    const readings = await inSlices(readingsInSteps(policies, engine.compiled.document.policies, given.question));
    await pause();
    const fitting = await fittingPatterns(module, patternsToTry(readings), given.question.object?.resource_name ?? '');
    await pause();
    const explanation = explain(readings, fitting);
    const decided = answer.reason === 'matched' || answer.reason === 'default';
    if (decided && (explanation.policy?.id ?? null) !== (answer.policy?.id ?? null)) {
      throw new AppError('internal', 'The explanation does not match the decision.');
    }
    await pause();
    // If no policy was evaluated, none failed to match.
    const passedOver = decided ? explanation.passedOver : [];
    const names = namesOf(targets);
    const decider = policies.find(({ id }) => id === answer.policy?.id);
    const byId = new Map(decider === undefined ? [] : [[decider.id, decider]]);
    const shown: object[] = [];
    for (const { policy, misfit } of passedOver.slice(0, QUESTION_LIMITS.passedOver)) {
      await pause();
      const wants = wantsOf(policy, misfit, (id) => names.get(id));
      shown.push({ ...policyRef(policy, () => true), effect: policy.effect, misfit, wants });
    }
    await pause();
    const json = {
      revision: position.revision,
      data_hash: engine.dataHash,
      engine_hash: engine.engineHash,
      principal: given.principal,
      target: given.target,
      ...objectJson(given.question.object),
      ...answerJson(answer, byId, () => true),
      passed_over: shown,
      passed_over_count: passedOver.length,
    };
    return { position, answer: json };
  }

  for (const name of ['simulate', 'test'] as const) {
    router.post(`/${name}`, (req, res) => answerWork(req, res, (asked) => heavy.answer(name, bytesOf(req, res), asked)));
  }

  router.get('/lint', (req, res) => {
    const { kept } = validate(lintQuery, { ...req.query });
    return answerWork(req, res, (asked) => (kept === 'yes' ? keptLint(asked.by) : heavy.answer('lint', {}, asked)));
  });

  return router;
}

const namesOf = (targets: Moment['targets']): Map<string, string> => new Map(targets.map(({ id, name }) => [id, name]));

/** Returns the value of the policy's member that does not match; null: the member has no value. */
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
