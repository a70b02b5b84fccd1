import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { userIdOf } from '../../src/console/people/names.ts';
import type { View } from '../../src/console/view.ts';

const ID = '01a2152e-b130-73d3-bbd0-d65b69a955f6';

const viewOf = (emails: readonly (string | null)[], next: URLSearchParams | null = null): View =>
  ({ get: async () => ({ body: emails.map((email, at) => ({ id: `id-${at}`, email })), next }) }) as unknown as View;

test('an e-mail names a user only if exactly one user has it', async (t) => {
  t.is(await userIdOf(viewOf(['ann@example.com', 'joann@example.com', null]), ' Ann@example.com', 'who'), 'id-0');
  t.is(await userIdOf(viewOf(['joann@example.com']), 'ann@example.com', 'who'), null);
  t.is(await userIdOf(viewOf([]), ID, 'who'), ID);
  const ambiguous: readonly View[] = [
    viewOf(['ann@example.com', 'ANN@example.com']),
    viewOf(['ann@example.com'], new URLSearchParams({ cursor: 'x' })),
  ];
  for (const view of ambiguous) {
    const error = await t.throwsAsync(userIdOf(view, 'ann@example.com', 'who'), {
      instanceOf: AppError,
      code: 'invalid_request',
    });
    t.regex(JSON.stringify(error?.errors), /"who".*several users/);
  }
});
