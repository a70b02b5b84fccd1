/** What a directory does with users. Each request is one change, and what it says reaches the record of the user in that change. */
import type { Provider } from '../auth/provider.ts';
import { endApiTokensOf, endSessionsAndGrantsOf } from '../auth/sign-in/sign-ins.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { JsonValue } from '../base/json/json.ts';
import type { Change } from '../db/changes.ts';
import type { Transaction } from '../db/database.ts';
import { type DirectoryUser, directoryStore } from '../providers/directory-store.ts';
import { derive, givenTo } from '../providers/facts.ts';
import { endConnectionsOf } from '../targets/connections.ts';
import { factsTooLarge, userDocument } from '../users/document.ts';
import { type DirectoryFacts, type User, userStore } from '../users/user-store.ts';
import { ScimError } from './errors.ts';
import type { ChangeBy, Session } from './session.ts';
import { documentOf, emailOf, entryOf, patchedUser, readNewUser, readReplacedUser, type UserEntry, versionOf } from './user.ts';
import { readPatch } from './values.ts';

export interface PeopleParts {
  readonly changeBy: ChangeBy;
  readonly now: () => number;
}

/** The subjects of released accounts begin like this (`link` of a user). No directory may claim one. */
const RELEASED = /^released:/;

export type DirectoryPeople = ReturnType<typeof createDirectoryPeople>;

export const noUser = (): AppError => new AppError('not_found', 'This directory has sent no user with this id.');

/** Throws AppError `precondition_failed` unless the header `If-Match` names the version or is absent. */
export function requireVersion(ifMatch: string | undefined, row: { readonly version: number }): void {
  if (ifMatch === undefined || ifMatch.trim() === '*') return;
  const named = ifMatch.split(',').map((tag) => tag.trim());
  // Some clients drop the mark of weak tags.
  const version = versionOf(row);
  if (!named.includes(version) && !named.includes(version.slice(2)))
    throw new AppError('precondition_failed', 'The resource has changed since the version that If-Match names. Read it again.');
}

/** All functions throw AppError and ScimError. */
export function createDirectoryPeople({ changeBy, now }: PeopleParts) {
  async function requireFreeName(
    trx: Transaction,
    provider: Provider,
    { userName }: UserEntry,
    id: string | null,
  ): Promise<void> {
    const other = await directoryStore(trx).users.findByName(provider.id, userName);
    if (other !== null && other.user_id !== id)
      throw new ScimError('identity_taken', 'uniqueness', 'A different user of this directory has this userName.');
  }

  /** Returns the user with what the directory says now, and the changes to record. */
  async function settle(
    trx: Transaction,
    provider: Provider,
    before: User,
    directory: DirectoryFacts,
  ): Promise<{ readonly user: User; readonly changes: readonly Change[] }> {
    const time = now();
    const user = withDirectory(provider, before, directory, time);
    if (user === before) return { user, changes: [] };
    await userStore(trx).update(user);
    const changes: Change[] = differs(before, user) ? [changeOf(before, user)] : [];
    if (directory.active || before.facts?.directory?.active === false) return { user, changes };
    // They must not come back when the directory activates the user again.
    const ended = await endSessionsAndGrantsOf(trx, [user.id], null);
    return { user, changes: [...changes, ...ended, ...(await endConnectionsOf(trx, user.id, time))] };
  }

  async function update(
    session: Session,
    id: string,
    ifMatch: string | undefined,
    next: (entry: UserEntry) => UserEntry,
  ): Promise<DirectoryUser> {
    return changeBy(session, async (trx, provider) => {
      const store = directoryStore(trx).users;
      const row = await store.find(provider.id, id);
      const before = row && (await userStore(trx).lock(id));
      if (row === null || before === null || before.issuer !== provider.issuer) throw noUser();
      requireVersion(ifMatch, row);
      const entry = next(entryOf(row));
      const isSame = documentOf(entry) === row.document && entry.userName === row.user_name && entry.active === row.active;
      if (isSame) return { result: row, changes: [] };
      await requireFreeName(trx, provider, entry, id);
      const changed: DirectoryUser = { ...row, ...columnsOf(entry), version: row.version + 1, updated_at: now() };
      await store.update(changed);
      // The record says nothing of the groups of a user who has too many, so the memberships tell.
      const groups = (await directoryStore(trx).members.groupsOf([id])).get(id) ?? [];
      const { changes } = await settle(trx, provider, before, { ...factsOf(entry), groups });
      return { result: changed, changes };
    });
  }

  return {
    /** Adopts the user if one with this subject has signed in already. */
    create(session: Session, body: JsonValue): Promise<DirectoryUser> {
      const entry = readNewUser(body);
      const newId = uuidv7();
      return changeBy(session, async (trx, provider) => {
        const store = directoryStore(trx).users;
        if (RELEASED.test(entry.externalId)) throw taken();
        const known = await userStore(trx).lockBySubject(provider.issuer, entry.externalId);
        if (known !== null && (await store.find(provider.id, known.id)) !== null) throw taken();
        await requireFreeName(trx, provider, entry, null);
        const time = now();
        const id = known?.id ?? newId;
        const row: DirectoryUser = {
          ...{ user_id: id, provider_id: provider.id, external_id: entry.externalId, ...columnsOf(entry) },
          ...{ version: 1, created_at: time, updated_at: time },
        };
        await store.insert(row);
        const directory: DirectoryFacts = { ...factsOf(entry), groups: [] };
        if (known !== null) {
          const { changes } = await settle(trx, provider, known, directory);
          return { result: row, changes };
        }
        const user = newUser(provider, entry, directory, id, time);
        await userStore(trx).insert(user, null);
        return { result: row, changes: [changeOf(null, user)] };
      });
    },

    replace: (session: Session, id: string, body: JsonValue, ifMatch: string | undefined): Promise<DirectoryUser> =>
      update(session, id, ifMatch, (entry) => readReplacedUser(body, entry)),

    patch(session: Session, id: string, body: JsonValue, ifMatch: string | undefined): Promise<DirectoryUser> {
      const operations = readPatch(body, 'user');
      return update(session, id, ifMatch, (entry) => patchedUser(entry, operations));
    },

    /** The record of the user stays, for the audit log, and is refused. */
    remove(session: Session, id: string, ifMatch: string | undefined): Promise<void> {
      return changeBy(session, async (trx, provider) => {
        const store = directoryStore(trx).users;
        const row = await store.find(provider.id, id);
        const before = row && (await userStore(trx).lock(id));
        if (row === null || before === null || before.issuer !== provider.issuer) throw noUser();
        requireVersion(ifMatch, row);
        await store.delete(id);
        const email = before.facts?.directory?.email ?? null;
        const { changes } = await settle(trx, provider, before, { active: false, email, groups: [] });
        // If the directory sends the user again, perhaps after years, the former tokens must not work again.
        return { result: undefined, changes: [...changes, ...(await endApiTokensOf(trx, [id], now()))] };
      });
    },
  };
}

const taken = (): ScimError =>
  new ScimError('identity_taken', 'uniqueness', 'This directory has already sent a user with this externalId.');

const columnsOf = (entry: UserEntry) => ({ user_name: entry.userName, active: entry.active, document: documentOf(entry) });

const factsOf = (entry: UserEntry): Pick<DirectoryFacts, 'active' | 'email'> => ({
  active: entry.active,
  email: emailOf(entry),
});

function newUser(provider: Provider, { externalId }: UserEntry, directory: DirectoryFacts, id: string, time: number): User {
  // Any token is newer than a user who has never presented one.
  const learnt = { claims: { email: null, roles: [], groups: [] }, claims_iat: 0, directory };
  return {
    ...{ id, issuer: provider.issuer, subject: externalId, valid_after: null, enabled: true, created_at: time, updated_at: time },
    ...derive(provider, learnt, givenTo({ facts: null } as User)),
  };
}

/** Returns the user under these facts; `before` itself if nothing changes. */
export function withDirectory(provider: Provider, before: User, { active, email, groups }: DirectoryFacts, time: number): User {
  const { claims, claims_iat } = before.facts ?? { claims: { email: before.email, roles: [], groups: [] }, claims_iat: 0 };
  const kept = groups === null || factsTooLarge({ role: '', groups }) !== null ? null : groups;
  const learnt = { claims, claims_iat, directory: { active, email, groups: kept } };
  const after: User = { ...before, ...derive(provider, learnt, givenTo(before)) };
  return JSON.stringify(after) === JSON.stringify(before) ? before : { ...after, updated_at: time };
}

/** Whether more has changed than what only later changes of the provider would use. */
export function differs(before: User, after: User): boolean {
  const decisive = (user: User) =>
    JSON.stringify({ ...user, updated_at: 0, facts: user.facts && { ...user.facts, directory: null } });
  return decisive(before) !== decisive(after);
}

export const changeOf = (before: User | null, after: User): Change => ({
  action: before === null ? 'user.create' : 'user.update',
  object_id: after.id,
  before: before && userDocument(before),
  after: userDocument(after),
});
