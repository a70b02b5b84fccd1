/** A gateway with a local account and the company's provider, and the two ways to sign in there in a real browser. */
import type { ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';
import type { Open } from '../support/chromium.ts';
import { CLIENT_ID, CLIENT_SECRET, startCompany } from '../support/company.ts';
import { type World, world } from '../support/world.ts';

export interface Account {
  /** How the gateway shows the user. */
  readonly email: string;
  /** Whether what needs a recent sign-in asks once more: the provider may have asked nobody for a password. */
  readonly isAskedAgain: boolean;
  /** Answers the sign-in page of the gateway. */
  signIn(page: Page): Promise<void>;
}

export const ACCOUNTS = ['a local account', "an account of the company's provider"] as const;
export type AccountKind = (typeof ACCOUNTS)[number];

export interface Scene extends World {
  readonly account: Account;
}

/** A world in which operators may call `echo`: by the user record, or by a rule for a group of the provider. */
export async function scene(t: ExecutionContext, kind: AccountKind): Promise<Scene> {
  const w = await world(t);
  const { gateway, admin, user } = w;
  await w.allow({
    ...{ name: 'operators', resource_type: 'tool', resource_pattern: '^echo$' },
    subjects: [{ subject_type: 'role', subject_value: 'operator' }],
  });
  if (kind === 'a local account') {
    await gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token: admin.token, body: { role: 'operator' } });
    const signIn = async (page: Page): Promise<void> => {
      await page.getByLabel('E-mail').fill(user.email);
      await page.getByLabel('Password').fill(user.password);
      await page.getByRole('button', { name: 'Sign in' }).click();
    };
    return { ...w, account: { email: user.email, isAskedAgain: false, signIn } };
  }
  const company = await startCompany(t, () => [`${gateway.url}/signin/with/company/callback`]);
  const email = 'alice@example.com';
  company.people.set('alice', { email, email_verified: true, groups: ['ops'] });
  await gateway.rest(201, 'POST', '/api/providers', {
    token: admin.token,
    body: {
      ...{ name: 'company', title: 'The Company', preset: 'openid', issuer: company.issuer },
      ...{ client_id: CLIENT_ID, client_secret: CLIENT_SECRET, groups_claim: ['groups'] },
      rules: [{ if_group: 'ops', role: 'operator' }],
    },
  });
  const signIn = async (page: Page): Promise<void> => {
    await page.getByRole('link', { name: 'Sign in with The Company' }).click();
    await page.getByLabel('Name').fill('alice');
    await page.getByRole('button', { name: 'Log in at the company' }).click();
  };
  return { ...w, account: { email, isAskedAgain: true, signIn } };
}

/** A person opens the address of a client in a new browser, signs in and agrees. Resolves when the browser is back at the client. */
export async function approve(open: Open, address: string, { signIn }: Pick<Account, 'signIn'>): Promise<void> {
  const context = await open();
  const page = await context.newPage();
  await page.goto(address);
  await signIn(page);
  await page.getByRole('button', { name: 'Allow' }).click();
  await page.waitForURL(({ searchParams }) => searchParams.has('code'));
  await context.close();
}
