/** What a target may say about its authorization server, and where the gateway goes for it. */
import { randomUUID } from 'node:crypto';
import test from 'ava';
import { createOutbound, type OutboundFetch } from '../../src/base/network/outbound.ts';
import { createClients } from '../../src/connections/clients.ts';
import { createFetchFor } from '../../src/connections/fetch.ts';
import { createServers, type FoundServer } from '../../src/connections/servers.ts';
import { type ConnectionRow, connectionStore } from '../../src/targets/connection-store.ts';
import type { AccountTarget } from '../../src/targets/connections.ts';
import { membersOf, OPTIONS, type OwnAccounts } from '../../src/targets/target.ts';
import { FOUND, vault } from '../support/connections.ts';
import { openTestDatabase } from '../support/database.ts';
import { createSqlite } from '../support/databases/sqlite.ts';

const ISSUER = 'https://as.example/tenant';
const URL_ = 'https://mcp.example/a/mcp';
const METADATA = {
  issuer: ISSUER,
  authorization_endpoint: 'https://as.example/auth',
  token_endpoint: 'https://as.example/token',
  code_challenge_methods_supported: ['S256'],
};

const target = (own: Partial<OwnAccounts> = {}): AccountTarget => {
  const base = {
    id: '00000000-0000-7000-8000-000000000001',
    name: 'git',
    description: null,
    enabled: true,
    created_at: 0,
    updated_at: 0,
  };
  return { ...base, ...membersOf(OPTIONS, {}), transport: 'streamable-http', url: URL_, own_accounts: { ...FOUND, ...own } };
};

const connection = (target_id: string, issuer: string): ConnectionRow => ({
  ...{ id: randomUUID(), user_id: randomUUID(), target_id, issuer, scope: '', sealed: '', version: 1, problem: null },
  ...{ wanted_scope: null, renewing_by: null, renewing_until: null, created_at: 0, renewed_at: 0 },
  ...{ ended_at: null, revoke_at: null, attempts: 0 },
});

/** A web of these documents; a challenge at the target, if there is one. */
function web(documents: Record<string, object>, challenge: string | null = null) {
  const asked: string[] = [];
  const fetch: OutboundFetch = async (address, { method = 'GET' } = {}) => {
    const url = String(address);
    asked.push(`${method} ${url}`);
    if (method === 'POST')
      return new Response(null, { status: 401, headers: challenge === null ? {} : { 'www-authenticate': challenge } });
    const found = documents[url];
    return found === undefined ? new Response(null, { status: 404 }) : Response.json(found);
  };
  return { asked, servers: createServers({ fetchFor: () => fetch, now: Date.now }) };
}
const RESOURCE = 'https://mcp.example/.well-known/oauth-protected-resource/a/mcp';
const SERVER = 'https://as.example/.well-known/oauth-authorization-server/tenant';
const resource = { resource: URL_, authorization_servers: [ISSUER], scopes_supported: ['read'] };

test('the server is found at the well-known places, and the challenge goes before them', async (t) => {
  const plain = web({ [RESOURCE]: resource, [SERVER]: METADATA });
  t.like(await plain.servers.find(target()), { resource: URL_, scopes: ['read'] });
  t.deepEqual(plain.asked, [`POST ${URL_}`, `GET ${RESOURCE}`, `GET ${SERVER}`]);

  const named = web(
    { 'https://mcp.example/m': resource, [SERVER]: METADATA },
    'Bearer resource_metadata="https://mcp.example/m", scope="write"',
  );
  t.like(await named.servers.find(target()), { scopes: ['write'] });

  const above = web({
    'https://mcp.example/.well-known/oauth-protected-resource': { ...resource, resource: 'https://mcp.example' },
    [SERVER]: METADATA,
  });
  t.is((await above.servers.find(target())).resource, 'https://mcp.example');

  const openid = web({ [RESOURCE]: resource, [`${ISSUER}/.well-known/openid-configuration`]: METADATA });
  t.is((await openid.servers.find(target())).metadata.issuer, ISSUER);

  const old = web({
    'https://mcp.example/.well-known/oauth-authorization-server': { ...METADATA, issuer: 'https://mcp.example' },
  });
  t.is((await old.servers.find(target())).metadata.issuer, 'https://mcp.example');

  const configured = web({ [SERVER]: METADATA });
  t.like(await configured.servers.find(target({ issuer: ISSUER, send_resource: false })), { resource: null, scopes: [] });
  t.deepEqual(configured.asked, [`GET ${SERVER}`], 'the target is not asked');
});

test('only the members of metadata that the gateway uses are kept', async (t) => {
  const long = 'x'.repeat(100_000);
  const used = {
    ...{ registration_endpoint: 'https://as.example/register', revocation_endpoint: 'https://as.example/revoke' },
    ...{ client_id_metadata_document_supported: true, authorization_response_iss_parameter_supported: true },
    token_endpoint_auth_methods_supported: ['none', 'client_secret_post'],
  };
  const scopes_supported = [...Array.from({ length: 1_000 }, (_, i) => `scope-${i}`), 'offline_access'];
  const document = { ...METADATA, ...used, scopes_supported, jwks_uri: `https://${long}`, own: { long }, more: [long] };
  document.token_endpoint_auth_methods_supported = ['none', long, 'client_secret_post'];
  const { metadata } = await web({ [RESOURCE]: resource, [SERVER]: document }).servers.find(target());
  const { code_challenge_methods_supported: _, ...plain } = METADATA;
  t.deepEqual(metadata, { ...plain, ...used, scopes_supported: ['offline_access'] });
  const endless = { ...METADATA, token_endpoint: `https://as.example/${long}` };
  await t.throwsAsync(web({ [RESOURCE]: resource, [SERVER]: endless }).servers.find(target()), { message: /token_endpoint/ });
});

test('metadata that do not belong together are refused', async (t) => {
  const refused = async (documents: Record<string, object>, message: RegExp, challenge: string | null = null) =>
    t.throwsAsync(web(documents, challenge).servers.find(target()), { name: 'ConnectionFault', message });
  for (const other of [
    'https://other.example/a/mcp',
    'https://mcp.example/a/mcp/more',
    'https://mcp.example/a/mc',
    'https://mcp.example.evil.example/',
    5,
  ]) {
    await refused({ [RESOURCE]: { ...resource, resource: other }, [SERVER]: METADATA }, /metadata of a different resource/);
  }
  await refused({ [RESOURCE]: resource, [SERVER]: { ...METADATA, issuer: `${ISSUER}/` } }, /a different issuer/);
  await refused({ [RESOURCE]: resource, [SERVER]: { ...METADATA, code_challenge_methods_supported: ['plain'] } }, /PKCE/);
  await refused({ [RESOURCE]: resource, [SERVER]: { ...METADATA, token_endpoint: 'http://as.example/token' } }, /token_endpoint/);
  await refused(
    { [RESOURCE]: resource, [SERVER]: { ...METADATA, authorization_endpoint: 'javascript:alert(1)' } },
    /authorization_endpoint/,
  );
  await refused({ [RESOURCE]: { ...resource, authorization_servers: [] } }, /no usable/);
  await refused({ [RESOURCE]: { ...resource, authorization_servers: ['http://as.example'] } }, /no usable/);
  await refused({}, /no valid address/, 'Bearer resource_metadata="::"');
  await refused({}, /cannot be read/, 'Bearer resource_metadata="https://mcp.example/none"');
});

test('a target cannot lead the gateway inside', async (t) => {
  const outbound = createOutbound({ allowed: [] });
  t.teardown(() => outbound.close());
  const ask = (place: { url: string; trusted: boolean }, url: string) => createFetchFor(outbound)(place)(url);
  const causes = async (place: { url: string; trusted: boolean }, url: string): Promise<string> => {
    const texts: string[] = [];
    const error: unknown = await ask(place, url).catch((cause: unknown) => cause);
    for (let at = error; at instanceof Error; at = at.cause) texts.push(at.message);
    return texts.join(' ');
  };
  const found = { url: 'https://mcp.example/mcp', trusted: false };
  for (const url of ['https://10.0.0.1/x', 'https://[::1]/x', 'https://localhost:1/x', 'https://169.254.169.254/x']) {
    t.regex(await causes(found, url), /public internet|metadata address/, url);
  }
  t.regex(await causes(found, 'http://as.example/x'), /does not use HTTPS/);
  t.regex(await causes(found, 'http://127.0.0.1:1/x'), /does not use HTTPS/);
  for (const url of ['https://10.0.0.5/mcp', 'http://127.0.0.1:2/mcp']) {
    const text = await causes({ url, trusted: false }, 'https://10.0.0.6/x');
    t.regex(text, /public internet/, 'a target inside does not open other hosts inside');
  }
  t.regex(await causes({ url: 'https://10.0.0.5/mcp', trusted: false }, 'http://127.0.0.1:1/x'), /does not use HTTPS/);
  t.regex(await causes({ url: 'http://127.0.0.1:2/mcp', trusted: false }, 'http://127.0.0.1:1/x'), /ECONNREFUSED/);
  t.regex(await causes({ ...found, trusted: true }, 'https://169.254.169.254/x'), /metadata address/);
  t.regex(await causes({ ...found, trusted: true }, 'https://127.0.0.1:1/x'), /ECONNREFUSED/, 'an administrator has chosen it');
  t.regex(
    await causes({ url: 'https://127.0.0.1:2/mcp', trusted: false }, 'https://127.0.0.1:1/x'),
    /ECONNREFUSED/,
    "the target's own host",
  );
});

test('the client is the configured one, then the metadata document, then a registration', async (t) => {
  const db = await createSqlite();
  t.teardown(() => db.drop());
  const database = await openTestDatabase(t, db);
  const publicUrl = 'https://gateway.example';
  const clients = createClients({ database, vault, publicUrl, now: Date.now });
  const server = (metadata: object, fetch?: OutboundFetch) =>
    ({ metadata: { ...METADATA, ...metadata }, fetch: fetch ?? (async () => new Response(null, { status: 500 })) }) as Pick<
      FoundServer,
      'metadata' | 'fetch'
    >;
  const documents = { client_id_metadata_document_supported: true, registration_endpoint: 'https://as.example/register' };
  const configured = target({ issuer: ISSUER, client_id: 'known' });
  t.like(await clients.clientFor(configured, server(documents)), { client_id: 'known', client_secret: null });
  t.is(
    (await clients.clientFor(target(), server(documents))).client_id,
    `${publicUrl}/account/connections/${target().id}/client`,
  );
  await t.throwsAsync(clients.clientFor(target(), server({})), { message: /An administrator must register it/ });
  let registered = 0;
  const register: OutboundFetch = async () =>
    Response.json({ client_id: `c${++registered}`, client_secret: 's' }, { status: 201 });
  const { client_id_metadata_document_supported: _, ...registration } = documents;
  const both = await Promise.all([1, 2].map(() => clients.clientFor(target(), server(registration, register))));
  t.is(both[0]?.client_id, both[1]?.client_id, 'replicas that register at once end up with one client');
  const { client_id } = await clients.clientFor(target(), server(registration, register));
  t.is(client_id, both[0]?.client_id ?? '');
  await clients.forget(target(), ISSUER, client_id);
  t.not((await clients.clientFor(target(), server(registration, register))).client_id, client_id);
  await t.throwsAsync(clients.clientFor(target(), server({ ...registration, issuer: 'https://b.example' })), {
    message: /did not register/,
  });
});

test('a target that names ever new issuers leaves a bounded number of registrations, and unused ones are removed', async (t) => {
  const db = await createSqlite();
  t.teardown(() => db.drop());
  const database = await openTestDatabase(t, db);
  let time = 1_000_000_000_000;
  let registered = 0;
  const clients = createClients({ database, vault, publicUrl: 'https://gateway.example', now: () => time });
  const registration_endpoint = 'https://as.example/register';
  const fetch: OutboundFetch = async () => Response.json({ client_id: `c${++registered}` }, { status: 201 });
  const at = (issuer: string) => ({ metadata: { ...METADATA, registration_endpoint, issuer }, fetch });
  const issuers = async (): Promise<string[]> => {
    const rows: { issuer: string }[] = await database.knex('connection_clients').where('target_id', target().id).select('issuer');
    return rows.map(({ issuer }) => issuer).sort();
  };
  const others = { ...target(), id: '00000000-0000-7000-8000-000000000002' };
  await clients.clientFor(others, at('https://others.example'));
  for (let n = 10; n < 30; n++) {
    time++;
    await clients.clientFor(target(), at(`https://${n}.example`));
    if (n === 10) await connectionStore(database.knex).insert(connection(target().id, 'https://10.example'));
  }
  t.deepEqual(
    await issuers(),
    ['10', ...[23, 24, 25, 26, 27, 28, 29]].map((n) => `https://${n}.example`),
  );
  t.is((await clients.clientFor(target(), at('https://10.example'))).client_id, 'c2', 'the one in use stays');

  time += 25 * 60 * 60_000;
  await clients.clientFor(target(), at('https://new.example'));
  t.deepEqual(await issuers(), ['https://10.example', 'https://new.example']);
  t.not(await connectionStore(database.knex).client(others.id, 'https://others.example'), null, 'of a different target');
});
