/** Credentials for targets: those that administrators set, and those that users supply. */
import { CREDENTIAL_SUBJECTS, credentialName, newCredential, ownValue } from '../../targets/credential-document.ts';
import { CREDENTIAL_TYPES } from '../../targets/target.ts';
import { schemaOf } from '../openapi/from-joi.ts';
import { get, many, nothing, type Operation, one, type Paths, parameter } from '../openapi/operation.ts';
import { boolean, described, object, oneOf, orNull, type Schema, string, targetName, time, times } from '../openapi/schema.ts';

const credentialKey = { type: oneOf(CREDENTIAL_TYPES), name: schemaOf(credentialName) };

const credentialsOf = (kind: string, whom: string): { put: Operation; delete: Operation } => ({
  put: {
    id: `set${kind}Credential`,
    summary: `Set a credential with which the gateway calls the target for ${whom}.`,
    access: 'admin',
    takes: newCredential,
    gives: { 200: one('Credential'), 201: one('Credential') },
  },
  delete: {
    id: `delete${kind}Credentials`,
    summary: `Delete the credentials of the target for ${whom}.`,
    access: 'admin',
    gives: { 204: nothing() },
    query: [parameter('query', 'name', { type: 'string' }, 'Deletes only the credential for this header or variable.')],
  },
});

export const CREDENTIAL_SCHEMAS = {
  Credential: object({
    subject_type: oneOf(CREDENTIAL_SUBJECTS),
    subject_value: described('null exactly for `default`.', orNull(string)),
    ...credentialKey,
    usable: described(
      'false: the target has moved, so the credential must be set again; or a user supplied it, and the target no longer accepts it from users.',
      boolean,
    ),
    supplied_by: oneOf(['administrator', 'user']),
    ...times,
  }),
  OwnCredential: object({
    target: targetName,
    ...credentialKey,
    set: described('Whether a value is stored for the caller.', boolean),
    updated_at: orNull(time),
  }),
} satisfies Record<string, Schema>;

export const CREDENTIAL_PATHS: Paths = {
  '/api/targets/{id}/credentials': {
    get: get('listCredentials', 'List the credentials of a target, without their values.', 'admin', many('Credential')),
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
      many('OwnCredential'),
    ),
  },
  '/api/credentials/{target}/{name}': {
    put: {
      id: 'setOwnCredential',
      summary: "Set the caller's own value. 403: an administrator has set a value for the caller.",
      access: 'any token',
      takes: ownValue,
      gives: { 200: one('OwnCredential'), 201: one('OwnCredential') },
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
