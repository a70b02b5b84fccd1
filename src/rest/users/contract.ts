/** User records. Only administrators reach them. */
import { newUser, type UserDocument, userUpdate } from '../../users/document.ts';
import { get, many, one, type Paths, wholeOrPaged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const User = s.model<UserDocument>('User', {
  id: s.uuid,
  email: s.string,
  role: s.string,
  groups: s.listOf(s.string),
  enabled: s.boolean,
  ...s.times,
});

export const USER_PATHS: Paths = {
  '/api/users': {
    get: get('listUsers', 'List all users.', 'admin', many(User, 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createUser',
      summary: 'Create a user.',
      takes: newUser,
      gives: { 201: one(User, 'Location') },
      refuses: [409, 429],
    },
  },
  '/api/users/{id}': {
    get: get('getUser', 'Get a user.', 'admin', one(User)),
    put: {
      id: 'updateUser',
      summary: 'Update role, groups or enabled. Omitted members keep their values.',
      takes: userUpdate,
      gives: { 200: one(User) },
      refuses: [409],
    },
  },
};
