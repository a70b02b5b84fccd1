/** Groups as directories write and read them. Pure. */
import type { JsonValue } from '../base/json/json.ts';
import { UUID } from '../base/validate.ts';
import type { DirectoryGroup, DirectoryMember } from '../providers/directory-store.ts';
import { invalid } from './errors.ts';
import { readPath, stated } from './filter.ts';
import { versionOf } from './user.ts';
import { elementsOf, membersOf, optionalText, type PatchOperation, requiredText, requireSchema } from './values.ts';

export const GROUP_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:Group';
const EXTERNAL_ID_MAX = 255;
/** Members in one request. */
const MOST_MEMBERS = 20_000;

export interface NewGroup {
  readonly name: string;
  readonly externalId: string | null;
  readonly members: ReadonlySet<string>;
}

/** What a request does with a group. Members that are absent stay as they are. */
export interface GroupChange {
  readonly name?: string;
  readonly externalId?: string | null;
  readonly members: MemberChange;
}

/** `only`: these become the members. */
export type MemberChange =
  | { readonly only: ReadonlySet<string> }
  | { readonly added: ReadonlySet<string>; readonly removed: ReadonlySet<string> };

/** Reading many members takes long, so these functions work in steps. They throw ScimError. */
export type Steps<T> = Generator<undefined, T>;

const ELEMENTS_IN_STEP = 100;

export function* readGroup(body: JsonValue): Steps<NewGroup> {
  const members = membersOf(body, 'The body');
  requireSchema(members, GROUP_SCHEMA);
  return {
    name: requiredText(members.get('displayname'), 'displayName'),
    externalId: optionalText(members.get('externalid'), 'externalId', EXTERNAL_ID_MAX),
    members: new Set(yield* idsIn(members.get('members'))),
  };
}

function idOf(value: JsonValue | undefined): string {
  if (typeof value === 'string' && UUID.test(value)) return value;
  throw invalid('invalidValue', 'The value of a member must be the id of a user that this directory has sent.');
}

function* idsIn(value: JsonValue | undefined): Steps<readonly string[]> {
  const elements = elementsOf(value);
  if (elements.length > MOST_MEMBERS)
    throw invalid('invalidValue', `A request may have at most ${MOST_MEMBERS} members. Send several PATCH requests.`);
  const ids: string[] = [];
  for (const element of elements) {
    ids.push(typeof element === 'string' ? idOf(element) : memberOf(element));
    if (ids.length % ELEMENTS_IN_STEP === 0) yield;
  }
  return ids;
}

function memberOf(element: JsonValue): string {
  const members = membersOf(element, 'An element of members');
  const type = members.get('type');
  if (typeof type === 'string' && type.toLowerCase() === 'group')
    throw invalid('invalidValue', 'Groups cannot be members of groups. Send the users of the inner group as members.');
  return idOf(members.get('value'));
}

/** Returns what the operations do together, in their order. */
export function* readGroupPatch(operations: readonly PatchOperation[]): Steps<GroupChange> {
  let name: string | undefined;
  let externalId: string | null | undefined;
  let only: Set<string> | null = null;
  const added = new Set<string>();
  const removed = new Set<string>();

  const put = (ids: readonly string[]): void => {
    for (const id of ids) {
      if (only !== null) only.add(id);
      else {
        added.add(id);
        removed.delete(id);
      }
    }
  };
  const take = (ids: readonly string[]): void => {
    for (const id of ids) {
      if (only !== null) only.delete(id);
      else {
        removed.add(id);
        added.delete(id);
      }
    }
  };

  function* members(verb: PatchOperation['verb'], value: JsonValue | undefined): Steps<void> {
    const isRemoved = verb === 'remove' || value === null;
    if (isRemoved && value !== undefined && value !== null) take(yield* idsIn(value));
    else if (isRemoved) only = new Set();
    else if (verb === 'replace') only = new Set(yield* idsIn(value));
    else put(yield* idsIn(value));
  }

  function* apply(verb: PatchOperation['verb'], written: string, value: JsonValue | undefined): Steps<void> {
    const { attribute, filter, sub, isForeign } = readPath(written);
    const isRemoved = verb === 'remove' || value === null;
    if (isForeign) return;
    if (attribute !== 'members' && (filter !== null || sub !== null)) throw invalid('invalidPath', `${attribute} has no parts.`);
    switch (attribute) {
      case 'displayname':
        if (isRemoved) throw invalid('mutability', 'displayName is required and cannot be removed.');
        name = requiredText(value, 'displayName');
        return;
      case 'externalid':
        externalId = isRemoved ? null : optionalText(value, 'externalId', EXTERNAL_ID_MAX);
        return;
      case 'members': {
        // Null would remove every member, and a deny policy for the group would no longer apply to them.
        if (verb === 'add' && isRemoved) throw invalid('invalidValue', 'members must not be null in an operation add.');
        if (sub !== null)
          throw invalid('invalidPath', 'The parts of a member cannot be changed. Remove the member and add it again.');
        if (filter === null) return yield* members(verb, value);
        const meant = stated(filter);
        if (meant === null || Object.keys(meant).join() !== 'value')
          throw invalid('invalidPath', 'The path of a member must have the form members[value eq "id"].');
        return (isRemoved ? take : put)([idOf(meant['value'] ?? undefined)]);
      }
      case 'id':
      case 'schemas':
      case 'meta':
        // Okta repeats the id beside what it changes.
        return;
      default:
        throw invalid('invalidPath', `The schema of groups has no attribute ${attribute.slice(0, 100)}.`);
    }
  }

  for (const { verb, path, value } of operations) {
    yield* apply(verb, path, value);
    yield;
  }
  return {
    ...(name === undefined ? {} : { name }),
    ...(externalId === undefined ? {} : { externalId }),
    members: only === null ? { added, removed } : { only },
  };
}

/**
 * Yields the JSON of the group in parts, because a group may have many members. `members`: null leaves them out. `base`: the address of the
 * directory's endpoint.
 */
export function* groupJson(group: DirectoryGroup, members: readonly DirectoryMember[] | null, base: string): Generator<string> {
  const head = JSON.stringify({
    schemas: [GROUP_SCHEMA],
    id: group.id,
    ...(group.external_id === null ? {} : { externalId: group.external_id }),
    displayName: group.name,
    meta: {
      resourceType: 'Group',
      created: new Date(group.created_at).toISOString(),
      lastModified: new Date(group.updated_at).toISOString(),
      location: `${base}/Groups/${group.id}`,
      version: versionOf(group),
    },
  });
  if (members === null) {
    yield head;
    return;
  }
  yield `${head.slice(0, -1)},"members":[`;
  for (const [index, { user_id, user_name }] of members.entries())
    yield `${index === 0 ? '' : ','}${JSON.stringify({ value: user_id, type: 'User', display: user_name })}`;
  yield ']}';
}
