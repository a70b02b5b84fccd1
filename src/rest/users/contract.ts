/** User records. Only administrators reach them. */
import { newUser, type UserDocument, userUpdate } from '../../users/document.ts';
import { get, many, type Operations, one, wholeOrPaged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const User = s.model<UserDocument>('User', {
  id: s.uuid,
  email: s.string,
  role: s.string,
  groups: s.listOf(s.string),
  enabled: s.boolean,
  ...s.times,
});

export const USER_OPERATIONS: Operations = {
  'GET /api/users': get('listUsers', 'List all users.', many(User, 'Link'), { query: wholeOrPaged }),
  'POST /api/users': {
    id: 'createUser',
    summary: 'Create a user.',
    takes: newUser,
    gives: { 201: one(User, 'Location') },
    refuses: [409, 429],
  },
  'GET /api/users/{id}': get('getUser', 'Get a user.', one(User)),
  'PUT /api/users/{id}': {
    id: 'updateUser',
    summary: 'Update role, groups or enabled. Omitted members keep their values.',
    takes: userUpdate,
    gives: { 200: one(User) },
    refuses: [409],
  },
};
