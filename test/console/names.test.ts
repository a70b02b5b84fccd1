import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { userIdOf } from '../../src/console/people/names.ts';
import type { View } from '../../src/console/view.ts';

const ID = '01a2152e-b130-73d3-bbd0-d65b69a955f6';

/** The operation that lists the users with exactly this e-mail, in pages. */
function viewOf(emails: readonly (string | null)[]): View {
  const get = async (path: string) => {
    const query = new URLSearchParams(path.slice('/users?'.length));
    const users = emails.map((email, at) => ({ id: `id-${at}`, email }));
    const found = users.filter(({ email }) => email?.toLowerCase() === query.get('email')?.toLowerCase());
    return { body: found.slice(0, Number(query.get('limit') ?? 'Infinity')), next: null };
  };
  return { get } as unknown as View;
}

test('an e-mail names a user only if exactly one user has it', async (t) => {
  const longer = Array.from({ length: 200 }, (_, at) => `${at}ann@example.com`);
  t.is(await userIdOf(viewOf([...longer, 'ann@example.com', null]), ' Ann@example.com', 'who'), 'id-200');
  t.is(await userIdOf(viewOf(longer), 'ann@example.com', 'who'), null);
  t.is(await userIdOf(viewOf([]), ID, 'who'), ID);
  const error = await t.throwsAsync(userIdOf(viewOf(['ann@example.com', 'ANN@example.com']), 'ann@example.com', 'who'), {
    instanceOf: AppError,
    code: 'invalid_request',
  });
  t.regex(JSON.stringify(error?.errors), /"who".*several users/);
});
