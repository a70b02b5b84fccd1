/** Users and groups from companies' directories, over SCIM. */
import type { Stock } from '../base/budgets.ts';
import { addressOf } from '../http/limits/client-address.ts';
import { createDirectoryGroups } from '../scim/groups.ts';
import { createDirectoryPeople } from '../scim/people.ts';
import { createScimRouter, refuseScim } from '../scim/router.ts';
import { createChangeBy } from '../scim/session.ts';
import { createScimTokens } from '../scim/tokens.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';

export type Scim = ReturnType<typeof createScim>;

/** `bodies`: the bytes of large bodies under way, shared by all endpoints. */
export function createScim({ config, database, changes, now }: Base, { administer, limits }: Accounts, bodies: Stock) {
  const { publicUrl, trustProxy } = config;
  const changeBy = createChangeBy(changes);
  return {
    tokens: createScimTokens({ administer, publicUrl, now }),
    router: createScimRouter({
      ...{ database, limits, bodies, publicUrl },
      addressOf: (req) => addressOf(req, trustProxy),
      people: createDirectoryPeople({ changeBy, now }),
      groups: createDirectoryGroups({ database, changeBy, now }),
    }),
    refuse: refuseScim,
  };
}
