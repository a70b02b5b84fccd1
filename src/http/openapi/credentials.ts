/** What targets are used with: the credentials of administrators, and those that users supply. */
import { CREDENTIAL_LIMITS, CREDENTIAL_SUBJECTS, CREDENTIAL_TYPES } from '../../targets/credential-document.ts';
import { get, many, nothing, type Operation, one, type Paths, parameter } from './operation.ts';
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
} from './schema.ts';

const credentialValue = text(CREDENTIAL_LIMITS.value);
export const credentialKey = {
  type: oneOf(CREDENTIAL_TYPES),
  name: described('Of a bearer `authorization`, of a header its name in lower case, of env a variable.', string),
};

const credentialsOf = (kind: string, whom: string): { put: Operation; delete: Operation } => ({
  put: {
    id: `set${kind}Credential`,
    summary: `Set a credential that the target is used with for ${whom}.`,
    access: 'admin',
    takes: 'NewCredential',
    gives: { 200: one('Credential'), 201: one('Credential') },
  },
  delete: {
    id: `delete${kind}Credentials`,
    summary: `Delete those for ${whom}.`,
    access: 'admin',
    gives: { 204: nothing() },
    query: [parameter('query', 'name', { type: 'string' }, 'That of this header or variable alone.')],
  },
});

export const CREDENTIAL_SCHEMAS = {
  Credential: object({
    subject_type: oneOf(CREDENTIAL_SUBJECTS),
    subject_value: described('null exactly for `default`.', orNull(string)),
    ...credentialKey,
    usable: described(
      'false: the target has moved, so that it must be set again; or it is of a user, and the target does not take it from users.',
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
    set: described('Whether there is a value for the caller.', boolean),
    updated_at: orNull(time),
  }),
  OwnCredentialValue: strict({ value: credentialValue }, ['value']),
} satisfies Record<string, Schema>;

export const CREDENTIAL_PATHS: Paths = {
  '/api/targets/{id}/credentials': {
    get: get('listCredentials', 'The credentials of a target, never their values.', 'admin', many('Credential')),
  },
  '/api/targets/{id}/credentials/default': credentialsOf('Default', 'everybody who has none of their own'),
  '/api/targets/{id}/credentials/role/{value}': credentialsOf('Role', 'a role'),
  '/api/targets/{id}/credentials/group/{value}': credentialsOf('Group', 'a group'),
  '/api/targets/{id}/credentials/user/{value}': credentialsOf('User', 'a user, by id'),
  '/api/credentials': {
    get: get(
      'listOwnCredentials',
      'What the caller may supply values for, at the targets that they may use.',
      'any token',
      many('OwnCredential'),
    ),
  },
  '/api/credentials/{target}/{name}': {
    put: {
      id: 'setOwnCredential',
      summary: "Set the caller's own value. 403: an administrator has set one for them.",
      access: 'any token',
      takes: 'OwnCredentialValue',
      gives: { 200: one('OwnCredential'), 201: one('OwnCredential') },
      refuses: [429],
    },
    delete: { id: 'deleteOwnCredential', summary: 'Delete it.', access: 'any token', gives: { 204: nothing() }, refuses: [429] },
  },
};
