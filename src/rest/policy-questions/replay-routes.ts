/** `/api/policies/replay`: evaluates recorded decisions with a different policy set. */
import { Router } from 'express';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import type { HeavyAnswer } from '../../policies/heavy/jobs.ts';
import { type ReplayProgress, type ReplayRange, replay } from '../../policies/replay/replay.ts';
import { reportOf, tallyPartsOf } from '../../policies/replay/report.ts';
import { timestamp } from '../../policies/schema.ts';
import type { Moment, Moments } from '../../policies/sets/candidate-set.ts';
import { showRevision } from '../policies/routes.ts';
import { type Asking, answerWork } from '../policy-sets/heavy-answer.ts';
import { replayBody } from './replay-contract.ts';

export interface ReplayRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: Moments;
  readonly engineOf: EngineCache;
  readonly now: () => number;
}

/** The number of replays at once: each uses one core while it runs. */
const AT_ONCE = 2;
const PROGRESS_EVERY_MS = 500;

export function createReplayRoutes({ database, module, moments, engineOf, now }: ReplayRouteParts): Router {
  const router = Router({ caseSensitive: true, strict: true });
  let running = 0;

  router.post('/replay', async (req, res) => {
    const { from, to, ...source } = validate(replayBody, req.body);
    const range = rangeOf(from, to, now());
    if (running >= AT_ONCE) {
      throw new AppError(
        'too_many_requests',
        `This replica already runs ${AT_ONCE} replays, which is the limit. Try again later.`,
        { retryAfter: 10 },
      );
    }
    running++;
    try {
      await answerWork(req, res, async (asked) => {
        const moment = await moments.of(source, asked.by);
        showRevision(res, moment.position);
        return run(moment, range, asked);
      });
    } finally {
      running--;
    }
  });

  async function run(moment: Moment, range: ReplayRange, { signal, onProgress }: Asking): Promise<HeavyAnswer> {
    const { policies, stored, changes, position } = moment;
    const engineNow = await engineOf(stored, position.revision);
    const candidate = changes.length === 0 ? engineNow : await createEngine({ module, policies, revision: 0 });
    const parts = { candidate, now: engineNow, ...tallyPartsOf(moment) };
    let said = performance.now();
    const say = ({ done, at }: ReplayProgress): void => {
      if (performance.now() - said < PROGRESS_EVERY_MS) return;
      said = performance.now();
      onProgress?.({ done, at: timestamp(at) });
    };
    const tallied = await replay(database.knex, range, parts, say, signal);
    const report = {
      ...{ revision: position.revision, from: timestamp(range.from), to: timestamp(range.to) },
      ...(await reportOf(database.knex, tallied, moment)),
    };
    return { position, json: Buffer.from(JSON.stringify(report)) };
  }

  return router;
}

/** Throws AppError `invalid_request`. */
function rangeOf(from: number, to: number | undefined, now: number): ReplayRange {
  const range = { from, to: Math.min(to ?? now, now) };
  if (range.from < range.to) return range;
  throw invalidRequest([{ path: 'from', message: 'must be before `to`, and in the past' }]);
}
