/**
 * Evaluates drafts alongside the live set. The shadow reads each recorded decision from the log and evaluates it with the draft.
 * So requests wait for nothing. No decision of any replica is left out or counted twice, even if a process is killed in between.
 */
import { recordedStore } from '../../audit/search/recorded-store.ts';
import type { Log } from '../../base/log.ts';
import { changedBetween, type ObjectType, type Position, readPosition } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import { createEngineCache } from '../../engine/engines.ts';
import { createListNames, inSpareTime, takePage } from '../replay/replay.ts';
import { tallyPartsOf } from '../replay/report.ts';
import { createTally, NOTHING_TALLIED, type TallyParts } from '../replay/tally.ts';
import type { SetSource } from '../sets/bodies.ts';
import type { Moment } from '../sets/candidate-set.ts';
import { cannotBeApplied } from '../sets/planning.ts';
import type { Shadow, ShadowProgress } from './draft-store.ts';
import { shadowStore } from './draft-store.ts';

export interface ShadowParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: { readonly of: (source: SetSource, asked: { readonly by: string }) => Promise<Moment> };
  readonly replicaId: string;
  /** Called with the number of decisions, or names in lists, that the draft would have decided differently. */
  readonly diverged: (draft: string, effect: 'allow' | 'deny', count: number) => void;
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
}

const EVERY_MS = 2_000;
/** If a replica ends, another one takes over its drafts after this time. */
const HOLD_MS = 30_000;
/** The number of records of a chain that are read at once. */
const BATCH = 200;
/** The flips are limited, because every new flip rewrites them all. */
const FLIPS_KEPT = { all: 500, perUser: 50 };

/** Changes of these objects leave the set of a draft as it is. Anybody can make some of them. */
const WITHOUT_EFFECT: ReadonlySet<string> = new Set<ObjectType>([
  ...(['user', 'provider', 'directory_group', 'right'] as const),
  ...(['token', 'key', 'session', 'browser_session', 'credential', 'connection', 'grant', 'client'] as const),
]);

interface Candidate {
  readonly position: Position;
  /** Why the draft cannot be applied, or what is needed to decide with it. */
  readonly set: { readonly problem: string } | Omit<TallyParts, 'maxFlips'>;
}

export function createShadows({ database, module, moments, replicaId, diverged, log, now }: ShadowParts) {
  const store = shadowStore(database.knex);
  const candidates = new Map<string, Candidate>();
  const namesOf = createListNames(database.knex);
  const stopping = new AbortController();

  /** The live set is the same for all drafts. */
  const liveEngine = createEngineCache(module);

  /** Returns the previous candidate until something changes that it may depend on. */
  async function candidateFor(draft: string, position: Position): Promise<Candidate['set']> {
    const known = candidates.get(draft);
    const changes = known === undefined ? null : await changedBetween(database.knex, known.position, position);
    const isSame = changes?.every(({ object_type }) => WITHOUT_EFFECT.has(object_type)) === true;
    const set = known !== undefined && isSame ? known.set : await makeCandidate(draft);
    candidates.set(draft, { position, set });
    return set;
  }

  async function makeCandidate(draft: string): Promise<Candidate['set']> {
    try {
      const moment = await moments.of({ draft }, { by: 'shadow' });
      const asked = { by: 'shadow', signal: stopping.signal };
      const candidate = await createEngine({ module, policies: moment.policies, revision: 0 }, (steps) =>
        inSpareTime(steps, asked),
      );
      return { candidate, now: await liveEngine(moment.stored, 0), ...tallyPartsOf(moment) };
    } catch (error) {
      if (cannotBeApplied(error)) return { problem: error.message };
      throw error;
    }
  }

  async function save(
    shadow: Shadow,
    progress: Omit<ShadowProgress, 'updated_at'>,
    flips: Shadow['flips'] | null,
  ): Promise<boolean> {
    return store.save(shadow, { ...progress, updated_at: now() }, flips);
  }

  async function followOne(draft: string): Promise<void> {
    while (!stopping.signal.aborted && (await store.hold(draft, replicaId, now(), now() + HOLD_MS))) {
      const shadow = await store.find(draft);
      if (shadow === null) break;
      const { progress, flips } = shadow;
      const set = await candidateFor(draft, await readPosition(database.knex));
      if ('problem' in set) {
        if (progress.problem !== set.problem) await save(shadow, { ...progress, problem: set.problem }, null);
        return;
      }
      const { positions, more, ...page } = await database.snapshot((db) =>
        recordedStore(db).following(progress.positions, BATCH),
      );
      const isNew = Object.entries(positions).some(([chain, seq]) => seq !== (progress.positions[chain] ?? 0));
      if (!isNew && progress.problem === null) return;
      const tally = createTally({ ...set, maxFlips: FLIPS_KEPT }, { ...progress, flips });
      await takePage(tally, page, namesOf, { by: 'shadow', signal: stopping.signal });
      const { counts, exercised, flips: after } = tally.state();
      const grants = counts.grants - progress.counts.grants;
      const refuses = counts.refuses - progress.counts.refuses + counts.lists.hides - progress.counts.lists.hides;
      const moved = grants + refuses > 0;
      if (!(await save(shadow, { counts, exercised, positions, problem: null }, moved ? after : null))) return;
      if (grants > 0) diverged(draft, 'allow', grants);
      if (refuses > 0) diverged(draft, 'deny', refuses);
      if (!more) return;
    }
    candidates.delete(draft);
  }

  async function follow(): Promise<void> {
    const names = await store.names();
    for (const draft of candidates.keys()) if (!names.includes(draft)) candidates.delete(draft);
    for (const draft of names) {
      try {
        await followOne(draft);
      } catch (err) {
        if (!stopping.signal.aborted) log.warn({ err, draft }, 'evaluating recorded decisions with a draft failed, retrying');
      }
    }
  }

  let following: Promise<void> = Promise.resolve();
  const run = (): Promise<void> => {
    following = following.catch(() => {}).then(follow);
    return following;
  };
  let timer: NodeJS.Timeout;
  const next = (): void => {
    timer = setTimeout(async () => {
      await run().catch((err: unknown) => {
        if (!stopping.signal.aborted) log.warn({ err }, 'reading the shadowed drafts failed, retrying');
      });
      if (!stopping.signal.aborted) next();
    }, EVERY_MS).unref();
  };
  next();

  return {
    /** Counts the decisions recorded so far, for each draft that no other replica counts for. */
    follow: run,
    async stop(): Promise<void> {
      stopping.abort();
      clearTimeout(timer);
      await following.catch(() => {});
    },
  };
}

/** Returns a shadow that counts everything recorded from now on. Call it in the transaction that begins the shadow. */
export async function newShadow(
  db: Parameters<typeof recordedStore>[0],
  draft: string,
  now: number,
): Promise<Omit<Shadow, 'version'>> {
  const { counts, exercised, flips } = NOTHING_TALLIED;
  const positions = await recordedStore(db).positions();
  return { draft, since: now, progress: { counts, exercised, positions, updated_at: now, problem: null }, flips };
}
