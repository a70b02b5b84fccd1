/** What the endpoint says of itself (RFC 7643, sections 5 to 7). It lists only attributes that it keeps. */
import { GROUP_SCHEMA } from './group.ts';
import { NAME_PARTS, USER_SCHEMA } from './user.ts';

const CONFIG_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig';
const TYPE_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:ResourceType';
const SCHEMA_SCHEMA = 'urn:ietf:params:scim:schemas:core:2.0:Schema';

/** The most resources on one page. */
export const MOST_RESULTS = 200;

interface Attribute {
  readonly name: string;
  readonly type: 'string' | 'boolean' | 'complex' | 'reference';
  readonly multiValued: boolean;
  readonly description: string;
  readonly required: boolean;
  readonly caseExact: boolean;
  readonly mutability: 'readOnly' | 'readWrite' | 'immutable';
  readonly returned: 'always' | 'default';
  readonly uniqueness: 'none' | 'server';
  readonly subAttributes?: readonly Attribute[];
  readonly referenceTypes?: readonly string[];
}

const attribute = (name: string, description: string, more: Partial<Attribute> = {}): Attribute => ({
  ...{ name, type: 'string', multiValued: false, description, required: false, caseExact: false },
  ...{ mutability: 'readWrite', returned: 'default', uniqueness: 'none' },
  ...more,
});

const USER_ATTRIBUTES: readonly Attribute[] = [
  attribute('userName', 'The name with which the directory finds the user.', { required: true, uniqueness: 'server' }),
  attribute('externalId', 'The value of the claim that identifies the user in tokens of the provider.', {
    ...{ required: true, caseExact: true, mutability: 'immutable', uniqueness: 'server' },
  }),
  attribute('active', 'If false, the user is refused at once.', { type: 'boolean' }),
  attribute('displayName', 'The name to show.'),
  attribute('name', 'The parts of the name.', {
    type: 'complex',
    subAttributes: NAME_PARTS.map((part) => attribute(part, 'A part of the name.')),
  }),
  attribute('emails', 'The primary e-mail counts, else the one of type `work`, else the first.', {
    type: 'complex',
    multiValued: true,
    subAttributes: [
      attribute('value', 'The e-mail address.'),
      attribute('type', 'Such as `work`.'),
      attribute('display', 'The address to show.'),
      attribute('primary', 'Whether it is the one that counts.', { type: 'boolean' }),
    ],
  }),
];

const GROUP_ATTRIBUTES: readonly Attribute[] = [
  attribute('displayName', 'The name of the group in policies and rules.', { required: true, uniqueness: 'server' }),
  attribute('externalId', 'The id of the group in the directory.', { caseExact: true }),
  attribute('members', 'The users in the group.', {
    type: 'complex',
    multiValued: true,
    subAttributes: [
      attribute('value', 'The id of a user that this directory has sent.', { mutability: 'immutable', caseExact: true }),
      attribute('type', 'Always `User`.', { mutability: 'immutable' }),
      attribute('display', 'The userName.', { mutability: 'readOnly' }),
    ],
  }),
];

const NAMES = { Users: 'User', Groups: 'Group' } as const;

function schemaOf(id: string, name: string, description: string, attributes: readonly Attribute[], base: string) {
  const meta = { resourceType: 'Schema', location: `${base}/Schemas/${id}` };
  return { schemas: [SCHEMA_SCHEMA], id, name, description, attributes, meta };
}

export const schemas = (base: string) => [
  schemaOf(USER_SCHEMA, 'User', 'A user of the provider.', USER_ATTRIBUTES, base),
  schemaOf(GROUP_SCHEMA, 'Group', 'A group of users.', GROUP_ATTRIBUTES, base),
];

export const resourceTypes = (base: string) =>
  (['Users', 'Groups'] as const).map((path) => ({
    schemas: [TYPE_SCHEMA],
    id: NAMES[path],
    name: NAMES[path],
    endpoint: `/${path}`,
    description: path === 'Users' ? 'Users of the provider' : 'Groups of users',
    schema: path === 'Users' ? USER_SCHEMA : GROUP_SCHEMA,
    schemaExtensions: [],
    meta: { resourceType: 'ResourceType', location: `${base}/ResourceTypes/${NAMES[path]}` },
  }));

export const serviceProviderConfig = (base: string) => ({
  schemas: [CONFIG_SCHEMA],
  patch: { supported: true },
  bulk: { supported: false, maxOperations: 0, maxPayloadSize: 0 },
  filter: { supported: true, maxResults: MOST_RESULTS },
  changePassword: { supported: false },
  sort: { supported: false },
  etag: { supported: true },
  authenticationSchemes: [
    {
      type: 'oauthbearertoken',
      name: 'Bearer token',
      description: 'The SCIM token of the provider, which an administrator of the gateway creates.',
      primary: true,
    },
  ],
  meta: { resourceType: 'ServiceProviderConfig', location: `${base}/ServiceProviderConfig` },
});
