/** People know users by their e-mail, and operations by their id. */
import { invalidRequest } from '../../base/errors.ts';
import { UUID } from '../../base/validate.ts';
import type { UserDocument } from '../../users/document.ts';
import { unlessRefused, type View, withQuery } from '../view.ts';

/** One page asks for the names of so many users. */
const MOST = 100;

/** Returns the e-mails of these users, by id, as far as the reader may know them. */
export async function emailsOf({ get, may }: View, ids: Iterable<string>): Promise<ReadonlyMap<string, string>> {
  if (!may('getUser')) return new Map();
  const wanted = [...new Set(ids)].filter((id) => UUID.test(id)).slice(0, MOST);
  const found = await Promise.all(wanted.map((id) => unlessRefused(get<UserDocument>(`/users/${id}`))));
  return new Map(found.flatMap((user) => (user?.body.email == null ? [] : [[user.body.id, user.body.email]])));
}

/**
 * Returns the id of the user with this id or e-mail; null if no user has the e-mail, or the reader may not look. Accounts of different
 * providers may have the same e-mail, so an e-mail that does not tell which user is meant throws AppError `invalid_request` at `path`.
 */
export async function userIdOf({ get }: View, named: string, path: string): Promise<string | null> {
  const text = named.trim();
  if (UUID.test(text)) return text;
  const found = await unlessRefused(get<UserDocument[]>(withQuery('/users', { email: text, limit: '2' })), 'invalid_request');
  const users = found?.body ?? [];
  if (users.length > 1) throw invalidRequest([{ path, message: 'is the e-mail of several users. Enter the id of one of them' }]);
  return users[0]?.id ?? null;
}

/** The ids of the users that subjects name. */
export const usersIn = (
  subjects: readonly { readonly subject_type: string; readonly subject_value: string | null }[],
): readonly string[] =>
  subjects.flatMap(({ subject_type: type, subject_value: value }) => (type === 'user' && value !== null ? [value] : []));
