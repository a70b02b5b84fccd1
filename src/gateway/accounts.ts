/** Who may call the gateway: tokens, passwords, registration, and the rights of administrators. */
import { createAdminister } from '../auth/caller.ts';
import { createDraftToken } from '../auth/issue.ts';
import { createLogin } from '../auth/login.ts';
import { createPasswords } from '../auth/passwords.ts';
import { createRegistration } from '../auth/registration.ts';
import { AUDIENCE, createVerifier, ISSUER } from '../auth/verify.ts';
import { createCallers } from '../http/callers.ts';
import { createRateLimits } from '../http/rate-limit.ts';
import { createAuthenticate } from '../rest/authenticate.ts';
import type { Admit } from '../state/admission.ts';
import type { Base } from './base.ts';

export type Accounts = ReturnType<typeof createAccounts>;

export function createAccounts({ config, vault, database, changes, keys, now }: Base, admitClaims: Admit) {
  const rules = { issuer: ISSUER, audience: AUDIENCE, now };
  const administer = createAdminister({ changes });
  const passwords = createPasswords();
  const callers = createCallers(config.trustProxy);
  const admit = callers.noting(admitClaims);
  return {
    callers,
    admit,
    verify: createVerifier(keys, rules, callers.heard),
    authenticate: createAuthenticate(keys, rules, admit, callers.heard),
    administer,
    passwords,
    limits: createRateLimits(config.rateLimits),
    registration: createRegistration({ database, passwords, vault, config, now }),
    login: createLogin({ database, passwords, draftToken: createDraftToken(keys, rules), administer, config, now }),
  };
}
