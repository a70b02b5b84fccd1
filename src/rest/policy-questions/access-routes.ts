/** `/api/policies/access`: who can use what. */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import Joi from 'joi';
import { inOrder, type SeenObject, seenObjects } from '../../audit/search/recorded-store.ts';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { inTurnOf } from '../../base/turns/caller-turns.ts';
import { validate } from '../../base/validate.ts';
import { isInHistory } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { NamedObject } from '../../engine/decision.ts';
import type { EngineCache } from '../../engine/engines.ts';
import { whileAllowed } from '../../http/allowed.ts';
import { admissionOf } from '../../http/context.ts';
import { ID_KEY, linkNext, readPage, sendList, streamTo } from '../../http/page.ts';
import type { Catalogue } from '../../mcp/upstream/catalogue.ts';
import {
  type AccessCell,
  type AccessObject,
  type AccessRow,
  accessCells,
  accessCsv,
  accessRows,
  type Holder,
  holderOf,
  holderOfUser,
  namedHolders,
} from '../../policies/access.ts';
import { canBeSent, NOT_SENT } from '../../policies/analysis/names.ts';
import type { Moments } from '../../policies/heavy/moments.ts';
import { earlierSet } from '../../policies/history.ts';
import { POLICY_LIMITS } from '../../policies/schema.ts';
import type { Moment } from '../../policies/sets/candidate-set.ts';
import { type FoundUser, type FoundUsers, reaches } from '../../state/found-users.ts';
import { showRevision } from '../policies/routes.ts';
import { accessMembers, MATRIX_COLUMNS, MATRIX_ROWS, matrixMembers, SEARCHED } from './reports-contract.ts';

export interface AccessRouteParts {
  readonly database: Database;
  readonly moments: Moments;
  readonly engineOf: EngineCache;
  /** Engines of the revisions with which the matrix is compared, so that they do not evict the current one. */
  readonly engineBefore: EngineCache;
  readonly catalogue: Pick<Catalogue, 'ofTarget'>;
  readonly foundUsers: FoundUsers;
}

/** `limit`: how many users one page covers. A page ends with a user, whose id is its key, or with a subject that policies name. */
const PAGE = {
  defaultLimit: 100,
  maxLimit: 1000,
  key: new RegExp(`${ID_KEY.source}|^(?:everyone|(?:role|group):.{1,${POLICY_LIMITS.subjectValue}})$`, 'su'),
  also: Object.keys(accessMembers),
};
/** A page ends after the subject with whom it reaches this number of rows. */
const ROWS_PER_PAGE = 10_000;

/** The questions of one user that are answered at once. */
const AT_ONCE = 2;

/**
 * Runs the handler in a turn of its user, which lasts until the handler ends. The turn of the request ends when its client leaves, so a client
 * that asks and leaves again and again would have any number of answers made at the same time.
 */
const inTurn =
  (handle: (req: Request, res: Response) => Promise<void>): RequestHandler =>
  async (req, res) => {
    let isGone = false;
    res.once('close', () => {
      isGone = true;
    });
    await inTurnOf(`access ${admissionOf(res).principal.sub}`, AT_ONCE, async () => {
      if (!isGone) await handle(req, res);
    });
  };

export function createAccessRoutes(parts: AccessRouteParts): Router {
  const { database, moments, engineOf, engineBefore, catalogue, foundUsers } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/access', inTurn(access));
  router.get('/matrix', inTurn(matrix));

  /**
   * Users are read later than policies and targets. A row is true if the user had this role and these groups while these were in force. Throws
   * AppError `unavailable` if these have changed.
   */
  const whileSame =
    ({ position, targets }: Pick<Moment, 'position' | 'targets'>) =>
    (page: (db: Connection) => Promise<FoundUser[]>): Promise<FoundUser[]> =>
      database.snapshot(async (db) => {
        const [then, some] = await Promise.all([moments.now(db), page(db)]);
        const known = new Map(then.targets.map((target) => [target.id, target]));
        const isKept = ({ id, name, enabled }: Moment['targets'][number]): boolean =>
          known.get(id)?.name === name && known.get(id)?.enabled === enabled;
        const isSame = then.position.revision === position.revision && (await isInHistory(db, position));
        if (!isSame || !targets.every(isKept))
          throw new AppError('unavailable', 'Policies or targets have changed while the answer was made.', { retryAfter: 1 });
        return some;
      });

  async function access(req: Request, res: Response): Promise<void> {
    const page = readPage(req, PAGE);
    const by = admissionOf(res).principal.sub;
    const asked = readAccess(req);
    const whole = asked.format === 'csv';
    if (whole && (req.query['limit'] !== undefined || page.cursor !== null)) {
      throw invalidRequest([
        { path: 'format', message: 'must not be csv together with `limit` or `cursor`: CSV returns all rows' },
      ]);
    }
    const begin = async () => {
      const seen = asked.object === null ? await seenObjects(database.knex) : [];
      const found = await database.snapshot((db) =>
        Promise.all([moments.now(db), asked.who === null ? null : findHolders(db, asked.who, foundUsers)]),
      );
      return [seen, ...found] as const;
    };
    const [seen, { position, policies, targets }, who] = await readInTurn(by, begin);
    showRevision(res, position);
    const objects = objectsOf(asked, targets, await inOrder(seen));
    const engine = await engineOf(policies, position.revision);
    const isAfterUser = page.cursor !== null && ID_KEY.test(page.cursor);
    const named = who ?? (isAfterUser ? [] : following(await namedHolders(policies), page.cursor));
    const used = new Set(objects.map(({ target }) => target.id));
    const read = whileSame({ position, targets: targets.filter(({ id }) => used.has(id)) });

    async function* everyRow(): AsyncGenerator<AccessRow> {
      yield* accessRows(engine, named, objects, by);
      if (who !== null) return;
      for await (const some of foundUsers.parts(read)) yield* accessRows(engine, some.map(holderOfUser), objects, by);
    }
    if (whole) {
      const headers = {
        'Content-Type': 'text/csv; charset=utf-8',
        'Content-Disposition': `attachment; filename="access-${position.revision}.csv"`,
      };
      await streamTo(res, headers, accessCsv(whileAllowed(res, everyRow())));
      return;
    }

    const limit = page.limit ?? PAGE.defaultLimit;
    const rows: AccessRow[] = [];
    /** Adds the rows of these holders until the page is full. Returns how many holders it has covered. */
    const add = async (holders: readonly Holder[]): Promise<number> => {
      let done = 0;
      for (; done < holders.length && rows.length < ROWS_PER_PAGE; done++)
        for await (const row of accessRows(engine, holders.slice(done, done + 1), objects, by)) rows.push(row);
      return done;
    };
    const lastNamed = named[(await add(named)) - 1];
    const isAllNamed = lastNamed === named.at(-1);
    const some: FoundUser[] = [];
    let done = 0;
    if (isAllNamed && who === null) {
      for await (const part of foundUsers.parts(read, isAfterUser ? page.cursor : null, limit + 1)) {
        some.push(...part);
        done += await add(some.slice(done, limit).map(holderOfUser));
        if (done < some.length) break;
      }
    }
    if (!isAllNamed || done < some.length)
      linkNext(req, res, page, some[done - 1]?.user.id ?? (lastNamed === undefined ? page.cursor : keyOf(lastNamed)) ?? '');
    await sendList(res, '', rows, (row) => row, '');
  }

  async function matrix(req: Request, res: Response): Promise<void> {
    const asked = validate(matrixQuery, { ...req.query });
    const by = admissionOf(res).principal.sub;
    const page = readPage(req, { ...MATRIX_PAGE, key: asked.rows === 'users' ? ID_KEY : /^[0-9]{1,6}$/ });
    const limit = page.limit ?? MATRIX_ROWS;
    const skip = Number(asked.skip ?? 0);
    const compared = asked.compare === undefined ? null : Number(asked.compare);
    const isPart = asked.changed === 'yes';
    if (isPart && compared === null) throw invalidRequest([{ path: 'changed', message: 'needs `compare`, too' }]);
    const begin = async () => [await seenObjects(database.knex), await database.snapshot(moments.now)] as const;
    const [seen, moment] = await readInTurn(by, begin);
    const { position, policies, targets } = moment;
    const current = { position, policies: moment.stored };
    const earlier = compared === null ? null : await earlierSet(database, by, compared, current);
    showRevision(res, position);
    const target = targets.find(({ name }) => name === asked.target);
    if (target === undefined) throw invalidRequest([{ path: 'target', message: 'no target has this name' }]);
    const ofType = ({ resource_type }: NamedObject): boolean => (asked.resource_type ?? resource_type) === resource_type;
    const objects: AccessObject[] = [
      { target, object: null },
      ...(await namesOf(target.id, seen, catalogue)).filter(ofType).map((object) => ({ target, object })),
    ];
    const columns = isPart ? objects : objects.slice(skip, skip + MATRIX_COLUMNS);
    const size = isPart ? Math.min(SEARCHED.rows, Math.ceil(SEARCHED.cells / objects.length)) : limit;
    const users: FoundUser[] = [];
    if (asked.rows === 'users') {
      const read = whileSame({ position, targets: [target] });
      for await (const some of foundUsers.parts(read, page.cursor, size + 1)) users.push(...some);
    }
    const first = Number(asked.rows === 'users' ? 0 : (page.cursor ?? 0));
    /** The key of each row is the cursor of the page after it. */
    const found =
      asked.rows === 'users'
        ? users.map((found) => ({ key: found.user.id, holders: reaches(found.reach, target.id) ? [holderOfUser(found)] : [] }))
        : (await namedHolders(policies))
            .slice(first, first + size + 1)
            .map((holder, at) => ({ key: String(first + at + 1), holders: [holder] }));
    const looked = found.slice(0, size).flatMap(({ key, holders }) => holders.map((holder) => ({ key, holder })));
    const holders = looked.map(({ holder }) => holder);
    const cells = await accessCells(await engineOf(policies, position.revision), holders, columns, by);
    const before =
      earlier === null || compared === null
        ? null
        : await accessCells(await engineBefore(earlier, compared), holders, columns, by);
    const all = looked.map(({ key, holder }, at) => ({ key, holder, cells: cells[at] ?? [], before: before?.[at] ?? null }));

    const differing = isPart ? all.filter((row) => row.cells.some((_, at) => differs(row, at))) : all;
    const rows = differing.slice(0, limit);
    const cut = differing.length > limit ? all.findIndex(({ key }) => key === rows.at(-1)?.key) + 1 : null;
    const last = cut === null ? found[size - 1] : all[cut - 1];
    if (last !== undefined && (cut !== null || found.length > size)) linkNext(req, res, page, last.key);
    const kept = columns.flatMap((_, at) => (!isPart || rows.some((row) => differs(row, at)) ? [at] : []));
    const shown = isPart ? kept.slice(skip, skip + MATRIX_COLUMNS) : kept;
    const only = <T>(values: readonly T[]): T[] => shown.flatMap((at) => values.slice(at, at + 1));
    res.json({
      ...{ revision: position.revision, compared, target: target.name, target_enabled: target.enabled },
      names: only(columns).map(({ object }) => ({
        resource_type: object?.resource_type ?? null,
        resource_name: object?.resource_name ?? null,
      })),
      names_count: isPart ? kept.length : objects.length,
      searched: isPart ? { rows: cut ?? all.length, names: objects.length } : null,
      rows: rows.map(({ holder: { subject_type, subject_value, email }, ...row }) => ({
        ...{ subject_type, subject_value, email },
        cells: only(row.cells),
        before: row.before && only(row.before),
      })),
    });
  }

  return router;
}

const keyOf = ({ subject_type, subject_value }: Holder): string =>
  subject_value === null ? subject_type : `${subject_type}:${subject_value}`;

/** The named holders after the one with this key, which policies may no longer name. null: all of them. */
function following(named: readonly Holder[], key: string | null): readonly Holder[] {
  if (key === null) return named;
  const place = (one: string): string => `${['everyone', 'role', 'group'].indexOf(one.split(':', 1)[0] ?? '')} ${one}`;
  return named.filter((holder) => place(keyOf(holder)) > place(key));
}

/** Whether the decision of a cell became different. */
const differs = (
  { cells, before }: { readonly cells: readonly AccessCell[]; readonly before: readonly AccessCell[] | null },
  at: number,
): boolean => before !== null && before[at]?.effect !== cells[at]?.effect;

const MATRIX_PAGE = { defaultLimit: MATRIX_ROWS, maxLimit: MATRIX_ROWS, also: Object.keys(matrixMembers) };

interface MatrixQuery {
  readonly target: string;
  readonly resource_type?: ResourceType;
  readonly rows?: 'named' | 'users';
  readonly skip?: string;
  readonly compare?: string;
  readonly changed?: 'yes' | 'no';
}

const matrixQuery = Joi.object<MatrixQuery>(matrixMembers).unknown().messages({ 'string.pattern.base': 'has an invalid form' });

/** Returns the known names of the target, in the order of type and name. */
async function namesOf(
  target_id: string,
  seen: readonly SeenObject[],
  catalogue: AccessRouteParts['catalogue'],
): Promise<NamedObject[]> {
  const listed = catalogue
    .ofTarget(target_id)
    .map(({ resource_type, resource_name }) => ({ target_id, resource_type, resource_name }));
  const all = await inOrder([...seen.filter((object) => object.target_id === target_id), ...listed]);
  return all.map(({ resource_type, resource_name }) => ({ resource_type, resource_name }));
}

interface AccessQuery {
  readonly format: 'json' | 'csv';
  /** null: every target. */
  readonly target: string | null;
  /** null: the target itself, and every known name. */
  readonly object: NamedObject | null;
  /** In the form of the query; null: all of them. */
  readonly who: string | null;
}

const accessQuery = Joi.object<Record<string, string>>(accessMembers)
  .unknown()
  .and('resource_type', 'resource_name')
  .with('resource_type', 'target')
  .messages({
    'string.pattern.base': 'has an invalid form',
    'object.and': 'must have both resource_type and resource_name, or neither',
    'object.with': 'needs `target`, too',
  });

function readAccess(req: Request): AccessQuery {
  const { format, target, resource_type, resource_name, who = null } = validate(accessQuery, { ...req.query });
  const object =
    resource_type === undefined || resource_name === undefined
      ? null
      : { resource_type: resource_type as ResourceType, resource_name };
  if (object !== null && !canBeSent(object.resource_type, object.resource_name))
    throw invalidRequest([{ path: 'resource_name', message: NOT_SENT }]);
  return { format: format === 'csv' ? 'csv' : 'json', target: target ?? null, object, who };
}

async function findHolders(db: Connection, who: string, foundUsers: FoundUsers): Promise<Holder[]> {
  if (who === 'everyone') return [holderOf('everyone', null)];
  const [kind, value] = [who.slice(0, who.indexOf(':')), who.slice(who.indexOf(':') + 1)];
  if (kind === 'role' || kind === 'group') return [holderOf(kind, value)];
  const found = await foundUsers.find(db, value);
  if (found === null) throw invalidRequest([{ path: 'who', message: 'no user has this id or e-mail' }]);
  return [holderOfUser(found)];
}

function objectsOf(
  { target, object }: AccessQuery,
  targets: Moment['targets'],
  seen: Awaited<ReturnType<typeof seenObjects>>,
): AccessObject[] {
  const wanted = target === null ? targets : targets.filter(({ name }) => name === target);
  if (target !== null && wanted.length === 0) throw invalidRequest([{ path: 'target', message: 'no target has this name' }]);
  const usable = wanted.filter(({ enabled }) => enabled);
  if (object !== null) return usable.map((each) => ({ target: each, object }));
  const named = new Map(usable.map(({ id }): [string, NamedObject[]] => [id, []]));
  for (const { target_id, resource_type, resource_name } of seen) named.get(target_id)?.push({ resource_type, resource_name });
  return usable.flatMap((each) => [null, ...(named.get(each.id) ?? [])].map((one) => ({ target: each, object: one })));
}
