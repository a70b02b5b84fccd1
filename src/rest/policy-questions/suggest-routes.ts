/** `/api/policies/suggest`: policies that would allow denied requests, or only what a role uses. */
import { Router } from 'express';
import { type RecordedDecision, recordedStore, textsIn } from '../../audit/search/recorded-store.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import type { RunSteps } from '../../base/turns/slices.ts';
import { pause } from '../../base/turns/slices.ts';
import { UUID, validate } from '../../base/validate.ts';
import { readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import { createEngine, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import { groupBy } from '../../policies/analysis/requests.ts';
import { DEFAULT_OWNER } from '../../policies/files/file.ts';
import type { HeavyWork } from '../../policies/heavy/heavy.ts';
import type { HeavyAnswer } from '../../policies/heavy/jobs.ts';
import type { Moments } from '../../policies/heavy/moments.ts';
import { createListNames, inSpareTime, type ReplayRange, readRange, replay, takePage } from '../../policies/replay/replay.ts';
import { reportOf, tallyPartsOf } from '../../policies/replay/report.ts';
import { timestamp } from '../../policies/schema.ts';
import type { Moment } from '../../policies/sets/candidate-set.ts';
import { type SuggestBody, suggestBody } from '../../policies/suggest/bodies.ts';
import type { Suggestion } from '../../policies/suggest/job.ts';
import {
  type Collector,
  createDeniedNeeds,
  createSameCheck,
  createUsedNeeds,
  NEED_LIMITS,
  type Need,
  type NeedBook,
  objectKey,
} from '../../policies/suggest/needs.ts';
import { withheld } from '../../policies/suggest/proof.ts';
import { allowsRole, type GrantOptions, withoutRole } from '../../policies/suggest/proposal.ts';
import {
  addHolder,
  type Holders,
  holdersOf,
  leftOutJson,
  removeHolder,
  roleJson,
  type SuggestedJson,
  suggestedJson,
} from '../../policies/suggest/report.ts';
import type { FoundUsers } from '../../state/found-users.ts';
import { findUser } from '../../users/user-store.ts';
import { usersSince } from '../../users/users-since.ts';
import { type Asking, answerWork } from '../policies/heavy-answer.ts';
import { showRevision } from '../policies/routes.ts';
import { type LogReads, rangeOf, sayingHowFar } from './log-reads.ts';

export interface SuggestRouteParts {
  readonly database: Database;
  readonly module: PolicyModule;
  readonly moments: Pick<Moments, 'now'>;
  readonly foundUsers: Pick<FoundUsers, 'parts' | 'findAll'>;
  readonly engineOf: EngineCache;
  readonly heavy: HeavyWork;
  readonly logReads: LogReads;
  readonly now: () => number;
  /** The maximum number of decisions of one suggestion. */
  readonly maxDecisions?: number;
}

const MAX_DECISIONS = 2_000_000;

export function createSuggestRoutes(parts: SuggestRouteParts): Router {
  const { database, module, moments, engineOf, heavy, logReads, foundUsers, now, maxDecisions = MAX_DECISIONS } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  router.post('/suggest', async (req, res) => {
    const body = validate(suggestBody, req.body);
    const range = rangeOf(body.from, body.to, now());
    await logReads(req, res, () =>
      answerWork(req, res, async (asked) => {
        const moment = await database.snapshot(moments.now);
        showRevision(res, moment.position);
        const role = body.least_privilege;
        return role === undefined ? forDenials(body, moment, range, asked) : forRole(role, body, moment, range, asked);
      }),
    );
  });

  const targetsOf = ({ targets }: Moment): Set<string> => new Set(targets.map(({ id }) => id));
  const inSpareTimeOf =
    (asked: Asking): RunSteps =>
    (steps) =>
      inSpareTime(steps, asked);

  /** Throws AppError `invalid_request` if the range has too many decisions. */
  async function read(range: ReplayRange, to: Collector, lists: boolean, asked: Asking): Promise<void> {
    const namesOf = createListNames(database.knex);
    let rows = 0;
    const take = async (page: Parameters<typeof takePage>[1]): Promise<void> => {
      rows += page.decisions.length + page.damaged;
      if (rows > maxDecisions) {
        throw invalidRequest([{ path: 'from', message: `leads to more than ${maxDecisions} decisions: choose a shorter time` }]);
      }
      await takePage(to, lists ? page : { ...page, lists: [] }, namesOf, asked);
    };
    await readRange(database.knex, range, take, sayingHowFar(asked.onProgress), asked.signal);
  }

  async function forDenials(body: SuggestBody, moment: Moment, range: ReplayRange, asked: Asking): Promise<HeavyAnswer> {
    const { decision_id, over_denies = false, min_count = 1, owner = DEFAULT_OWNER } = body;
    const { subject_type, subjectOf } = subjectAsked(body.for);
    const engineNow = await engineOf(moment.stored, moment.position.revision);
    const one = decision_id === undefined ? null : await findDecision(database.knex, decision_id);
    const isAskedFor = one === null ? await filterOf(body.denied ?? {}, moment) : () => true;
    const denials = createDeniedNeeds({ now: engineNow, targets: targetsOf(moment), isAskedFor, subjectOf });
    if (one === null) await read(range, denials, false, asked);
    else for (const _ of denials.take({ decisions: [one], lists: [], damaged: 0 }));
    const { book } = denials;
    const needs = book.all();
    const options: GrantOptions = { subject_type, overDenies: over_denies, minCount: min_count };
    const task = { asked: options, owner, window: range };
    const { suggestion, candidate } = await heavy.suggest(task, moment, needs, asked);

    const report = suggestion.suggested.length === 0 ? null : await replayed();
    return answerOf(moment, range, suggestion, needs, book, {
      ...denials.counts(),
      ...{ owner, replay: report?.replay ?? null, beyond: report?.beyond ?? [], role: null },
    });

    async function replayed() {
      const after = { ...moment, policies: candidate, changes: suggestion.changes };
      const engine = await createEngine({ module, policies: candidate, revision: 0 }, inSpareTimeOf(asked));
      const tallyParts = { candidate: engine, now: engineNow, ...tallyPartsOf(after) };
      const tallied = await replay(database.knex, range, tallyParts, sayingHowFar(asked.onProgress), asked);
      if (tallied.flips.some(({ now: was, would_be }) => was === 'allow' && would_be.effect === 'deny')) {
        throw withheld('a recorded request would be denied');
      }
      // Flips that the current policies make already are not an effect of the suggestion.
      const flips = tallied.flips.filter(({ now: was, would_be }) => was !== would_be.effect);
      const meant = groupBy(
        suggestion.suggested.flatMap(({ needs: met }) => met.flatMap((at) => needs[at] ?? [])),
        objectKey,
      );
      const reported = await reportOf(database.knex, { ...tallied, flips }, after);
      const beyond = reported.flips.flatMap(({ principal, target, resource_type, resource_name }, i) => {
        const asked = meant.get(objectKey({ target_id: target.id, resource_type, resource_name })) ?? [];
        return asked.some((need) => book.usersOf(need).has(principal.sub)) ? [] : [i];
      });
      return { replay: { ...shown(moment, range), ...reported }, beyond };
    }
  }

  async function forRole(
    role: string,
    body: SuggestBody,
    moment: Moment,
    range: ReplayRange,
    asked: Asking,
  ): Promise<HeavyAnswer> {
    const { min_count: minCount = 1, owner = DEFAULT_OWNER } = body;
    const { stored } = moment;
    const targets = targetsOf(moment);
    const engineNow = await engineOf(stored, moment.position.revision);
    const policies = withoutRole(stored, { role, owner });
    const without = await createEngine({ module, policies, revision: 0 }, inSpareTimeOf(asked));
    const uses = createUsedNeeds({ role, now: engineNow, without, targets });
    await read(range, uses, true, asked);
    if (uses.book.unlisted() > 0) {
      throw new AppError(
        'too_large',
        `Callers with the role ${JSON.stringify(role)} used more different objects than a suggestion can list. Choose a shorter time.`,
      );
    }
    const needs = uses.book.all();
    const task = { asked: { role, minCount }, owner, window: range };
    const { suggestion, candidate } = await heavy.suggest(task, moment, needs, asked);

    const lost = new Set(suggestion.leftOut.flatMap(({ need }) => (needs[need] ? [objectKey(needs[need])] : [])));
    const engine = await createEngine({ module, policies: candidate, revision: 0 }, inSpareTimeOf(asked));
    const mayLose = (record: RecordedDecision): boolean => lost.has(objectKey({ ...record, target_id: record.target_id ?? '' }));
    const check = createSameCheck({ role, now: engineNow, candidate: engine, targets, mayLose });
    await read(range, check, false, asked);
    const counts = check.counts();
    if (counts.flipped > 0) {
      throw new AppError('unavailable', 'Requests were recorded while the suggestion was made. Repeat the request.');
    }
    return answerOf(moment, range, suggestion, needs, uses.book, {
      ...uses.counts(),
      ...{ owner, replay: null, beyond: [] },
      role: roleJson({
        ...{ role, moment, suggestion, needs, counts, listed: uses.listed.all(), others: uses.others() },
        allows: (policy) => allowsRole(policy, role),
      }),
    });
  }

  async function answerOf(
    moment: Moment,
    range: ReplayRange,
    suggestion: Suggestion,
    needs: readonly Need[],
    book: NeedBook,
    more: object,
  ): Promise<HeavyAnswer> {
    const { verdict, files, prune, adopt, changesJson, suggested, leftOut } = suggestion;
    // Each request can have 1,000 users.
    let askers: Set<string> | null = new Set();
    for (const need of suggested.flatMap(({ needs: met }) => met.flatMap((at) => needs[at] ?? []))) {
      await pause();
      const users = book.usersOf(need);
      if (users.size >= NEED_LIMITS.users) askers = null;
      for (const user of users) askers?.add(user);
    }
    const toJson = suggestedJson(moment, needs, book, await holders(suggested, askers));
    const suggestedJsons: SuggestedJson[] = [];
    for (const each of suggested) {
      await pause();
      suggestedJsons.push(toJson(each));
    }
    const json = {
      ...shown(moment, range),
      ...{ ...more, unlisted: book.unlisted(), prune, adopt, files, verdict, changes: changesJson },
      suggested: suggestedJsons,
      left_out: leftOutJson(moment, needs, leftOut),
      left_out_count: leftOut.length,
    };
    return { position: moment.position, json: Buffer.from(JSON.stringify(json)) };
  }

  async function holders(suggested: Suggestion['suggested'], asked: ReadonlySet<string> | null): Promise<Map<string, Holders>> {
    const found = holdersOf(suggested);
    if (found.size === 0) return found;
    const began = await readPosition(database.knex);
    for await (const some of foundUsers.parts((page) => page(database.knex))) {
      for (const each of some) addHolder(found, each, asked);
    }
    // While the parts were read, a group can go from one user to another.
    const { ids, users } = await usersSince(database, began, foundUsers.findAll);
    for (const id of ids) removeHolder(found, id);
    for (const each of users) addHolder(found, each, asked);
    return found;
  }

  /** Throws AppError `invalid_request`. */
  async function filterOf({ target, user, role }: NonNullable<SuggestBody['denied']>, { targets }: Moment) {
    const wanted = target === undefined ? undefined : targets.find(({ name }) => name === target);
    if (target !== undefined && wanted === undefined) {
      throw invalidRequest([{ path: 'denied.target', message: 'no target has this name' }]);
    }
    // The log also has users who no longer exist.
    const userId = user === undefined || UUID.test(user) ? user : (await findUser(database.knex, user))?.id;
    if (user !== undefined && userId === undefined) {
      throw invalidRequest([{ path: 'denied.user', message: 'no user has this id or e-mail' }]);
    }
    return ({ effect, target_id, user_id, user_role }: RecordedDecision): boolean =>
      effect === 'deny' &&
      (wanted === undefined || target_id === wanted.id) &&
      (userId === undefined || user_id === userId) &&
      (role === undefined || user_role === role);
  }

  return router;
}

const shown = ({ position }: Moment, { from, to }: ReplayRange) => ({
  ...{ revision: position.revision, from: timestamp(from), to: timestamp(to) },
});

async function findDecision(db: Connection, id: string): Promise<RecordedDecision> {
  const [found] = await recordedStore(db).find([id]);
  if (found === undefined) throw new AppError('not_found', 'No decision has this id.');
  return found;
}

/** Returns the kind of subject that gets access, and which caller has it. */
function subjectAsked(
  given = 'user',
): Pick<GrantOptions, 'subject_type'> & { subjectOf(record: RecordedDecision): string | null } {
  if (given === 'user') return { subject_type: 'user', subjectOf: ({ user_id }) => user_id };
  if (given === 'role') return { subject_type: 'role', subjectOf: ({ user_role }) => user_role };
  const group = given.slice('group:'.length);
  return {
    subject_type: 'group',
    subjectOf: ({ user_groups }) => (textsIn(user_groups)?.includes(group) ? group : null),
  };
}
