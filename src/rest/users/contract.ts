/** User records. Only administrators reach them. */
import { newUser, type UserDocument, userFilter, userUpdate } from '../../users/document.ts';
import { FACTS_REFUSALS } from '../../users/user-store.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, many, type Operations, one, tagged, wholeOrPaged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const User = s.model<UserDocument>('User', {
  id: s.uuid,
  email: s.described('null: the provider gives no e-mail.', s.orNull(s.string)),
  role: s.string,
  groups: s.described('All groups: those of the provider and those that administrators gave.', s.listOf(s.string)),
  enabled: s.boolean,
  issuer: s.described('`portcullis`: a local account. Otherwise the issuer of a provider.', s.string),
  subject: s.string,
  given_role: s.described('null: the provider decides.', s.orNull(s.string)),
  given_groups: s.listOf(s.string),
  refusal: s.described(
    'Why the user is refused after the newest facts of the provider and its directory, for example no role, or an e-mail that is not allowed.',
    s.orNull(s.oneOf(FACTS_REFUSALS)),
  ),
  valid_after: s.described('A token of the provider that was issued at or before this time is refused.', s.orNull(s.time)),
  ...s.times,
});

export const USER_OPERATIONS: Operations = {
  'GET /api/users': get('listUsers', 'List all users.', many(User, 'Link'), {
    access: ['read', 'users:manage'],
    query: [...wholeOrPaged, ...queryOf(userFilter)],
  }),
  'POST /api/users': {
    id: 'createUser',
    access: ['users:manage'],
    summary: 'Create a user.',
    takes: newUser,
    gives: { 201: one(User, 'ETag', 'Location') },
    refuses: [409, 429],
  },
  'GET /api/users/{id}': tagged('getUser', 'Get a user.', one(User, 'ETag'), { access: ['read', 'users:manage'] }),
  'PUT /api/users/{id}': {
    id: 'updateUser',
    access: ['users:manage'],
    summary: 'Update role, groups or enabled. Omitted members keep their values.',
    takes: userUpdate,
    gives: { 200: one(User, 'ETag') },
    refuses: [409],
    conditional: true,
  },
};
