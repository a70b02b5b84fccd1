/** The pages: browser sessions, sign-in and account. Other parts add pages and ways to sign in. */
import { type Applications, accountRoutes } from '../browser/account.ts';
import type { PageMount } from '../browser/pages.ts';
import { registerRoutes } from '../browser/register.ts';
import { REGISTER } from '../browser/requests.ts';
import { type BrowserSessions, createBrowserSessions } from '../browser/sessions.ts';
import { signInRoutes } from '../browser/sign-in.ts';
import { callbackOf, WITH_PROVIDER, waysWith, withProviderRoutes } from '../browser/with-provider.ts';
import { CONNECTIONS_PATH, connectionPages } from '../connections/pages.ts';
import { clientSecret } from '../providers/edit.ts';
import { createProviderSignIn } from '../providers/sign-in.ts';
import { createFreshRead } from '../state/fresh-read.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';
import type { Connections } from './connections.ts';
import type { Decisions } from './decisions.ts';

export type Browser = ReturnType<typeof createBrowser>;

/** `others`: the pages of other parts. */
export function createBrowser(
  { config, vault, database, now, log }: Base,
  { current }: Decisions,
  { login, registration, limits, sessionList, providers }: Accounts,
  { connecting }: Connections,
  applications: Applications,
  others: (sessions: BrowserSessions) => readonly PageMount[],
) {
  const { publicUrl, trustProxy, localSignIn } = config;
  const freshRead = createFreshRead(database, current.fresh);
  const sessions = createBrowserSessions({ database, freshRead, trustProxy, now, localSignIn });
  const enabled = async () => (await current.fresh()).providers;
  const signIn = createProviderSignIn({
    ...{ vault, now },
    ...providers,
    secretOf: (provider) => clientSecret(database.knex, vault, provider),
    redirectUri: (provider) => callbackOf(publicUrl, provider),
  });
  const { faults } = providers;
  const otherWays = async () => waysWith(await enabled());
  const pages: readonly PageMount[] = [
    {
      path: WITH_PROVIDER,
      router: withProviderRoutes({ trustProxy, limits, sessions, signIn, faults, providers: enabled }),
      takesTurns: true,
    },
    { path: REGISTER, router: registerRoutes({ publicUrl, trustProxy, registration, limits, sessions }) },
    {
      path: '/signin',
      router: signInRoutes({ publicUrl, trustProxy, login, registration, limits, sessions, otherWays, localSignIn }),
    },
    {
      path: '/account',
      router: accountRoutes({ publicUrl, trustProxy, login, limits, sessions, sessionList, applications }),
    },
    { path: CONNECTIONS_PATH, router: connectionPages({ publicUrl, database, sessions, connecting, limits, log }) },
    ...others(sessions),
  ];
  return { sessions, pages };
}
