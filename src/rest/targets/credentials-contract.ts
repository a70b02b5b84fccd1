/** Credentials for targets: those that administrators set, and those that users supply. */
import { CREDENTIAL_LIMITS, CREDENTIAL_SUBJECTS, CREDENTIAL_TYPES } from '../../targets/credential-document.ts';
import { get, many, nothing, type Operation, one, type Paths, parameter } from '../openapi/operation.ts';
import {
  boolean,
  described,
  named,
  object,
  oneOf,
  orNull,
  type Schema,
  strict,
  string,
  targetName,
  text,
  time,
  times,
} from '../openapi/schema.ts';

const credentialValue = text(CREDENTIAL_LIMITS.value);
export const credentialKey = {
  type: oneOf(CREDENTIAL_TYPES),
  name: described('`authorization` for a bearer, the name in lower case for a header, the name of the variable for env.', string),
};

const credentialsOf = (kind: string, whom: string): { put: Operation; delete: Operation } => ({
  put: {
    id: `set${kind}Credential`,
    summary: `Set a credential with which the gateway calls the target for ${whom}.`,
    access: 'admin',
    takes: 'NewCredential',
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
  NewCredential: {
    oneOf: [
      named('NewBearerCredential', strict({ type: { const: 'bearer' }, value: credentialValue }, ['type', 'value'])),
      named(
        'NewNamedCredential',
        strict({ type: oneOf(['header', 'env']), name: text(CREDENTIAL_LIMITS.name), value: credentialValue }, [
          'type',
          'name',
          'value',
        ]),
      ),
    ],
  },
  OwnCredential: object({
    target: targetName,
    ...credentialKey,
    set: described('Whether a value is stored for the caller.', boolean),
    updated_at: orNull(time),
  }),
  OwnCredentialValue: strict({ value: credentialValue }, ['value']),
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
      takes: 'OwnCredentialValue',
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
