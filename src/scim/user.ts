/** Users as directories write and read them. Pure. */
import type { JsonValue } from '../base/json/json.ts';
import type { DirectoryUser } from '../providers/directory-store.ts';
import { email as emailSchema } from '../users/document.ts';
import { invalid } from './errors.ts';
import { type AttributePath, type Filter, matches, readPath, stated } from './filter.ts';
import {
  elementsOf,
  type Members,
  membersOf,
  optionalText,
  type PatchOperation,
  readBoolean,
  requiredText,
  requireSchema,
} from './values.ts';

export const USER_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:User';
/** In characters: that of a subject. */
const EXTERNAL_ID_MAX = 255;
const MOST_EMAILS = 20;
const EMAIL_MAX = 320;
const EMAIL = emailSchema();

export const NAME_PARTS = ['formatted', 'familyName', 'givenName', 'middleName', 'honorificPrefix', 'honorificSuffix'] as const;
type NamePart = (typeof NAME_PARTS)[number];
type Name = Readonly<Partial<Record<NamePart, string>>>;

export interface Email {
  readonly value: string;
  readonly type?: string;
  readonly display?: string;
  readonly primary?: boolean;
}

/** What the gateway keeps of a user. It ignores all other attributes of the schema. */
export interface UserEntry {
  readonly externalId: string;
  readonly userName: string;
  readonly active: boolean;
  readonly displayName: string | null;
  readonly name: Name;
  readonly emails: readonly Email[];
}

/** Attributes of the core schema that are accepted and not kept. */
const IGNORED: ReadonlySet<string> = new Set([
  ...['nickname', 'profileurl', 'title', 'usertype', 'preferredlanguage', 'locale', 'timezone', 'password', 'phonenumbers'],
  ...['ims', 'photos', 'addresses', 'entitlements', 'roles', 'x509certificates', 'schemas', 'meta'],
]);

type Document = Pick<UserEntry, 'displayName' | 'name' | 'emails'>;

/** Returns the JSON of what the directory alone reads. The members are in a fixed order. */
export const documentOf = ({ displayName, name, emails }: UserEntry): string => JSON.stringify({ displayName, name, emails });

export function entryOf(row: DirectoryUser): UserEntry {
  const { displayName, name, emails } = JSON.parse(row.document) as Document;
  return { externalId: row.external_id, userName: row.user_name, active: row.active, displayName, name, emails };
}

/** Returns the e-mail that the user has: the primary one, else that of type `work`, else the first. null: there is none. */
export function emailOf({ emails }: UserEntry): string | null {
  const one = emails.find(({ primary }) => primary === true) ?? emails.find(({ type }) => type === 'work') ?? emails[0];
  return one?.value ?? null;
}

/** Reads a new user. Throws ScimError. */
export function readNewUser(body: JsonValue): UserEntry {
  const members = membersOf(body, 'The body');
  requireSchema(members, USER_SCHEMA);
  const externalId = optionalText(members.get('externalid'), 'externalId', EXTERNAL_ID_MAX);
  if (externalId === null)
    throw invalid(
      'invalidValue',
      'externalId is required. It must be the value of the claim that identifies the user in tokens of the provider (subject_claim).',
    );
  const active = members.get('active');
  return read(members, externalId, active === undefined || active === null ? true : readBoolean(active, 'active'));
}

/** Reads a user that replaces this one. An absent `active` or `externalId` keeps its value. Throws ScimError. */
export function readReplacedUser(body: JsonValue, before: UserEntry): UserEntry {
  const members = membersOf(body, 'The body');
  requireSchema(members, USER_SCHEMA);
  requireSameId(members.get('externalid'), before.externalId);
  const active = members.get('active');
  return read(
    members,
    before.externalId,
    active === undefined || active === null ? before.active : readBoolean(active, 'active'),
  );
}

function read(members: Members, externalId: string, active: boolean): UserEntry {
  const name = members.get('name');
  return {
    externalId,
    userName: requiredText(members.get('username'), 'userName'),
    active,
    displayName: optionalText(members.get('displayname'), 'displayName'),
    name: name === undefined || name === null ? {} : readName(name, {}),
    emails: readEmails(members.get('emails')),
  };
}

/** The subject of a user never changes: it would become a different user. */
function requireSameId(value: JsonValue | undefined, externalId: string): void {
  if (value === undefined || value === null || value === externalId) return;
  throw invalid('mutability', 'externalId cannot be changed. Delete the user and create a new one.');
}

function readName(value: JsonValue, before: Name): Name {
  const given = membersOf(value, 'name');
  const name: Partial<Record<NamePart, string>> = {};
  for (const part of NAME_PARTS) {
    const sent = given.get(part.toLowerCase());
    const text = sent === undefined ? (before[part] ?? null) : optionalText(sent, `name.${part}`);
    if (text !== null) name[part] = text;
  }
  return name;
}

function readAddress(value: JsonValue | undefined): string {
  const text = requiredText(value, 'emails.value', EMAIL_MAX);
  const checked = EMAIL.validate(text, { convert: false });
  if (checked.error) throw invalid('invalidValue', `emails.value: ${JSON.stringify(text)} is not an e-mail address.`);
  return checked.value as string;
}

/** `known`: an address that was checked before. The check takes long, and one request may change each e-mail a thousand times. */
function readEmail(value: JsonValue, known: string | null = null): Email {
  const members = membersOf(value, 'An element of emails');
  const address = members.get('value');
  const type = optionalText(members.get('type'), 'emails.type');
  const display = optionalText(members.get('display'), 'emails.display');
  const primary = members.get('primary');
  return {
    value: known !== null && address === known ? known : readAddress(address),
    ...(type === null ? {} : { type }),
    ...(display === null ? {} : { display }),
    ...(primary === undefined || primary === null ? {} : { primary: readBoolean(primary, 'emails.primary') }),
  };
}

const checkedEmails = (emails: readonly Email[]): readonly Email[] => {
  if (emails.length > MOST_EMAILS) throw invalid('invalidValue', `emails must have at most ${MOST_EMAILS} elements.`);
  return emails;
};

/** Okta sends an e-mail without a value for a user who has none. */
const readEmails = (value: JsonValue | undefined): readonly Email[] => {
  const elements = elementsOf(value);
  if (elements.length > MOST_EMAILS) return checkedEmails(elements as never);
  return elements.filter((one) => !isEmpty(one)).map((one) => readEmail(one));
};

function isEmpty(value: JsonValue): boolean {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const text = membersOf(value, 'An element of emails').get('value');
  return text === undefined || text === null || text === '';
}

/** Returns the user after the operations, in their order. Throws ScimError. */
export function patchedUser(before: UserEntry, operations: readonly PatchOperation[]): UserEntry {
  let user = before;
  for (const { verb, path, value } of operations) user = applied(user, verb, path, value);
  return user;
}

function applied(user: UserEntry, verb: PatchOperation['verb'], written: string, value: JsonValue | undefined): UserEntry {
  const path = readPath(written);
  const { attribute, filter, sub, isForeign } = path;
  const isRemoved = verb === 'remove' || value === null;
  const required = (name: string) => invalid('mutability', `${name} is required and cannot be removed.`);
  const plain = (): void => {
    if (filter !== null || sub !== null) throw invalid('invalidPath', `${attribute} has no parts.`);
  };
  if (isForeign) return user;
  switch (attribute) {
    case 'active':
      plain();
      if (isRemoved) throw required('active');
      return { ...user, active: readBoolean(unwrapped(value), 'active') };
    case 'username':
      plain();
      if (isRemoved) throw required('userName');
      return { ...user, userName: requiredText(value, 'userName') };
    case 'externalid':
      plain();
      if (isRemoved) throw required('externalId');
      requireSameId(value, user.externalId);
      return user;
    case 'displayname':
      plain();
      return { ...user, displayName: isRemoved ? null : optionalText(value, 'displayName') };
    case 'name':
      if (filter !== null) throw invalid('invalidPath', 'name has no elements.');
      return { ...user, name: patchedName(user.name, sub, isRemoved ? null : (value as JsonValue)) };
    case 'emails':
      return { ...user, emails: checkedEmails(patchedEmails(user.emails, verb, path, isRemoved ? undefined : value)) };
    case 'id':
    case 'groups':
      throw invalid('mutability', `${attribute} is read-only.`);
    default:
      if (IGNORED.has(attribute)) return user;
      throw invalid('invalidPath', `The schema of users has no attribute ${attribute.slice(0, 100)}.`);
  }
}

/** Older versions of Entra wrap a value: `[{"$ref": null, "value": "False"}]`. */
function unwrapped(value: JsonValue | undefined): JsonValue | undefined {
  const inner = Array.isArray(value) && value.length === 1 ? value[0] : value;
  if (typeof inner !== 'object' || inner === null || Array.isArray(inner)) return inner;
  return membersOf(inner, 'value').get('value');
}

function patchedName(before: Name, sub: string | null, value: JsonValue): Name {
  if (sub === null) return value === null ? {} : readName(value, before);
  const part = NAME_PARTS.find((one) => one.toLowerCase() === sub);
  if (part === undefined) throw invalid('invalidPath', `name has no part ${sub.slice(0, 100)}.`);
  return readName({ [part]: value }, before);
}

const SUBS: readonly string[] = ['value', 'type', 'display', 'primary'];

function patchedEmails(
  before: readonly Email[],
  verb: PatchOperation['verb'],
  { filter, sub }: AttributePath,
  value: JsonValue | undefined,
): readonly Email[] {
  if (sub !== null && !SUBS.includes(sub)) throw invalid('invalidPath', `emails has no part ${sub.slice(0, 100)}.`);
  const isMeant = (email: Email): boolean => filter === null || matches(filter, { ...email });
  if (value === undefined) {
    if (sub === null) return before.filter((email) => !isMeant(email));
    if (sub === 'value') return before.filter((email) => !isMeant(email));
    return before.map((email) =>
      isMeant(email) ? (Object.fromEntries(Object.entries(email).filter(([name]) => name !== sub)) as never) : email,
    );
  }
  if (filter === null && sub === null) {
    const given = readEmails(value);
    if (verb === 'replace') return given;
    const isNew = ({ value: one }: Email): boolean => !given.some((email) => email.value === one);
    const others = before.filter(isNew);
    const hasPrimary = given.some(({ primary }) => primary === true);
    return [...(hasPrimary ? others.map((email) => ({ ...email, primary: false })) : others), ...given];
  }
  const change = sub === null ? membersOf(value, 'value') : new Map<string, JsonValue>([[sub, value]]);
  const changed = (email: Readonly<Record<string, JsonValue>>, known: string | null): Email =>
    readEmail({ ...email, ...Object.fromEntries(change) }, known);
  if (before.some(isMeant)) return before.map((email) => (isMeant(email) ? changed({ ...email }, email.value) : email));
  // Entra writes to an e-mail that does not exist yet.
  const made = filter === null ? {} : statedBy(filter);
  return [...before, changed(made, null)];
}

function statedBy(filter: Filter): Readonly<Record<string, JsonValue>> {
  const made = stated(filter);
  if (made === null) throw invalid('noTarget', 'No e-mail meets the filter of the path.');
  return made;
}

/** Returns the user in the form of SCIM. `base`: the address of the directory's endpoint. */
export function userResource(row: DirectoryUser, base: string) {
  const { externalId, userName, active, displayName, name, emails } = entryOf(row);
  return {
    schemas: [USER_SCHEMA],
    id: row.user_id,
    externalId,
    userName,
    ...(Object.keys(name).length === 0 ? {} : { name }),
    ...(displayName === null ? {} : { displayName }),
    active,
    ...(emails.length === 0 ? {} : { emails }),
    meta: {
      resourceType: 'User',
      created: new Date(row.created_at).toISOString(),
      lastModified: new Date(row.updated_at).toISOString(),
      location: `${base}/Users/${row.user_id}`,
      version: versionOf(row),
    },
  };
}

/** Returns the weak entity tag of a user or group. */
export const versionOf = ({ version }: { readonly version: number }): string => `W/"${version}"`;
