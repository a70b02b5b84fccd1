/** What a token must say of its user, and what a token that leaves it out does. */
import test from 'ava';
import { type Claims, seconds } from '../support/provider.ts';
import { world } from './support.ts';

test.serial('a token without the claim of the role takes no role away: it is refused', async (t) => {
  const { provider, me, set, health } = await world(t, { role_claim: ['roles'], role_required: true, default_role: 'guest' });
  const now = seconds();
  const token = async (claims: Claims) => me(await provider.token(claims));
  t.is((await token({ iat: now - 30, roles: ['analyst'] })).user.role, 'analyst');
  const without = await token({ iat: now - 20 });
  t.is(without.status, 401);
  t.regex(without.detail, /which role you have.*administrator/);
  t.regex((await health()).faults[0]?.message ?? '', /claim roles is missing: add it .* role_required to false/);
  t.is((await token({ iat: now - 20, roles: null })).status, 401, 'null says nothing');
  t.is((await token({ iat: now - 30, roles: ['analyst'] })).user.role, 'analyst', 'the record is as before');
  t.is((await token({ iat: now - 10, roles: [] })).user.role, 'guest', 'an empty list says that there is no role');
  await set({ role_required: false });
  t.is((await token({ iat: now - 5 })).user.role, 'guest');
});

test.serial('a token without the claim of the groups takes no groups away: it is refused', async (t) => {
  const { provider, me } = await world(t, { groups_required: true });
  const now = seconds();
  const token = async (claims: Claims) => me(await provider.token(claims));
  t.deepEqual((await token({ iat: now - 30, groups: ['staff'] })).user.groups, ['staff']);
  for (const claims of [{}, { groups: null }, { _claim_names: { groups: 'src1' } }, { hasgroups: true }]) {
    const { status, detail } = await token({ iat: now - 20, ...claims });
    t.is(status, 401);
    t.regex(detail, /groups.*administrator/);
  }
  t.deepEqual((await token({ iat: now - 40 + 5, groups: ['other'] })).user.groups, ['staff']);
});

test.serial('an e-mail that is not verified counts as missing, and the person reads that', async (t) => {
  const { provider, me, set, health } = await world(t, { email_domains: ['example.com'] });
  const detail = async (claims: Claims) => (await me(await provider.token(claims))).detail;
  t.regex(await detail({ email: 'a@example.com', email_verified: false }), /not been verified by the provider.*Verify it there/);
  t.is((await health()).faults[0]?.kind, 'email_unverified');
  t.regex(await detail({}), /missing, or not in a domain/);
  t.regex(await detail({ email: 'a@evil.example', email_verified: true }), /not in a domain/);
  await set({ email_domains: [] });
  const { status, user } = await me(await provider.token({ email: 'a@example.com', email_verified: false }));
  t.is(status, 200);
  t.is(user.email, null, 'without allowed domains the person gets in, without an e-mail');
  // A user who was known before reads the same.
  await set({ email_domains: ['example.com'] });
  t.regex(await detail({ iat: seconds() + 1, email: 'a@example.com', email_verified: false }), /Verify it there/);
});

test.serial('tokens of applications of Entra are refused, unless the settings accept them', async (t) => {
  const settings = { preset: 'entra', subject_claim: ['oid'], groups_claim: ['groups'] };
  const { provider, me, set } = await world(t, { ...settings, tokens: { audiences: ['api://portcullis'], types: ['at+jwt'] } });
  const marked = { oid: 'app-1', sub: 'app-1', idtyp: 'app' };
  const bare = { oid: 'app-1', sub: 'app-1' };
  for (const claims of [marked, bare, { ...marked, sub: 'other' }]) {
    const { status, detail } = await me(await provider.token(claims));
    t.is(status, 401);
    t.regex(detail, /belongs to an application and not to a person.*app_only/);
  }
  t.is((await me(await provider.token({ oid: 'person-1', sub: 'pairwise' }))).status, 200);
  await set({ tokens: { audiences: ['api://portcullis'], types: ['at+jwt'], app_only: true } });
  const accepted = await me(await provider.token(bare));
  t.is(accepted.status, 200);
  t.is(accepted.user.subject, 'app-1');
  await set({ tokens: { audiences: ['api://portcullis'], types: ['at+jwt'], app_only: false } });
  t.is((await me(await provider.token(bare))).status, 401, 'the setting binds the next request');
});
