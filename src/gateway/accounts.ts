/** Who may call the gateway: tokens, passwords, registration, and the rights of administrators. */

import { createAdminister, createStillAdmits, type ProviderAdmits } from '../auth/caller.ts';
import { isRefusal } from '../auth/principal.ts';
import { createBrowserSessionList } from '../auth/sign-in/browser-sessions.ts';
import { createDraftToken } from '../auth/sign-in/issue.ts';
import { createLogin } from '../auth/sign-in/login.ts';
import { createPasswords } from '../auth/sign-in/passwords.ts';
import { createRegistration } from '../auth/sign-in/registration.ts';
import { AUDIENCE, createVerifier, ISSUER } from '../auth/verify.ts';
import { createAddressRule } from '../base/network/network-address.ts';
import { createOutbound } from '../base/network/outbound.ts';
import { whenThere } from '../base/promises.ts';
import { createCallers } from '../http/callers.ts';
import { createRateLimits } from '../http/limits/rate-limit.ts';
import { createProviderEdits } from '../providers/edit.ts';
import { createFaultLog } from '../providers/faults.ts';
import { createProviderKeys } from '../providers/keys.ts';
import { createPeople } from '../providers/people.ts';
import { providerStore } from '../providers/provider-store.ts';
import { createProviderTokens } from '../providers/tokens.ts';
import { createAuthenticate } from '../rest/authenticate.ts';
import type { Base } from './base.ts';
import type { Decisions } from './decisions.ts';

export type Accounts = ReturnType<typeof createAccounts>;

export function createAccounts(
  { config, vault, database, changes, keys, newId, now }: Base,
  { admit: admitClaims, current }: Decisions,
) {
  const rules = { issuer: ISSUER, audience: AUDIENCE, publicUrl: config.publicUrl, now };
  const providerAdmits: ProviderAdmits = async (trx, issuer) => (await providerStore(trx).findByIssuer(issuer))?.enabled === true;
  const administer = createAdminister({ changes, now, providerAdmits });
  const stillAdmits = createStillAdmits({ now, providerAdmits });
  const passwords = createPasswords();
  const limits = createRateLimits(config.rateLimits);
  const callers = createCallers(config.trustProxy);
  const outbound = createOutbound({ allowed: config.allowedAddresses });
  const faults = createFaultLog(now);
  const providerKeys = createProviderKeys({ outbound, now });
  const people = createPeople({ database, changes, now });
  const providerTokens = createProviderTokens({
    ...{ keys: providerKeys, people, faults, now },
    known: () => current.lastKnown()?.providers ?? null,
    fresh: async () => (await current.fresh()).providers,
    own: [ISSUER, config.publicUrl],
  });
  const admit = callers.noting((claims) =>
    whenThere(admitClaims(claims), (admission) => {
      if (claims.provider !== null && isRefusal(admission)) providerTokens.forget(claims);
      return admission;
    }),
  );
  return {
    outbound,
    callers,
    admit,
    verify: createVerifier(keys, rules, callers.heard, providerTokens),
    authenticate: createAuthenticate(keys, rules, admit, { heard: callers.heard, foreign: providerTokens }),
    providers: {
      ...{ outbound, faults, people, keys: providerKeys },
      edits: createProviderEdits({
        ...{ administer, vault, newId, now },
        addresses: createAddressRule(config.allowedAddresses),
        ...{ publicUrl: config.publicUrl, localSignIn: config.localSignIn },
      }),
    },
    administer,
    stillAdmits,
    passwords,
    limits,
    registration: createRegistration({ database, passwords, vault, config, now }),
    sessionList: createBrowserSessionList({ database, administer, now }),
    login: createLogin({ database, passwords, draftToken: createDraftToken(keys, rules), administer, stillAdmits, config, now }),
  };
}
