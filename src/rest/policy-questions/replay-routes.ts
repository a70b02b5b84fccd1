/** `/api/policies/replay`: evaluates recorded decisions with a different policy set. */
import { Router } from 'express';
import type { RunSteps } from '../../base/turns/slices.ts';
import { validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import type { HeavyAnswer } from '../../policies/heavy/jobs.ts';
import type { Moments } from '../../policies/heavy/moments.ts';
import { inSpareTime, type ReplayRange, replay } from '../../policies/replay/replay.ts';
import { reportOf, tallyPartsOf } from '../../policies/replay/report.ts';
import { timestamp } from '../../policies/schema.ts';
import type { Moment } from '../../policies/sets/candidate-set.ts';
import { type Asking, answerWork } from '../policies/heavy-answer.ts';
import { showRevision } from '../policies/routes.ts';
import { type LogReads, rangeOf, sayingHowFar } from './log-reads.ts';
import { replayBody } from './replay-contract.ts';

export interface ReplayRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: Pick<Moments, 'now' | 'of'>;
  readonly engineOf: EngineCache;
  readonly logReads: LogReads;
  readonly now: () => number;
}

export function createReplayRoutes({ database, module, moments, engineOf, logReads, now }: ReplayRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/replay', async (req, res) => {
    const { from, to, ...source } = validate(replayBody, req.body);
    const range = rangeOf(from, to, now());
    await logReads(req, res, () =>
      answerWork(req, res, async (asked) => {
        const moment = await moments.of(source, asked);
        showRevision(res, moment.position);
        return run(moment, range, asked);
      }),
    );
  });

  async function run(moment: Moment, range: ReplayRange, asked: Asking): Promise<HeavyAnswer> {
    const { policies, stored, changes, position } = moment;
    const engineNow = await engineOf(stored, position.revision);
    const spare: RunSteps = (steps) => inSpareTime(steps, asked);
    const candidate = changes.length === 0 ? engineNow : await createEngine({ module, policies, revision: 0 }, spare);
    const parts = { candidate, now: engineNow, ...tallyPartsOf(moment) };
    const say = sayingHowFar(asked.onProgress);
    const tallied = await replay(database.knex, range, parts, say, asked);
    const report = {
      ...{ revision: position.revision, from: timestamp(range.from), to: timestamp(range.to) },
      ...(await reportOf(database.knex, tallied, moment)),
    };
    return { position, json: Buffer.from(JSON.stringify(report)) };
  }

  return router;
}
