/** The right of a caller is checked again in the transaction of each change. */
import test from 'ava';
import { createAdminister } from '../../src/auth/caller.ts';
import type { Principal, TokenLimits } from '../../src/auth/principal.ts';
import { type RightRow, rightStore } from '../../src/auth/right-store.ts';
import { type AdministrativeNeed, hasFor } from '../../src/auth/rights.ts';
import { tokenStore } from '../../src/auth/token-store.ts';
import { AppError } from '../../src/base/errors.ts';
import { createChanges } from '../../src/db/changes.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

eachEngine(test.serial, 'a change is refused if its caller has lost the right since it was admitted', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  let time = 1_000;
  const administer = createAdminister({ changes, now: () => time });
  const { knex } = database;
  const user = localUser({ id: 'u', email: 'u@x', role: 'user', groups: ['g'] }, 1);
  await userStore(knex).insert(user, 'hash');
  const record = { user_id: 'u', kid: 'k', created_at: 1, kind: 'api', name: 'n', revoked_at: null } as const;
  const limits: TokenLimits = { rights: ['policies:manage'], owner: 'a', endpoints: null };
  await tokenStore(knex).insert({ ...record, id: 't', expires_at: 2_000, limits: null });
  await tokenStore(knex).insert({ ...record, id: 'l', expires_at: null, limits });
  t.deepEqual((await tokenStore(knex).find('l'))?.limits, limits);
  const given: RightRow = {
    id: 'r',
    subject_type: 'group',
    subject_value: 'g',
    right: 'policies:manage',
    owner: null,
    created_at: 1,
  };
  await rightStore(knex).insert(given);
  t.deepEqual(await rightStore(knex).all(), [given]);

  // The principal as it was admitted, with what it had then.
  const principal: Principal = {
    ...{ issuer: 'portcullis', sub: 'u', email: 'u@x', role: 'admin', groups: ['g'] },
    ...{ granted: { role: 'admin', groups: ['g'] }, token_id: 't', token_kind: 'api', issued_at: null, limits: null },
  };
  const limited: Principal = { ...principal, token_id: 'l', limits };
  const attempt = (who: Principal, need: AdministrativeNeed | 'own'): Promise<string> =>
    administer({ principal: who, requestId: 'r' }, need, async (_, { held }) => ({
      result: ['a', 'b'].filter((owner) => hasFor(held, 'policies:manage', owner)).join(),
      changes: [],
    })).then(
      ({ result }) => result,
      (error: unknown) => (error instanceof AppError ? error.code : String(error)),
    );
  t.is(await attempt(principal, ['policies:manage']), 'a,b');
  t.is(await attempt(limited, ['policies:manage']), 'a');
  t.is(await attempt(principal, { all: ['policies:manage', 'policies:plan'] }), 'a,b');
  t.is(await attempt(principal, { all: ['policies:manage', 'read'] }), 'forbidden');
  t.is(await attempt(principal, ['read', 'users:manage']), 'forbidden');
  t.is(await attempt(principal, 'admin'), 'forbidden');
  t.is(await attempt(principal, 'own'), 'a,b');

  await userStore(knex).update({ ...user, role: 'auditor' });
  t.is(await attempt(principal, ['policies:manage']), 'forbidden');
  await userStore(knex).update({ ...user, groups: [] });
  t.is(await attempt(principal, ['policies:manage']), 'forbidden');
  await userStore(knex).update({ ...user, role: 'admin' });
  t.is(await attempt(principal, 'admin'), 'a,b');
  t.is(await attempt(limited, 'admin'), 'forbidden');
  await userStore(knex).update(user);
  await rightStore(knex).delete('r');
  t.is(await attempt(principal, ['policies:manage']), 'forbidden');
  t.is(await attempt(principal, 'own'), '');

  time = 2_000;
  t.is(await attempt(principal, 'own'), 'invalid_token');
  t.is(await attempt(limited, 'own'), '');
  await tokenStore(knex).revoke('l', time);
  t.is(await attempt(limited, 'own'), 'invalid_token');
});
