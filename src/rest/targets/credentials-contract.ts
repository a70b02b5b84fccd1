/** Credentials for targets: those that administrators set, and those that users supply. */
import { CREDENTIAL_SUBJECTS, credentialName, newCredential, ownValue } from '../../targets/credential-document.ts';
import type { CredentialJson } from '../../targets/credentials.ts';
import { CREDENTIAL_TYPES } from '../../targets/target.ts';
import { schemaOf } from '../openapi/from-joi.ts';
import { get, many, nothing, type Operation, one, type Paths, parameter } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import type { OwnCredentialJson } from './routes.ts';

const credentialKey = { type: s.oneOf(CREDENTIAL_TYPES), name: schemaOf(credentialName) };

const credentialsOf = (kind: string, whom: string): { put: Operation; delete: Operation } => ({
  put: {
    id: `set${kind}Credential`,
    summary: `Set a credential with which the gateway calls the target for ${whom}.`,
    access: 'admin',
    takes: newCredential,
    gives: { 200: one(Credential), 201: one(Credential) },
  },
  delete: {
    id: `delete${kind}Credentials`,
    summary: `Delete the credentials of the target for ${whom}.`,
    access: 'admin',
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
const OwnCredential = s.model<OwnCredentialJson>('OwnCredential', {
  target: s.targetName,
  ...credentialKey,
  set: s.described('Whether a value is stored for the caller.', s.boolean),
  updated_at: s.orNull(s.time),
});

export const CREDENTIAL_PATHS: Paths = {
  '/api/targets/{id}/credentials': {
    get: get('listCredentials', 'List the credentials of a target, without their values.', 'admin', many(Credential)),
  },
  '/api/targets/{id}/credentials/default': credentialsOf('Default', 'users without a more specific one'),
  '/api/targets/{id}/credentials/role/{value}': credentialsOf('Role', 'a role'),
  '/api/targets/{id}/credentials/group/{value}': credentialsOf('Group', 'a group'),
  '/api/targets/{id}/credentials/user/{value}': credentialsOf('User', 'a user, given by id'),
  '/api/credentials': {
    get: get(
      'listOwnCredentials',
      'List the credentials that the caller may supply, for the targets that the caller may use.',
      'any token',
      many(OwnCredential),
    ),
  },
  '/api/credentials/{target}/{name}': {
    put: {
      id: 'setOwnCredential',
      summary: "Set the caller's own value. 403: an administrator has set a value for the caller.",
      access: 'any token',
      takes: ownValue,
      gives: { 200: one(OwnCredential), 201: one(OwnCredential) },
      refuses: [429],
    },
    delete: {
      id: 'deleteOwnCredential',
      summary: "Delete the caller's own value.",
      access: 'any token',
      gives: { 204: nothing() },
      refuses: [429],
    },
  },
};
