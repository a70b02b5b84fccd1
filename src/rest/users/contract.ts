/** User records. Only administrators reach them. */
import { newUser, userUpdate } from '../../users/document.ts';
import { get, many, one, type Paths, wholeOrPaged } from '../openapi/operation.ts';
import { boolean, listOf, object, type Schema, string, times, uuid } from '../openapi/schema.ts';

export const USER_SCHEMAS = {
  User: object({ id: uuid, email: string, role: string, groups: listOf(string), enabled: boolean, ...times }),
} satisfies Record<string, Schema>;

export const USER_PATHS: Paths = {
  '/api/users': {
    get: get('listUsers', 'List all users.', 'admin', many('User', 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createUser',
      summary: 'Create a user.',
      access: 'admin',
      takes: newUser,
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
      takes: userUpdate,
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
