/** User records. Only administrators reach them. */
import { USER_LIMITS } from '../../users/document.ts';
import { get, many, one, type Paths, wholeOrPaged } from '../openapi/operation.ts';
import {
  boolean,
  described,
  listOf,
  object,
  readOnly,
  type Schema,
  strict,
  string,
  text,
  times,
  uuid,
} from '../openapi/schema.ts';

export const email = text(USER_LIMITS.email);
export const password = text(USER_LIMITS.password);
export const newPassword = { ...password, minLength: USER_LIMITS.passwordMin };
export const role = text(USER_LIMITS.name);
export const groups = { ...listOf(text(USER_LIMITS.name)), uniqueItems: true };

export const USER_SCHEMAS = {
  User: object({ id: uuid, email: string, role: string, groups: listOf(string), enabled: boolean, ...times }),
  NewUser: strict({ email, password: newPassword, role: described('Absent: `user`.', role), groups }, ['email', 'password']),
  UserUpdate: strict({ role, groups, enabled: boolean, ...readOnly({ id: uuid, email: string, ...times }) }, []),
} satisfies Record<string, Schema>;

export const USER_PATHS: Paths = {
  '/api/users': {
    get: get('listUsers', 'List all users.', 'admin', many('User', 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createUser',
      summary: 'Create a user.',
      access: 'admin',
      takes: 'NewUser',
      gives: { 201: one('User', 'Location') },
      refuses: [409, 429],
    },
  },
  '/api/users/{id}': {
    get: get('getUser', 'Get a user.', 'admin', one('User')),
    put: {
      id: 'updateUser',
      summary: 'Update role, groups or enabled. Omitted members keep their values.',
      access: 'admin',
      takes: 'UserUpdate',
      gives: { 200: one('User') },
      refuses: [409],
    },
  },
  '/api/users/{id}/recycle': {
    post: {
      id: 'recycleSessionsOfUser',
      summary: "Reconnect the user's sessions to their targets.",
      access: 'admin',
      gives: { 200: one('Recycled') },
    },
  },
};
