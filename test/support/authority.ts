/** The rights of an administrator, for tests that stand in for `administer`. */
import type { Authority } from '../../src/auth/caller.ts';
import { rightsOf } from '../../src/auth/rights.ts';

export const ALL_RIGHTS: Authority = {
  held: rightsOf({ sub: 'admin', granted: { role: 'admin', groups: [] }, limits: null }, []),
  given: [],
};
