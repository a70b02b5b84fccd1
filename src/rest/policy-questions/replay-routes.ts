/**
 * `/api/policies/replay`: evaluates recorded decisions with a different policy set. Mounted behind the authentication of
 * administrators.
 */
import { type Response, Router } from 'express';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import { admissionOf } from '../../http/context.ts';
import { type ReplayProgress, type ReplayRange, replay } from '../../policies/replay/replay.ts';
import { reportOf, tallyPartsOf } from '../../policies/replay/report.ts';
import { timestamp } from '../../policies/schema.ts';
import type { Moment, Moments } from '../../policies/sets/candidate-set.ts';
import { showRevision } from '../policies/routes.ts';
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
const NDJSON = 'application/x-ndjson';

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
    const leaving = new AbortController();
    res.once('close', () => leaving.abort(new AppError('unavailable', 'The client has disconnected.')));
    try {
      const moment = await moments.of(source, admissionOf(res).principal.sub);
      showRevision(res, moment.position);
      const work = (said: (progress: ReplayProgress) => void) => run(moment, range, said, leaving.signal);
      if (req.accepts(['json', NDJSON]) === NDJSON) await inLines(res, work);
      else res.json(await work(() => {}));
    } finally {
      running--;
    }
  });

  async function run(moment: Moment, range: ReplayRange, said: (progress: ReplayProgress) => void, signal: AbortSignal) {
    const { policies, stored, changes, position } = moment;
    const engineNow = await engineOf(stored, position.revision);
    const candidate = changes.length === 0 ? engineNow : await createEngine({ module, policies, revision: 0 });
    const parts = { candidate, now: engineNow, ...tallyPartsOf(moment) };
    const tallied = await replay(database.knex, range, parts, said, signal);
    return {
      ...{ revision: position.revision, from: timestamp(range.from), to: timestamp(range.to) },
      ...(await reportOf(database.knex, tallied, moment)),
    };
  }

  return router;
}

/**
 * Writes a line for the progress now and then, and one for the result. If the line for the result is missing, the replay has
 * failed.
 */
async function inLines<T>(res: Response, work: (said: (progress: ReplayProgress) => void) => Promise<T>): Promise<void> {
  res.setHeader('Content-Type', NDJSON);
  let said = performance.now();
  const result = await work(({ done, at }) => {
    if (performance.now() - said < PROGRESS_EVERY_MS) return;
    said = performance.now();
    res.write(`${JSON.stringify({ progress: { done, at: timestamp(at) } })}\n`);
  });
  res.end(`${JSON.stringify({ result })}\n`);
}

/** Throws AppError `invalid_request`. */
function rangeOf(from: number, to: number | undefined, now: number): ReplayRange {
  const range = { from, to: Math.min(to ?? now, now) };
  if (range.from < range.to) return range;
  throw invalidRequest([{ path: 'from', message: 'must be before `to`, and in the past' }]);
}
