/** Every right and every kind of limited token against every operation of the contract. */
import test from 'ava';
import { Router } from 'express';
import { RIGHTS, type Right } from '../../../src/auth/rights.ts';
import { authorize, authorizing } from '../../../src/rest/authorize.ts';
import { OPERATIONS } from '../../../src/rest/contract.ts';
import { routeTable } from '../../../src/rest/route-table.ts';
import { type Person, person, rest, startGateway, type TestGateway } from '../../support/gateway.ts';

/**
 * What each operation needs, written down a second time: a new operation fails the tests until somebody has thought about its need. A
 * caller must have one of the groups of rights. `admin` is in no group, because an administrator has every right.
 */
const NEEDED: Readonly<Record<string, string>> = {
  ...all(
    'open',
    'register logIn getHome getOpenApi getLiveness getReadiness getKeySet getResourceMetadata getMcpMetadata getTargetMetadata',
  ),
  ...all('open', 'getAuthorizationServer getOpenIdConfiguration'),
  ...all('any', 'getMe getOwnRights listApiTokens listOwnCredentials listOwnConnections listOwnTargets getOwnAccess'),
  ...all('unlimited', 'setOwnCredential deleteOwnCredential deleteOwnConnection listBrowserSessions listGrants listOwnDenials'),
  ...all('login', 'logOut changePassword createApiToken revokeApiToken endBrowserSessions endBrowserSession endGrant'),
  ...all('admin', 'updateClient deleteClient'),
  ...all('admin', 'rotateSigningKey giveRight takeRight createTarget deleteTarget checkTarget endSession erasePersonalData'),
  ...all('admin', 'deleteConnection setAccountClientSecret deleteAccountClientSecret'),
  ...all('admin', 'setDefaultCredential deleteDefaultCredentials setRoleCredential deleteRoleCredentials'),
  ...all('admin', 'setGroupCredential deleteGroupCredentials setUserCredential deleteUserCredentials'),
  ...all(
    'admin',
    'createProvider updateProvider deleteProvider probeProvider linkUser endUserTokens createScimToken revokeScimToken',
  ),
  ...all('read', 'listProviders getProvider getProviderHealth getScim'),
  ...all('users:manage', 'createUser updateUser'),
  ...all('read|users:manage', 'listUsers getUser'),
  ...all('targets:operate', 'updateTarget recycleSessions recycleSessionsOfUser'),
  ...all('read|targets:operate', 'listTargets getTarget getTargetHealth getTargetCatalogue listSessions'),
  ...all(
    'policies:plan',
    'listPolicies listPoliciesInOrder getPolicy planPolicies planRollback planMove testPolicies listDrafts getDraft',
  ),
  ...all('policies:manage', 'createPolicy updatePolicy deletePolicy addPolicySubject removePolicySubject'),
  ...all('policies:manage', 'applyPolicies rollBackPolicies movePolicy saveDraft deleteDraft activateDraft stopShadow'),
  ...all('policies:manage+read', 'startShadow'),
  ...all('policies:plan|boundaries:manage', 'listOwners getOwner'),
  ...all('boundaries:manage', 'setOwner deleteOwner'),
  ...all('bundles:read', 'getBundle getRego getPolicyContext'),
  ...all('policies:plan|boundaries:manage', 'listInvariants getInvariant exportInvariants'),
  ...all('boundaries:manage', 'createInvariant updateInvariant deleteInvariant planInvariants applyInvariants'),
  ...all('read', 'listRights listRevisions getRevision diffRevisions compareRevisions exportPolicies explainDecision'),
  ...all(
    'read',
    'simulatePolicies replayDecisions suggestPolicies listAccess getAccessMatrix lintPolicies getShadow listCredentials',
  ),
  ...all('read', 'listConnections getAccountClient listClients getClient'),
  ...all(
    'read',
    'listDecisions countDecisions listDeniedDemand listSigningKeys getCheckpoint exportLog getDecision listChanges getStatus getMetrics',
  ),
  ...all('read', 'reproduceDecision getVerification'),
  ...all('admin', 'reportVerification'),
};

function all(need: string, ids: string): Record<string, string> {
  return Object.fromEntries(ids.split(' ').map((id) => [id, need]));
}

/** A caller, and what it must be able to do. */
interface Tried {
  readonly name: string;
  readonly token: string;
  readonly kind: 'login' | 'api';
  readonly limited: boolean;
  readonly admin: boolean;
  readonly rights: readonly Right[];
}

const CONTAINED: Readonly<Partial<Record<Right, readonly Right[]>>> = {
  read: ['policies:plan', 'bundles:read'],
  'policies:manage': ['policies:plan'],
};
const withContained = (rights: readonly Right[]): Right[] => rights.flatMap((right) => [right, ...(CONTAINED[right] ?? [])]);

function mayDo({ kind, limited, admin, rights }: Tried, need: string): boolean {
  if (need === 'any') return true;
  if (need === 'unlimited') return !limited;
  if (need === 'login') return kind === 'login';
  if (need === 'admin') return admin;
  const held = admin ? RIGHTS : withContained(rights);
  return need.split('|').some((group) => group.split('+').every((right) => held.some((one) => one === right)));
}

test('each operation of the contract has a need that these tests know', (t) => {
  const ids = Object.values(OPERATIONS).map(({ id }) => id);
  t.deepEqual([...ids].sort(), Object.keys(NEEDED).sort());
  for (const [key, { id, access }] of Object.entries(OPERATIONS)) {
    t.truthy(access, key);
    t.is(access === 'open', NEEDED[id] === 'open', key);
  }
});

test('an operation that the contract does not have is refused, also for an administrator', (t) => {
  const facts = { issuer: 'i', sub: 's', email: 'e', groups: [], granted: { role: 'admin', groups: [] }, limits: null } as const;
  const token = { token_id: 't', token_kind: 'login', issued_at: null } as const;
  for (const id of ['', 'constructor', '__proto__', 'nothing'])
    t.true('forbidden' in authorize({ ...facts, ...token, role: 'admin' }, id, []), id);
});

test('routes are refused if a request could be authorized for one and run another, or if the contract does not know them', (t) => {
  const router = (...paths: string[]): Router => {
    const made = Router();
    for (const path of paths) made.get(path, () => undefined);
    return made;
  };
  const guard = (...paths: string[]) => authorizing(routeTable([{ path: '/api/policies', router: router(...paths) }]));
  t.notThrows(() => guard('/history', '/:id'));
  t.throws(() => guard('/:id', '/history'), { message: /must be mounted in front of/ });
  t.throws(() => guard('/history', '/:id', '/unknown'), { message: /must say what GET .api.policies.unknown needs/ });
  t.throws(() => authorizing(routeTable([{ path: '/health', router: router('/live') }])), { message: /must say what/ });
});

const ID = '0190163d-8694-739b-aea5-966c26f8ad90';
const pathOf = (path: string): string =>
  path
    .replace('/owners/{name}', '/owners/team-a')
    .replace('{name}', 'a-name')
    .replace('{value}', 'a-value')
    .replace('{target}', 'a-target')
    .replaceAll(/\{\w+\}/g, ID);

async function callers(gateway: TestGateway, admin: Person): Promise<Tried[]> {
  const tried: Tried[] = [];
  const base = { kind: 'login', limited: false, admin: false, rights: [] } as const;
  const token = async (who: string, body: object): Promise<string> =>
    (await gateway.rest<{ token: string }>(201, 'POST', '/api/auth/tokens', { token: who, body: { name: 'n', ...body } })).body
      .token;
  const give = (subject_type: string, subject_value: string, right: Right, owner?: string) =>
    gateway.rest(201, 'POST', '/api/rights', {
      token: admin.token,
      body: { subject_type, subject_value, right, ...(owner === undefined ? {} : { owner }) },
    });
  const set = (id: string, body: object) => gateway.rest(200, 'PUT', `/api/users/${id}`, { token: admin.token, body });

  const nobody = await person(gateway, 'nobody@example.com');
  tried.push({ ...base, name: 'a user without rights', token: nobody.token });
  const auditor = await person(gateway, 'auditor@example.com');
  await set(auditor.id, { role: 'auditor', groups: ['everything'] });
  for (const right of RIGHTS) await give('group', 'everything', right);
  tried.push({ ...base, name: 'an auditor in a group with all rights', token: auditor.token, rights: ['read'] });
  const many = await person(gateway, 'many@example.com');
  await set(many.id, { groups: ['everything'] });
  tried.push({ ...base, name: 'a user with all rights by a group', token: many.token, rights: RIGHTS });
  for (const [at, right] of RIGHTS.entries()) {
    const who = await person(gateway, `right${at}@example.com`);
    await give('user', who.id, right);
    tried.push({ ...base, name: `a user with ${right}`, token: who.token, rights: [right] });
    const api = await token(who.token, {});
    tried.push({ ...base, name: `an API token of a user with ${right}`, token: api, kind: 'api', rights: [right] });
    const less = await token(who.token, { limits: { endpoints: ['*'] } });
    tried.push({ ...base, name: `a token for endpoints of a user with ${right}`, token: less, kind: 'api', limited: true });
    const limited = await token(admin.token, { limits: { rights: [right] } });
    tried.push({
      ...base,
      name: `a token of an administrator for ${right}`,
      token: limited,
      kind: 'api',
      limited: true,
      rights: [right],
    });
  }
  const byRole = await person(gateway, 'role@example.com');
  await set(byRole.id, { role: 'operators' });
  await give('role', 'operators', 'targets:operate');
  tried.push({ ...base, name: 'a user with a right by a role', token: byRole.token, rights: ['targets:operate'] });
  for (const right of ['policies:plan', 'policies:manage'] as const) {
    const owned = await person(gateway, `${right.replace(':', '.')}@example.com`);
    await give('user', owned.id, right, 'team-a');
    tried.push({ ...base, name: `a user with ${right} of an owner`, token: owned.token, rights: [right] });
    const limited = await token(admin.token, { limits: { rights: [right], owner: 'team-a' } });
    tried.push({
      ...base,
      name: `a token for ${right} of an owner`,
      token: limited,
      kind: 'api',
      limited: true,
      rights: [right],
    });
    const apart = await token(owned.token, { limits: { rights: [right], owner: 'team-b' } });
    tried.push({
      ...base,
      name: `a token for ${right} of an owner that its user does not have`,
      token: apart,
      kind: 'api',
      limited: true,
    });
  }
  const none = await token(admin.token, { limits: { rights: [] } });
  tried.push({ ...base, name: 'a token of an administrator for nothing', token: none, kind: 'api', limited: true });
  const ends = await token(admin.token, { expires_at: new Date(Date.now() + 3_600_000).toISOString() });
  tried.push({ ...base, name: 'a token of an administrator with an expiry', token: ends, kind: 'api', admin: true });
  return tried;
}

test.serial('nobody gets beyond their rights, whatever the operation', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const tried = await callers(gateway, admin);
  t.true(tried.length > 35);
  const sequence = async (): Promise<unknown> =>
    (await gateway.rest<{ sequence: number }>(200, 'GET', '/api/status', { token: admin.token })).body.sequence;
  const before = await sequence();
  let refused = 0;
  for (const [key, { id, heavy = false }] of Object.entries(OPERATIONS)) {
    const [method = '', path = ''] = key.split(' ');
    const need = NEEDED[id] ?? '';
    // Those that end the token, or that change something without a body, are only tried by callers who may not.
    const ends = ['logOut', 'rotateSigningKey'].includes(id);
    if (need === 'open') continue;
    const query = id === 'exportLog' ? '?format=csv' : '';
    // Work in threads takes long, so only one of the callers who may do it tries.
    let once = false;
    await Promise.all(
      tried.map(async (caller) => {
        const may = mayDo(caller, need);
        if (may && (ends || (heavy && once))) return;
        once ||= may;
        const answer = await fetch(gateway.url + pathOf(path) + query, {
          method,
          headers: { authorization: `Bearer ${caller.token}`, 'content-type': 'application/json' },
          // Wrong for every operation: a caller who may carry it out gets as far as this.
          ...(method === 'GET' || method === 'DELETE' ? {} : { body: '{"wrong":1}' }),
        });
        const text = await answer.text();
        const forbidden = answer.status === 403;
        if (forbidden === may || answer.status === 401 || answer.status >= 500) {
          t.fail(`${caller.name}: ${key} answered ${answer.status} ${text.slice(0, 200)}`);
        }
        if (forbidden) refused++;
      }),
    );
  }
  t.true(refused > 1_000, String(refused));
  t.is(await sequence(), before);
  t.is((await rest(gateway.url, 'GET', '/api/users')).status, 401);
});
