/**
 * What a directory does with groups. The names of a user's groups are part of the record of the user, so a change of a group changes each
 * member. Thousands of members in one transaction would keep the database from recording decisions meanwhile. So members change in chunks:
 * each is one transaction that changes membership and records together, and binds every later request (law 4). The answer comes after the last
 * chunk. A request that breaks off leaves whole chunks behind, and the directory repeats it. Only a new name is written before the records of
 * the members: the group is marked as stale until they have it, and the next change of a group finishes that first.
 */
import type { Provider } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { JsonValue } from '../base/json/json.ts';
import { inSlices } from '../base/turns/slices.ts';
import type { Change } from '../db/changes.ts';
import type { Database, Transaction } from '../db/database.ts';
import { type DirectoryGroup, directoryStore } from '../providers/directory-store.ts';
import { type User, userStore } from '../users/user-store.ts';
import { invalid, ScimError } from './errors.ts';
import { type GroupChange, type MemberChange, readGroup, readGroupPatch } from './group.ts';
import { changeOf, differs, requireVersion, withDirectory } from './people.ts';
import type { ChangeBy, Session } from './session.ts';
import { readPatch } from './values.ts';

export interface GroupParts {
  readonly database: Database;
  readonly changeBy: ChangeBy;
  readonly now: () => number;
}

/** Members that change in one transaction. With 50, decisions of other callers waited up to 80 ms for the connection of SQLite. */
const CHUNK = 16;
/** Ids of members that are read at once. */
const PAGE = 1_000;
export const MOST_GROUPS = 5_000;

export type DirectoryGroups = ReturnType<typeof createDirectoryGroups>;

export const noGroup = (): AppError => new AppError('not_found', 'This directory has sent no group with this id.');

const taken = (): ScimError =>
  new ScimError('identity_taken', 'uniqueness', 'A different group of this directory has this displayName.');

/** All functions throw AppError and ScimError. */
export function createDirectoryGroups({ database, changeBy, now }: GroupParts) {
  /** Writes the present names of their groups into the records of these users, and returns the changes to record. */
  async function rederive(trx: Transaction, provider: Provider, ids: readonly string[]): Promise<Change[]> {
    const users = userStore(trx);
    const locked = await users.lockAll(provider.issuer, ids);
    const names = await directoryStore(trx).members.groupsOf(ids);
    const time = now();
    const changed: User[] = [];
    const changes: Change[] = [];
    for (const before of locked) {
      const known = before.facts?.directory ?? { active: true, email: null };
      const user = withDirectory(provider, before, { ...known, groups: names.get(before.id) ?? [] }, time);
      if (user === before) continue;
      changed.push(user);
      if (differs(before, user)) changes.push(changeOf(before, user));
    }
    await users.updateDerived(changed);
    return changes;
  }

  async function find(trx: Transaction, provider: Provider, id: string): Promise<DirectoryGroup> {
    const group = await directoryStore(trx).groups.find(provider.id, id);
    if (group === null) throw noGroup();
    return group;
  }

  /** Adds these members to the group, or removes them. Throws AppError `not_found` if the group is deleted meanwhile. */
  async function changeMembers(session: Session, id: string, verb: 'add' | 'remove', ids: readonly string[]): Promise<void> {
    for (let at = 0; at < ids.length; at += CHUNK) {
      const some = ids.slice(at, at + CHUNK);
      await changeBy(session, async (trx, provider) => {
        const before = await find(trx, provider, id);
        const { users, groups, members } = directoryStore(trx);
        const present = await members.among(id, some);
        // A user may have been deleted since the request was checked.
        const known = verb === 'add' ? await users.known(provider.id, some) : present;
        const meant = some.filter((user) => known.has(user) && present.has(user) === (verb === 'remove'));
        if (meant.length === 0) return { result: undefined, changes: [] };
        if (verb === 'add') await members.add(id, meant);
        else await members.remove(id, meant);
        const after = { ...before, version: before.version + 1, updated_at: now() };
        await groups.update(after);
        const counted = { [verb === 'add' ? 'members_added' : 'members_removed']: meant.length };
        const change = groupChange('update', before, after, counted);
        return { result: undefined, changes: [change, ...(await rederive(trx, provider, meant))] };
      });
    }
  }

  /** Writes the new name of the group into the records of its members. */
  async function finishRename(session: Session, { id, name }: DirectoryGroup): Promise<void> {
    let after: string | null = null;
    for (;;) {
      const ids: string[] = await directoryStore(database.knex).members.ids(id, CHUNK, after);
      const isLast = ids.length < CHUNK;
      await changeBy(session, async (trx, provider) => {
        const changes = await rederive(trx, provider, ids);
        const group = isLast ? await directoryStore(trx).groups.find(provider.id, id) : null;
        // If the name has changed again, the request that did so finishes it.
        if (group?.stale && group.name === name) await directoryStore(trx).groups.update({ ...group, stale: false });
        return { result: undefined, changes };
      });
      if (isLast) return;
      after = ids.at(-1) ?? null;
    }
  }

  /** Finishes what an earlier request could not. */
  async function finishEarlier(session: Session): Promise<void> {
    for (;;) {
      const stale = await directoryStore(database.knex).groups.stale(session.provider.id);
      if (stale === null) return;
      await finishRename(session, stale);
    }
  }

  async function requireKnown({ provider }: Session, ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return;
    const known = await directoryStore(database.knex).users.known(provider.id, ids);
    const missing = ids.find((id) => !known.has(id));
    if (missing !== undefined)
      throw invalid('invalidValue', `This directory has sent no user with the id ${missing}, so it cannot be a member.`);
  }

  async function memberIds(id: string): Promise<Set<string>> {
    const all = new Set<string>();
    for (let after: string | null = null; ; ) {
      const some: string[] = await directoryStore(database.knex).members.ids(id, PAGE, after);
      for (const one of some) all.add(one);
      if (some.length < PAGE) return all;
      after = some.at(-1) ?? null;
    }
  }

  async function difference(id: string, change: MemberChange): Promise<{ added: string[]; removed: string[] }> {
    if (!('only' in change)) return { added: [...change.added], removed: [...change.removed] };
    const present = await memberIds(id);
    return {
      added: [...change.only].filter((one) => !present.has(one)),
      removed: [...present].filter((one) => !change.only.has(one)),
    };
  }

  async function read({ provider }: Session, id: string): Promise<DirectoryGroup> {
    const group = await directoryStore(database.knex).groups.find(provider.id, id);
    if (group === null) throw noGroup();
    return group;
  }

  /** Changes what the row of the group has. A new name makes it stale. `isTrial`: only checks whether it could. */
  function changeGroup(
    session: Session,
    id: string,
    { name, externalId }: Pick<GroupChange, 'name' | 'externalId'>,
    ifMatch: string | undefined,
    isTrial = false,
  ): Promise<DirectoryGroup> {
    return changeBy(session, async (trx, provider) => {
      const before = await find(trx, provider, id);
      requireVersion(ifMatch, before);
      const isRenamed = name !== undefined && name !== before.name;
      const isSame = !isRenamed && (externalId === undefined || externalId === before.external_id);
      if (isSame) return { result: before, changes: [] };
      const { groups } = directoryStore(trx);
      const other = isRenamed ? await groups.findByName(provider.id, name) : null;
      if (other !== null && other.id !== id) throw taken();
      if (isTrial) return { result: before, changes: [] };
      const after: DirectoryGroup = {
        ...before,
        name: name ?? before.name,
        external_id: externalId === undefined ? before.external_id : externalId,
        stale: before.stale || isRenamed,
        version: before.version + 1,
        updated_at: now(),
      };
      await groups.update(after);
      return { result: after, changes: [groupChange('update', before, after)] };
    });
  }

  async function update(session: Session, id: string, change: GroupChange, ifMatch: string | undefined): Promise<DirectoryGroup> {
    await finishEarlier(session);
    const { added, removed } = await difference(id, change.members);
    await requireKnown(session, added);
    // Changes of members check everything again. Without a condition, one transaction less is enough.
    const isMembersOnly = change.name === undefined && change.externalId === undefined && ifMatch === undefined;
    // What takes rights away comes first: a member who leaves must never get the new name, even if this request breaks off.
    const isTwoSteps = !isMembersOnly && removed.length > 0;
    if (isTwoSteps) await changeGroup(session, id, change, ifMatch, true);
    await changeMembers(session, id, 'remove', removed);
    const current = isMembersOnly
      ? await read(session, id)
      : await changeGroup(session, id, change, isTwoSteps ? undefined : ifMatch);
    if (current.stale) await finishRename(session, current);
    await changeMembers(session, id, 'add', added);
    return await read(session, id);
  }

  return {
    async create(session: Session, body: JsonValue): Promise<DirectoryGroup> {
      const { name, externalId, members } = await inSlices(readGroup(body));
      const ids = [...members];
      await finishEarlier(session);
      await requireKnown(session, ids);
      const id = uuidv7();
      await changeBy(session, async (trx, provider) => {
        const { groups } = directoryStore(trx);
        if ((await groups.findByName(provider.id, name)) !== null) throw taken();
        if ((await groups.count(provider.id, null)) >= MOST_GROUPS)
          throw new AppError(
            'limit_reached',
            `A directory may have at most ${MOST_GROUPS} groups. Assign fewer groups to the gateway.`,
          );
        const time = now();
        const group: DirectoryGroup = {
          ...{ id, provider_id: provider.id, name, external_id: externalId, version: 1, stale: false },
          ...{ created_at: time, updated_at: time },
        };
        await groups.insert(group);
        return { result: undefined, changes: [groupChange('create', null, group)] };
      });
      await changeMembers(session, id, 'add', ids);
      return await read(session, id);
    },

    async replace(session: Session, id: string, body: JsonValue, ifMatch: string | undefined): Promise<DirectoryGroup> {
      const { name, externalId, members } = await inSlices(readGroup(body));
      return update(session, id, { name, ...(externalId === null ? {} : { externalId }), members: { only: members } }, ifMatch);
    },

    async patch(session: Session, id: string, body: JsonValue, ifMatch: string | undefined): Promise<DirectoryGroup> {
      return update(session, id, await inSlices(readGroupPatch(readPatch(body, 'group'))), ifMatch);
    },

    /** The members leave the group in chunks, and the group goes with the last one. */
    async remove(session: Session, id: string, ifMatch: string | undefined): Promise<void> {
      await finishEarlier(session);
      await changeBy(session, async (trx, provider) => {
        requireVersion(ifMatch, await find(trx, provider, id));
        return { result: undefined, changes: [] };
      });
      for (;;) {
        const ids = await directoryStore(database.knex).members.ids(id, PAGE, null);
        await changeMembers(session, id, 'remove', ids);
        const isGone = await changeBy(session, async (trx, provider) => {
          const group = await find(trx, provider, id);
          const { members, groups } = directoryStore(trx);
          if ((await members.ids(id, 1, null)).length > 0) return { result: false, changes: [] };
          await groups.delete(id);
          return { result: true, changes: [groupChange('delete', group, null)] };
        });
        if (isGone) return;
      }
    },
  };
}

function groupChange(
  verb: 'create' | 'update' | 'delete',
  before: DirectoryGroup | null,
  after: DirectoryGroup | null,
  counted: Readonly<Record<string, number>> = {},
): Change {
  const shown = (group: DirectoryGroup | null, more: object) =>
    group && { id: group.id, provider_id: group.provider_id, name: group.name, external_id: group.external_id, ...more };
  return {
    action: `directory_group.${verb}`,
    object_id: (after ?? before)?.id ?? '',
    before: shown(before, {}),
    after: shown(after, counted),
  };
}
