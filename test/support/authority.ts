/** An administrator and their rights, for tests that stand in for `administer`. */
import type { Authority, Caller } from '../../src/auth/caller.ts';
import { rightsOf } from '../../src/auth/rights.ts';

export const ALL_RIGHTS: Authority = {
  held: rightsOf({ sub: 'admin', granted: { role: 'admin', groups: [] }, limits: null }, []),
  given: [],
};

export const ADMIN: Caller = {
  requestId: 'request',
  principal: {
    issuer: 'i',
    sub: 'admin',
    email: 'a@example.com',
    role: 'admin',
    groups: [],
    granted: { role: 'admin', groups: [] },
    token_id: 't',
    token_kind: 'login',
    issued_at: null,
    limits: null,
  },
  managesAll: true,
};
