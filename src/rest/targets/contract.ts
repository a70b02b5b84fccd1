/** Targets, and their credentials: those that administrators set, and those that users supply. */
import Joi from 'joi';
import { text } from '../../base/validate.ts';
import { RESOURCE_TYPES, type ResourceType } from '../../engine/compile/policy.ts';
import type { CheckedTool, TargetCheck } from '../../mcp/check.ts';
import { FAULT_KINDS, type TargetReport } from '../../mcp/upstream/health.ts';
import { POLICY_LIMITS } from '../../policies/schema.ts';
import { CREDENTIAL_SUBJECTS, credentialName, newCredential, ownValue } from '../../targets/credential-document.ts';
import type { CredentialJson } from '../../targets/credentials.ts';
import { changedTarget, commonMembers, httpMembers, newTarget, stdioMembers } from '../../targets/document.ts';
import { CREDENTIAL_TYPES, type CredentialKey } from '../../targets/target.ts';
import { queryOf, schemaOf, schemasOf } from '../openapi/from-joi.ts';
import {
  get,
  getWithToken,
  many,
  nothing,
  type Operation,
  type Operations,
  one,
  parameter,
  tagged,
  wholeOrPaged,
} from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const Target = s.named('Target', {
  anyOf: [
    s.model('HttpTarget', { id: s.uuid, ...schemasOf({ ...httpMembers, ...commonMembers }), ...s.times }),
    s.model('StdioTarget', { id: s.uuid, ...schemasOf({ ...stdioMembers, ...commonMembers }), ...s.times }),
  ],
});
const faultMembers = {
  kind: s.oneOf(FAULT_KINDS),
  message: s.string,
  stderr: s.described('The end of what the process printed to standard error, without credentials.', s.orNull(s.string)),
};
const TargetCheckModel = s.model<TargetCheck & { replica: string }>('TargetCheck', {
  replica: s.described('The replica that has tried the target.', s.uuid),
  fault: s.orNull(s.model('TargetCheckFault', faultMembers)),
  server: s.described('What the server says it is.', s.orNull(s.model('TargetServer', { name: s.string, version: s.string }))),
  protocol_version: s.orNull(s.string),
  tools: s.listOf(
    s.model<CheckedTool>('CheckedTool', {
      name: s.string,
      title: s.orNull(s.string),
      description: s.orNull(s.string),
      read_only: s.described(
        'Whether the server says that the tool changes nothing. The gateway does not check that.',
        s.boolean,
      ),
    }),
  ),
  more: s.described('Whether the server has more tools than these, which are at most 1,000.', s.boolean),
  has_resources: s.boolean,
  has_prompts: s.boolean,
});
const TargetHealth = s.model<TargetReport & { replica: string }>('TargetHealth', {
  replica: s.described('The replica that answers. Each replica knows only its own requests.', s.uuid),
  status: s.described(
    '`suspended`: the replica sends no requests to the target before `retry_at`. `unknown`: it has sent none since it started.',
    s.oneOf(['unknown', 'ok', 'failing', 'suspended']),
  ),
  last_success_at: s.orNull(s.time),
  last_fault: s.orNull(s.model('TargetFault', { at: s.time, ...faultMembers })),
  retry_at: s.orNull(s.time),
});

const TargetCatalogue = s.model('TargetCatalogue', {
  replica: s.described('The replica that answers. Each replica knows only the lists that passed through it.', s.uuid),
  names: s.listOf(
    s.model('CatalogueName', {
      resource_type: s.oneOf(RESOURCE_TYPES),
      resource_name: s.described('The name of a tool or prompt, or the URI or template of a resource.', s.string),
      seen_at: s.described('When the target last listed it.', s.time),
      matches: s.described('Whether `resource_pattern` matches the name; null: there is no pattern.', s.orNull(s.boolean)),
    }),
  ),
  names_count: s.described('How many names are known that the query asks for. `names` has at most 3,000.', s.integer),
});

export interface CatalogueQuery {
  readonly text?: string;
  readonly resource_type?: ResourceType;
  readonly resource_pattern?: string;
  readonly limit?: string;
}

const catalogueMembers = {
  text: Joi.string().max(256).description('Only names that contain this text, in upper or lower case. Absent: all.'),
  resource_type: Joi.valid(...RESOURCE_TYPES).description('Only names of this type. Absent: all.'),
  resource_pattern: text(POLICY_LIMITS.pattern).description('Test this pattern of a policy against each name.'),
  limit: Joi.string()
    .pattern(/^[1-9][0-9]{0,3}$/)
    .description('At most so many names, the first ones. `names_count` counts all. At most 3000 are returned.'),
};
export const catalogueQuery = Joi.object<CatalogueQuery>(catalogueMembers);

export const TARGET_OPERATIONS: Operations = {
  'GET /api/targets': get('listTargets', 'List all targets.', many(Target, 'Link'), {
    access: ['read', 'targets:operate'],
    query: wholeOrPaged,
  }),
  'POST /api/targets': {
    id: 'createTarget',
    access: 'admin',
    summary: 'Register a target.',
    takes: newTarget,
    gives: { 201: one(Target, 'ETag', 'Location') },
    refuses: [409],
  },
  'GET /api/targets/{id}/health': get(
    'getTargetHealth',
    'Get the health of a target, as the replica that answers has last seen it.',
    one(TargetHealth),
    { access: ['read', 'targets:operate'] },
  ),
  'GET /api/targets/{id}/catalogue': get(
    'getTargetCatalogue',
    'List the names that a target has, as it last listed them through the replica that answers, for any caller.',
    one(TargetCatalogue),
    { access: ['read', 'targets:operate'], query: queryOf(catalogueMembers) },
  ),
  'POST /api/targets/{id}/check': {
    id: 'checkTarget',
    access: 'admin',
    summary:
      'Try a target: open a session with the credentials for the caller, list the tools, and end the session. Policies do not take part. A target that does not work is described in `fault`.',
    gives: { 200: one(TargetCheckModel) },
    refuses: [429],
  },
  'GET /api/targets/{id}': tagged('getTarget', 'Get a target.', one(Target, 'ETag'), { access: ['read', 'targets:operate'] }),
  'PUT /api/targets/{id}': {
    id: 'updateTarget',
    access: ['targets:operate'],
    summary:
      'Update a target. Callers without the role `admin` may change only `enabled`. Omitted members keep their values. A change of the URL, transport, command, arguments or environment disables its credentials until they are set again.',
    takes: changedTarget,
    gives: { 200: one(Target, 'ETag') },
    refuses: [409],
    conditional: true,
  },
  'DELETE /api/targets/{id}': {
    id: 'deleteTarget',
    access: 'admin',
    summary: 'Delete a target and its credentials. A target that a policy names cannot be deleted.',
    gives: { 204: nothing() },
    refuses: [409],
    conditional: true,
  },
};

const credentialKey = { type: s.oneOf(CREDENTIAL_TYPES), name: schemaOf(credentialName) };

const credentialsOf = (subject: string, kind: string, whom: string): Record<string, Operation> => ({
  [`PUT /api/targets/{id}/credentials/${subject}`]: {
    id: `set${kind}Credential`,
    access: 'admin',
    summary: `Set a credential with which the gateway calls the target for ${whom}.`,
    takes: newCredential,
    gives: { 200: one(Credential), 201: one(Credential) },
  },
  [`DELETE /api/targets/{id}/credentials/${subject}`]: {
    id: `delete${kind}Credentials`,
    access: 'admin',
    summary: `Delete the credentials of the target for ${whom}.`,
    gives: { 204: nothing() },
    query: [parameter('query', 'name', { type: 'string' }, 'Deletes only the credential for this header or variable.')],
  },
});

const Credential = s.model<CredentialJson>('Credential', {
  subject_type: s.oneOf(CREDENTIAL_SUBJECTS),
  subject_value: s.described('null exactly for `default`.', s.orNull(s.string)),
  ...credentialKey,
  usable: s.described(
    'false: the target has moved, so the credential must be set again; or a user supplied it, and the target no longer accepts it from users.',
    s.boolean,
  ),
  supplied_by: s.oneOf(['administrator', 'user']),
  ...s.times,
});
export type OwnCredentialJson = ReturnType<typeof ownCredentialJson>;

/** A key for which the caller may supply a value. The value itself is never shown. */
export const ownCredentialJson = (target: string, { type, name }: CredentialKey, updated_at: string | null) => ({
  target,
  type,
  name,
  set: updated_at !== null,
  updated_at,
});

const OwnCredential = s.model<OwnCredentialJson>('OwnCredential', {
  target: s.targetName,
  ...credentialKey,
  set: s.described('Whether a value is stored for the caller.', s.boolean),
  updated_at: s.orNull(s.time),
});

export const CREDENTIAL_OPERATIONS: Operations = {
  'GET /api/targets/{id}/credentials': get(
    'listCredentials',
    'List the credentials of a target, without their values.',
    many(Credential),
  ),
  ...credentialsOf('default', 'Default', 'users without a more specific one'),
  ...credentialsOf('role/{value}', 'Role', 'a role'),
  ...credentialsOf('group/{value}', 'Group', 'a group'),
  ...credentialsOf('user/{value}', 'User', 'a user, given by id'),
  'GET /api/credentials': getWithToken(
    'listOwnCredentials',
    'List the credentials that the caller may supply, for the targets that the caller may use.',
    many(OwnCredential),
  ),
  'PUT /api/credentials/{target}/{name}': {
    id: 'setOwnCredential',
    summary: "Set the caller's own value. 403: an administrator has set a value for the caller.",
    access: 'unlimited token',
    takes: ownValue,
    gives: { 200: one(OwnCredential), 201: one(OwnCredential) },
    refuses: [429],
  },
  'DELETE /api/credentials/{target}/{name}': {
    id: 'deleteOwnCredential',
    summary: "Delete the caller's own value.",
    access: 'unlimited token',
    gives: { 204: nothing() },
    refuses: [429],
  },
};
