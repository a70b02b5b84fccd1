/** The authorization server for OAuth clients: its endpoints, its pages, and the grants behind access tokens. */
import type { IncomingMessage } from 'node:http';
import { BY_ASSERTION } from '../auth/grant-store.ts';
import { createOutbound } from '../base/network/outbound.ts';
import type { Applications } from '../browser/account.ts';
import type { PageMount } from '../browser/pages.ts';
import type { BrowserSessions } from '../browser/sessions.ts';
import { addressOf } from '../http/limits/client-address.ts';
import { destinationOf, factsOf } from '../oauth/client-rules.ts';
import type { ClientHead } from '../oauth/client-store.ts';
import { createConsent } from '../oauth/consent.ts';
import { createGrants } from '../oauth/grants.ts';
import { createAuthorizationServer } from '../oauth/handler.ts';
import { recordStore } from '../oauth/record-store.ts';
import { admitsUser } from '../state/admission.ts';
import { maySignIn } from '../users/local-sign-in.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';
import type { Decisions } from './decisions.ts';

/** The whole request for a client's metadata document. */
const DOCUMENT_MS = 5_000;

function originOf(redirectUri: string, client: ClientHead | null): string {
  if (client?.kind === 'document') return factsOf(client.client_id, undefined).document ?? '';
  if (redirectUri === BY_ASSERTION) return 'allowed by your company';
  return redirectUri === '' ? 'on a device' : destinationOf(redirectUri);
}

export type OAuth = ReturnType<typeof createOAuth>;

export function createOAuth(
  base: Base,
  { current }: Decisions,
  { administer, stillAdmits, limits, providers: { keys: providerKeys, people, faults } }: Accounts,
) {
  const { config, log, vault, database, changes, keys, now } = base;
  const { publicUrl, trustProxy } = config;
  const grants = createGrants({ database, changes, administer, stillAdmits, now });
  const records = recordStore(database);
  const documents = createOutbound({ allowed: config.oauth.documentAddresses, setting: 'OAUTH_DOCUMENT_ADDRESSES' });
  // The pages and the server need browser sessions, which are made with the pages.
  let browser: BrowserSessions | null = null;
  const { providers, router } = createAuthorizationServer({
    ...{ publicUrl, database, vault, keys, records, grants, limits, log, now },
    registration: config.oauth.registration,
    // The library refuses documents of more than 5 KB.
    fetchDocument: documents.fetchWith({ maxBytes: 16 * 1024, withinMs: DOCUMENT_MS }),
    addressOf: (req: IncomingMessage) => addressOf(req, trustProxy),
    admits: async (user) => admitsUser(user, (await current.fresh()).providers) && maySignIn(config.localSignIn, user),
    companies: { keys: providerKeys, people, faults, fresh: async () => (await current.fresh()).providers },
    currentUser: async (req, res) => (await browser?.currentUser(req, res)) ?? null,
  });
  const applications: Applications = {
    async ofUser(userId) {
      const views = await grants.ofUser(userId);
      return views.map(({ grant, client }) => ({
        id: grant.id,
        name: client?.name ?? '',
        origin: originOf(grant.redirect_uri, client),
        since: grant.created_at,
        usedAt: grant.used_at,
      }));
    },
    end: grants.end,
  };
  return {
    grants,
    router,
    applications,
    /** Loads the libraries of both sides of OAuth. */
    async loadLibraries(): Promise<void> {
      await Promise.all([providers.load(), import('openid-client')]);
    },
    pagesFor(sessions: BrowserSessions): readonly PageMount[] {
      browser = sessions;
      return createConsent({ publicUrl, providers, sessions, grants, records, limits, log, now });
    },
    close: (): Promise<void> => documents.close(),
  };
}
