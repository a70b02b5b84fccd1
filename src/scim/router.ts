/** The routes under `/scim/v2/<provider>`. */
import { type Request, type Response, Router } from 'express';
import { AppError } from '../base/errors.ts';
import { joinInSlices } from '../base/turns/slices.ts';
import { UUID } from '../base/validate.ts';
import type { Problem } from '../http/problem.ts';
import { endAnswer } from '../http/refused-body.ts';
import { type DirectoryGroup, type DirectoryMember, type DirectoryUser, directoryStore } from '../providers/directory-store.ts';
import { conditionOf } from './conditions.ts';
import { errorDocument, invalid } from './errors.ts';
import { groupJson } from './group.ts';
import { type DirectoryGroups, noGroup } from './groups.ts';
import { type DirectoryPeople, noUser } from './people.ts';
import { createRequests, type RequestParts } from './requests.ts';
import { MOST_RESULTS, resourceTypes, schemas, serviceProviderConfig } from './schemas.ts';
import type { Session } from './session.ts';
import { baseUrl } from './tokens.ts';
import { userResource, versionOf } from './user.ts';

export interface ScimParts extends RequestParts {
  readonly people: DirectoryPeople;
  readonly groups: DirectoryGroups;
  readonly publicUrl: string;
}

const MEDIA_TYPE = 'application/scim+json';
const LIST_SCHEMA = 'urn:ietf:params:scim:api:messages:2.0:ListResponse';
/** Members that are read at once. */
const MEMBERS_AT_ONCE = 1_000;
/** A page of groups ends before it has more members than this; it has at least one group. */
const MOST_MEMBERS = 20_000;

export function createScimRouter(parts: ScimParts): Router {
  const { database, people, groups, publicUrl } = parts;
  const handling = createRequests(parts);
  const base = ({ provider }: Session): string => baseUrl(publicUrl, provider.name);

  async function membersOf(id: string): Promise<DirectoryMember[]> {
    const all: DirectoryMember[] = [];
    for (let after: string | null = null; ; ) {
      const some: DirectoryMember[] = await directoryStore(database.knex).members.named(id, MEMBERS_AT_ONCE, after);
      all.push(...some);
      if (some.length < MEMBERS_AT_ONCE) return all;
      after = some.at(-1)?.user_id ?? null;
    }
  }

  function sendUser(req: Request, res: Response, status: number, row: DirectoryUser, session: Session): void {
    const resource = userResource(row, base(session));
    if (status === 201) res.setHeader('Location', resource.meta.location);
    res.setHeader('ETag', versionOf(row));
    send(res, status, JSON.stringify(selected(readWanted(req), resource)));
  }

  async function sendGroup(req: Request, res: Response, status: number, group: DirectoryGroup, session: Session): Promise<void> {
    if (status === 201) res.setHeader('Location', `${base(session)}/Groups/${group.id}`);
    res.setHeader('ETag', versionOf(group));
    const members = readWanted(req)('members') ? await membersOf(group.id) : null;
    send(res, status, await joinInSlices(groupJson(group, members, base(session))));
  }

  const router = Router({ caseSensitive: true, strict: true });
  const at = (path: string): string => `/v2/:provider${path}`;

  router.get(
    at('/ServiceProviderConfig'),
    handling('nothing', async (_req, res, session) => send(res, 200, JSON.stringify(serviceProviderConfig(base(session))))),
  );
  const described = [
    ['/ResourceTypes', resourceTypes],
    ['/Schemas', schemas],
  ] as const;
  for (const [path, all] of described) {
    router.get(
      at(path),
      handling('nothing', async (_req, res, session) => {
        const resources = all(base(session));
        send(
          res,
          200,
          list(
            resources.map((one) => JSON.stringify(one)),
            resources.length,
            1,
          ).join(''),
        );
      }),
    );
    router.get(
      at(`${path}/:id`),
      handling('nothing', async (req, res, session) => {
        const one = all(base(session)).find(({ id }) => id === req.params['id']);
        if (one === undefined) throw new AppError('not_found', `There is no resource with this id under ${path}.`);
        send(res, 200, JSON.stringify(one));
      }),
    );
  }

  router.get(
    at('/Users'),
    handling('nothing', async (req, res, session) => {
      const { condition, startIndex, count } = readQuery(req, 'users');
      const { users } = directoryStore(database.knex);
      const total = await users.count(session.provider.id, condition);
      const rows = count === 0 ? [] : await users.page(session.provider.id, condition, { offset: startIndex - 1, limit: count });
      const isWanted = readWanted(req);
      const texts = rows.map((row) => JSON.stringify(selected(isWanted, userResource(row, base(session)))));
      send(res, 200, await joinInSlices(list(texts, total, startIndex)));
    }),
  );
  router.post(
    at('/Users'),
    handling('body', async (req, res, session, body) => sendUser(req, res, 201, await people.create(session, body), session)),
  );
  router.get(
    at('/Users/:id'),
    handling('nothing', async (req, res, session) => {
      const row = await directoryStore(database.knex).users.find(session.provider.id, idIn(req, noUser));
      if (row === null) throw noUser();
      if (isUnchanged(req, res, row)) return;
      sendUser(req, res, 200, row, session);
    }),
  );
  router.put(
    at('/Users/:id'),
    handling('body', async (req, res, session, body) => {
      const row = await people.replace(session, idIn(req, noUser), body, req.get('If-Match'));
      sendUser(req, res, 200, row, session);
    }),
  );
  router.patch(
    at('/Users/:id'),
    handling('body', async (req, res, session, body) => {
      const row = await people.patch(session, idIn(req, noUser), body, req.get('If-Match'));
      sendUser(req, res, 200, row, session);
    }),
  );
  router.delete(
    at('/Users/:id'),
    handling('nothing', async (req, res, session) => {
      await people.remove(session, idIn(req, noUser), req.get('If-Match'));
      res.status(204).end();
    }),
  );

  router.get(
    at('/Groups'),
    handling('nothing', async (req, res, session) => {
      const { condition, startIndex, count } = readQuery(req, 'groups');
      const store = directoryStore(database.knex);
      const total = await store.groups.count(session.provider.id, condition);
      const page =
        count === 0 ? [] : await store.groups.page(session.provider.id, condition, { offset: startIndex - 1, limit: count });
      const wantsMembers = readWanted(req)('members');
      const texts: string[] = [];
      let members = 0;
      for (const group of page) {
        const own = wantsMembers ? await membersOf(group.id) : null;
        members += own?.length ?? 0;
        if (texts.length > 0 && members > MOST_MEMBERS) break;
        texts.push((await joinInSlices(groupJson(group, own, base(session)))).toString());
      }
      send(res, 200, await joinInSlices(list(texts, total, startIndex)));
    }),
  );
  router.post(
    at('/Groups'),
    handling('body', async (req, res, session, body) => sendGroup(req, res, 201, await groups.create(session, body), session)),
  );
  router.get(
    at('/Groups/:id'),
    handling('nothing', async (req, res, session) => {
      const group = await directoryStore(database.knex).groups.find(session.provider.id, idIn(req, noGroup));
      if (group === null) throw noGroup();
      if (isUnchanged(req, res, group)) return;
      await sendGroup(req, res, 200, group, session);
    }),
  );
  router.put(
    at('/Groups/:id'),
    handling('body', async (req, res, session, body) => {
      const group = await groups.replace(session, idIn(req, noGroup), body, req.get('If-Match'));
      await sendGroup(req, res, 200, group, session);
    }),
  );
  router.patch(
    at('/Groups/:id'),
    handling('body', async (req, res, session, body) => {
      const group = await groups.patch(session, idIn(req, noGroup), body, req.get('If-Match'));
      // The group may have thousands of members, and directories do not read them here.
      res.status(204).setHeader('ETag', versionOf(group)).end();
    }),
  );
  router.delete(
    at('/Groups/:id'),
    handling('nothing', async (req, res, session) => {
      await groups.remove(session, idIn(req, noGroup), req.get('If-Match'));
      res.status(204).end();
    }),
  );

  const unsupported = (what: string) =>
    handling('body', async () => {
      throw new AppError('not_supported', `${what} is not supported. /ServiceProviderConfig lists what is.`);
    });
  router.post(at('/Bulk'), unsupported('Bulk'));
  router.post(at('/.search'), unsupported('Search with POST'));
  router.post(at('/Users/.search'), unsupported('Search with POST'));
  router.post(at('/Groups/.search'), unsupported('Search with POST'));
  router.get(
    at('/Me'),
    handling('nothing', async () => {
      throw new AppError('not_supported', '/Me is not supported: the token belongs to a directory, and not to a user.');
    }),
  );
  return router;
}

/** Answers with a problem in the form of SCIM. `error`: what was thrown. */
export function refuseScim(res: Response, problem: Problem, error: unknown): void {
  if (res.headersSent) {
    res.destroy();
    return;
  }
  for (const [name, value] of Object.entries(problem.headers)) res.setHeader(name, value);
  res.setHeader('Content-Type', MEDIA_TYPE);
  if (problem.status === 401) res.setHeader('WWW-Authenticate', 'Bearer realm="scim"');
  res.statusCode = problem.status;
  endAnswer(res, JSON.stringify(errorDocument(problem, error)));
}

function send(res: Response, status: number, content: string | Buffer): void {
  res.status(status).setHeader('Content-Type', MEDIA_TYPE).setHeader('Cache-Control', 'no-store');
  res.end(content);
}

function idIn(req: Request, missing: () => AppError): string {
  const id = String(req.params['id']);
  if (!UUID.test(id)) throw missing();
  return id;
}

function isUnchanged(req: Request, res: Response, row: { readonly version: number }): boolean {
  const known = req.get('If-None-Match')?.split(',') ?? [];
  if (!known.some((tag) => tag.trim() === versionOf(row))) return false;
  res.status(304).setHeader('ETag', versionOf(row)).end();
  return true;
}

const MOST_INDEX = 10_000_000;

function readQuery(req: Request, kind: 'users' | 'groups') {
  const filter = one(req, 'filter');
  const start = integer(req, 'startIndex', 1);
  const count = integer(req, 'count', 100);
  return {
    condition: conditionOf(kind, filter),
    startIndex: Math.min(Math.max(1, start), MOST_INDEX),
    count: Math.min(Math.max(0, count), MOST_RESULTS),
  };
}

/** Returns the parameter; null: it is absent. */
function one(req: Request, name: string): string | null {
  const value = req.query[name];
  if (value === undefined) return null;
  if (typeof value !== 'string') throw invalid('invalidValue', `The parameter ${name} may appear only once.`);
  return value;
}

function integer(req: Request, name: string, absent: number): number {
  const text = one(req, name);
  if (text === null) return absent;
  if (!/^-?\d{1,9}$/.test(text)) throw invalid('invalidValue', `The parameter ${name} must be an integer.`);
  return Number(text);
}

/** Returns the names in the parameter, in lower case and without their parts; null: it is absent. */
function names(req: Request, parameter: 'attributes' | 'excludedAttributes'): ReadonlySet<string> | null {
  const text = one(req, parameter);
  if (text === null || text === '') return null;
  const bare = (name: string): string => (name.trim().toLowerCase().split(':').at(-1) ?? '').split('.')[0] ?? '';
  return new Set(text.slice(0, 1_024).split(',').map(bare));
}

type IsWanted = (attribute: string) => boolean;

/** Reads which attributes the client wants. Call this once for a request: a page has thousands of attributes. */
function readWanted(req: Request): IsWanted {
  const only = names(req, 'attributes');
  const excluded = names(req, 'excludedAttributes');
  return (attribute) => {
    const name = attribute.toLowerCase();
    return only === null ? excluded?.has(name) !== true : only.has(name);
  };
}

const ALWAYS: readonly string[] = ['schemas', 'id'];

function selected(isWanted: IsWanted, resource: object): object {
  return Object.fromEntries(Object.entries(resource).filter(([name]) => ALWAYS.includes(name) || isWanted(name)));
}

function list(resources: readonly string[], totalResults: number, startIndex: number): string[] {
  const head = JSON.stringify({ schemas: [LIST_SCHEMA], totalResults, startIndex, itemsPerPage: resources.length });
  const parts = resources.map((text, index) => (index === 0 ? text : `,${text}`));
  return [`${head.slice(0, -1)},"Resources":[`, ...parts, ']}'];
}
