/** The whole gateway with its real keys, listener and tables: forged tokens, odd requests on the wire, and probing for names. */
import { createHmac, createPrivateKey, createPublicKey, createSign, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { connect } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { v7 as uuid } from 'uuid';
import { makeKeys } from '../../../src/auth/keys.ts';
import { createVault } from '../../../src/auth/vault.ts';
import { readConfig } from '../../../src/config/config.ts';
import { makeCounter } from '../../../src/db/changes.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { apiToken, person, rest } from '../../support/gateway.ts';
import { call, openSession, post } from '../../support/mcp.ts';
import { byMethod, type RecordingUpstream, startRecording } from '../../support/upstreams/recording.ts';
import { type World, world } from '../../support/world.ts';

interface Row {
  readonly user_email: string;
  readonly target_name: string;
  readonly method: string;
  readonly resource_name: string | null;
  readonly effect: string;
  readonly reason: string;
}

interface Setup {
  readonly w: World;
  readonly upstream: RecordingUpstream;
  /** Method, object, effect and reason of each row, oldest first. */
  rows(): Promise<string[]>;
}

async function setUp(
  t: ExecutionContext,
  { databaseUrl = null as string | null, environment = {} as Record<string, string> } = {},
): Promise<Setup> {
  const upstream = await startRecording(byMethod({ 'tools/call': { content: [] }, 'tools/list': { tools: [{ name: 'ok' }] } }));
  t.teardown(() => upstream.stop());
  const w = await world(t, databaseUrl, upstream.url, environment);
  const rows = async (): Promise<string[]> => {
    const { body } = await w.gateway.rest<Row[]>(200, 'GET', '/api/logs?limit=1000', { token: w.admin.token });
    return body
      .map(({ method, resource_name, effect, reason }) => `${method} ${resource_name ?? ''} ${effect} ${reason}`)
      .reverse();
  };
  return { w, upstream, rows };
}

const HELLO = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};

/** A database whose signing key the test has, so that it can sign tokens that the gateway would never sign. */
async function stolenKey(t: ExecutionContext): Promise<{ url: string; kid: string; key: KeyObject }> {
  const { url, drop } = await createSqlite();
  t.teardown(drop);
  const vault = createVault(Buffer.alloc(32, 7));
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, async (db) => {
    await makeCounter(db);
    await makeKeys(db, vault, Date.now());
  });
  const row = await database.knex('secret_keys').where({ purpose: 'signing' }).first();
  const der = vault.open(`signing:${row.id}`, row.sealed);
  await database.close();
  return { url, kid: row.id, key: createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }) };
}

const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');

function signed(header: object, payload: object, key: KeyObject): string {
  const input = `${part(header)}.${part(payload)}`;
  return `${input}.${createSign('sha256').update(input).sign({ key, dsaEncoding: 'ieee-p1363' }, 'base64url')}`;
}

const claimsOf = (token: string): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());

test.serial('a forged, foreign, early or late token is refused as such, and leaves no trace but the refusal', async (t) => {
  const { url, kid, key } = await stolenKey(t);
  const { w, upstream, rows } = await setUp(t, { databaseUrl: url });
  await w.allow({ name: 'all' });
  const login = claimsOf(w.user.token);
  const header = { alg: 'ES256', typ: 'JWT', kid };
  const now = Math.floor(Date.now() / 1000);
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const pem = createPublicKey(key).export({ type: 'spki', format: 'pem' }).toString();
  const make = (claims: object, head: object = {}) => signed({ ...header, ...head }, { ...login, ...claims }, key);
  const lacking = (name: string) => {
    const { [name]: _, ...others } = login;
    return signed(header, others, key);
  };
  const hmac = (secret: string) => {
    const input = `${part({ ...header, alg: 'HS256' })}.${part(login)}`;
    return `${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`;
  };
  const rs256 = `${part({ ...header, alg: 'RS256' })}.${part(login)}`;
  const [, payload = '', signature = ''] = w.user.token.split('.');
  const evil = 'https://evil.example/keys';

  const bad: Record<string, string> = {
    'alg none': `${part({ ...header, alg: 'none' })}.${payload}.`,
    'alg none beside a good signature': `${part({ ...header, alg: 'none' })}.${payload}.${signature}`,
    'HS256 with the public key': hmac(pem),
    'HS256 with the public key, trimmed': hmac(pem.trim()),
    'RS256 by another key': `${rs256}.${createSign('sha256').update(rs256).sign(rsa.privateKey, 'base64url')}`,
    'RS256 in the header alone': make({}, { alg: 'RS256' }),
    'a key in the header (jwk)': signed({ ...header, jwk: ec.publicKey.export({ format: 'jwk' }) }, login, ec.privateKey),
    'the address of a key (jku)': signed({ ...header, jku: evil }, login, ec.privateKey),
    'the address of a certificate (x5u)': signed({ ...header, x5u: evil }, login, ec.privateKey),
    'jku, by the right key': make({}, { jku: evil }),
    'another key under the right kid': signed(header, login, ec.privateKey),
    'an unknown kid': make({}, { kid: uuid() }),
    'no kid': make({}, { kid: undefined }),
    'no exp, on a login token': lacking('exp'),
    expired: make({ exp: now - 60 }),
    'not yet valid': make({ nbf: now + 3_600 }),
    'issued far ahead': make({ iat: now + 86_400 }),
    'wrong issuer': make({ iss: evil }),
    'wrong audience': make({ aud: 'another' }),
    'no audience': lacking('aud'),
    'the audience of another target': make({ aud: `${w.gateway.url}/mcp/other` }),
    'a list of other audiences': make({ aud: ['another', `${login['aud']}-2`] }),
    'a list that holds a list with the audience': make({ aud: [[login['aud']]] }),
    'an ID token': make({ aud: 'client-id', nonce: 'n' }),
    'an access token of another kind': make({}, { typ: 'at+jwt' }),
    'a refresh token': 'opaque-refresh-token',
    'no role': lacking('role'),
    'a record that is not there': make({ jti: uuid() }),
    "another's record": make({ sub: w.admin.id }),
    'a user who is not there': make({ sub: uuid() }),
  };
  const metadata = `${w.gateway.url}/.well-known/oauth-protected-resource/mcp/everything`;
  for (const [what, token] of Object.entries(bad)) {
    for (const method of ['POST', 'GET', 'DELETE']) {
      const answer = await rest<{ code: string }>(w.gateway.url, method, '/mcp/everything', {
        token,
        ...(method === 'POST' ? { body: HELLO } : {}),
        headers: { accept: 'application/json, text/event-stream', 'mcp-session-id': 'x' },
      });
      t.deepEqual([answer.status, answer.body.code], [401, 'invalid_token'], `${method}: ${what}`);
      t.is(
        answer.headers.get('www-authenticate'),
        `Bearer resource_metadata="${metadata}", scope="mcp", error="invalid_token"`,
        `${method}: ${what}`,
      );
    }
  }
  t.deepEqual(upstream.received, []);
  t.deepEqual(await rows(), [], 'nobody was authenticated, so there is nobody to write a row about');

  // A correct token by the same signer is accepted, so each of the above was refused for its content.
  t.is((await post(w.mcp, make({}), HELLO)).status, 200);
  t.is((await post(w.mcp, w.token, HELLO)).status, 200, 'an API token, which has no exp');
  t.is(claimsOf(w.token)['exp'], undefined);
  t.deepEqual(await rows(), ['initialize  allow matched', 'initialize  allow matched']);
  const secrets = [w.token, w.user.token].map((token) => token.split('.')[2] ?? '');
  for (const secret of secrets) t.false(JSON.stringify(upstream.received).includes(secret));
});

test.serial('a token stops working at once when it, its user or its password is no longer valid', async (t) => {
  const { w, upstream, rows } = await setUp(t);
  await w.allow({ name: 'all' });
  const again = async (who: { email: string; password: string }) => {
    const { email, password } = who;
    const { body } = await w.gateway.rest<{ token: string }>(200, 'POST', '/api/auth/login', { body: { email, password } });
    return body.token;
  };
  const other = await person(w.gateway, 'other@example.com');
  const made = await apiToken(w.gateway, other);
  const [leaving, changing] = [await again(w.user), await again(w.user)];
  const asAdmin = { token: w.admin.token };
  for (const [what, token, end] of [
    ['its record is deleted', made.token, () => w.gateway.rest(204, 'DELETE', `/api/auth/tokens/${made.id}`, other)],
    ['its user logs out', leaving, () => w.gateway.rest(204, 'POST', '/api/auth/logout', { token: leaving })],
    [
      'the password changes',
      changing,
      () =>
        w.gateway.rest(204, 'PUT', '/api/auth/password', {
          token: w.user.token,
          body: { current_password: w.user.password, new_password: 'another long passphrase' },
        }),
    ],
    [
      'its user is disabled',
      w.token,
      () => w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { ...asAdmin, body: { enabled: false } }),
    ],
  ] as const) {
    const session = { 'mcp-session-id': await openSession(w.mcp, token) };
    t.is((await post(w.mcp, token, call('ok'), session)).status, 200, `before ${what}`);
    const [seen, written] = [upstream.received.length, (await rows()).length];
    await end();
    for (const message of [call('ok'), HELLO, { jsonrpc: '2.0', method: 'notifications/initialized' }]) {
      const refused = await post(w.mcp, token, message, session);
      t.is(refused.status, 401, what);
      t.regex(refused.headers.get('www-authenticate') ?? '', /error="invalid_token"/);
    }
    t.deepEqual([upstream.received.length, (await rows()).length], [seen, written], what);
  }
});

/** Sends this text, and returns everything that the gateway answers until it closes the connection. */
function exchange(port: number, text: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(text));
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk;
    });
    socket.on('error', () => undefined);
    socket.on('close', () => resolve(answer));
  });
}

test.serial(
  'the listener refuses a request that two readers of HTTP would read differently, and closes its connection',
  async (t) => {
    const { w, upstream, rows } = await setUp(t);
    await w.allow({ name: 'all' });
    const port = Number(new URL(w.gateway.url).port);
    const body = JSON.stringify(HELLO);
    const smuggled = `POST /mcp/everything HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${w.token}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    const request = (lines: string, target = '/mcp/everything') =>
      exchange(
        port,
        `POST ${target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${w.token}\r\nContent-Type: application/json\r\n${lines}\r\n\r\n0\r\n\r\n${smuggled}`,
      );
    for (const lines of [
      'Content-Length: 5\r\nTransfer-Encoding: chunked',
      'Transfer-Encoding: chunked\r\nContent-Length: 5',
      'Content-Length: 5\r\nContent-Length: 6',
      'Content-Length: 5\r\nContent-Length: 5',
      'Content-Length: +5',
      'Content-Length: 0x5',
      'Content-Length: 5, 5',
      'Transfer-Encoding: chunked, identity',
      'Transfer-Encoding: identity, chunked, identity',
      'Transfer-Encoding: xchunked',
      'Transfer-Encoding : chunked',
      'Transfer-Encoding:\x0bchunked',
      'X-A: b\r\n Transfer-Encoding: chunked',
      'X-A: b\nTransfer-Encoding: chunked',
      'X-A: b\0\r\nTransfer-Encoding: chunked',
    ]) {
      const text = await request(lines);
      t.regex(text, /^HTTP\/1\.1 400 /, JSON.stringify(lines));
      t.is(text.match(/^HTTP\/1/gm)?.length, 1, JSON.stringify(lines));
    }
    const long = await request(`X-Long: ${'x'.repeat(20_000)}`);
    t.regex(long, /^HTTP\/1\.1 431 /);
    t.is(long.match(/^HTTP\/1/gm)?.length, 1);
    for (const target of ['http://evil.example/mcp/everything', '//evil.example/mcp/everything', 'evil.example:80', '*']) {
      t.regex(await request('Connection: close\r\nContent-Length: 0', target), /^HTTP\/1\.1 40[034] /, target);
    }
    t.deepEqual(upstream.received, []);
    t.deepEqual(await rows(), []);
  },
);

test.serial('Host and Origin are checked before the token', async (t) => {
  const { w, upstream, rows } = await setUp(t, { environment: { ALLOWED_ORIGINS: 'https://app.example' } });
  await w.allow({ name: 'all' });
  const port = Number(new URL(w.gateway.url).port);
  const body = JSON.stringify(HELLO);
  const ask = (lines: string, token: string | null = w.token) =>
    exchange(
      port,
      `POST /mcp/everything HTTP/1.1\r\n${lines}\r\n${token === null ? '' : `Authorization: Bearer ${token}\r\n`}Content-Type: application/json\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
  const bad = [
    'Host: evil.example',
    'Host: localhost.evil.example',
    'Host: localhost@evil.example',
    'Host: ',
    'Host: localhost\r\nOrigin: https://evil.example',
    'Host: localhost\r\nOrigin: null',
    'Host: localhost\r\nOrigin: https://app.example:444',
    'Host: localhost\r\nOrigin: http://app.example',
    'Host: localhost\r\nOrigin: https://app.example.evil.example',
    'Host: localhost\r\nOrigin: https://app.example\r\nOrigin: https://evil.example',
  ];
  for (const lines of bad) {
    for (const token of [null, 'x', w.token]) {
      const text = await ask(lines, token);
      t.regex(text, /^HTTP\/1\.1 403 /, lines);
      t.notRegex(text, /access-control-allow|www-authenticate/i, lines);
    }
  }
  t.regex(await ask('Host: localhost\r\nHost: evil.example'), /^HTTP\/1\.1 40[03] /);
  t.deepEqual([upstream.received, await rows()], [[], []]);
  const allowed = await ask('Host: localhost\r\nOrigin: https://app.example');
  t.regex(allowed, /^HTTP\/1\.1 200 /);
  t.regex(allowed, /access-control-allow-origin: https:\/\/app\.example\r/i);
  t.notRegex(await ask('Host: localhost'), /access-control-allow/i);
  t.deepEqual(await rows(), ['initialize  allow matched', 'initialize  allow matched']);
});

test.serial('a caller that may not use a target cannot tell it from a target that does not exist', async (t) => {
  const { w, upstream, rows } = await setUp(t);
  await w.allow({ name: 'administrators', subjects: [{ subject_type: 'role', subject_value: 'admin' }] });
  const disabled = { name: 'switched-off', transport: 'streamable-http', url: upstream.url, enabled: false };
  await w.gateway.rest(201, 'POST', '/api/targets', { token: w.admin.token, body: disabled });
  const foreign = await openSession(w.mcp, w.admin.token);
  const [seen, written] = [upstream.received.length, (await rows()).length];

  const modern = {
    'mcp-protocol-version': '2026-07-28',
    'mcp-method': 'tools/call',
    'mcp-name': 'ok',
  };
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const { params, ...ok } = call('ok');
  const notification = { jsonrpc: '2.0', method: 'notifications/initialized' };
  const probes: readonly [method: string, headers: Record<string, string>, body?: object | string][] = [
    ['POST', {}, HELLO],
    ['POST', {}, call('ok')],
    ['POST', { 'mcp-session-id': foreign }, call('ok')],
    ['POST', { 'mcp-session-id': 'x' }, call('ok')],
    ['POST', { 'mcp-session-id': foreign }, notification],
    ['POST', { 'mcp-session-id': foreign }, { jsonrpc: '2.0', id: 1, result: {} }],
    ['POST', { 'mcp-session-id': foreign, 'mcp-protocol-version': '2025-03-26' }, [call('ok')]],
    ['POST', modern, { ...ok, params: { ...params, _meta } }],
    ['POST', {}, '{'],
    ['POST', {}, { jsonrpc: '2.0', id: 1, method: 'acme/x' }],
    ['POST', { 'mcp-session-id': foreign }, { jsonrpc: '2.0', id: 1, method: 'acme/x' }],
    ['GET', {}],
    ['GET', { 'mcp-session-id': foreign }],
    ['GET', { 'mcp-session-id': foreign, 'last-event-id': 'x' }],
    ['DELETE', { 'mcp-session-id': foreign }],
    ['PUT', {}, {}],
    ['OPTIONS', {}],
  ];
  const answers = async (token: string | null, target: string): Promise<string[]> => {
    const found: string[] = [];
    for (const [method, headers, body] of probes) {
      const answer = await fetch(`${w.gateway.url}/mcp/${target}`, {
        method,
        headers: {
          accept: 'application/json, text/event-stream',
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      });
      const id = answer.headers.get('x-request-id') ?? 'no id';
      const head = [...answer.headers].filter(([name]) => !['date', 'content-length'].includes(name));
      const text = JSON.stringify([answer.status, head, await answer.text()]);
      found.push(text.replaceAll(id, 'ID').replaceAll(target, 'TARGET'));
    }
    const metadata = await fetch(`${w.gateway.url}/.well-known/oauth-protected-resource/mcp/${target}`);
    found.push((await metadata.text()).replaceAll(target, 'TARGET'));
    return found;
  };
  for (const token of [w.token, null, 'no-token']) {
    const unknown = await answers(token, 'nowhere');
    t.deepEqual(await answers(token, 'everything'), unknown);
    t.deepEqual(await answers(token, 'switched-off'), unknown);
  }
  t.is(upstream.received.length, seen);
  const made = (await rows()).slice(written);
  t.true(made.length > 0 && made.length % 3 === 0, 'as many rows for each');
  t.true(made.every((row) => / deny (default|no_target)$/.test(row)));
  const reasons = made.map((row) => row.split(' ').at(-1));
  t.is(reasons.filter((reason) => reason === 'default').length * 2, reasons.filter((reason) => reason === 'no_target').length);
  t.is((await post(w.mcp, w.admin.token, call('ok'), { 'mcp-session-id': foreign })).status, 200, 'its owner has it still');
});

test.serial('a user who sends too many requests has to wait, and other users at the same address do not', async (t) => {
  const { w, upstream, rows } = await setUp(t, { environment: { MCP_RATE_LIMIT: '20' } });
  await w.allow({ name: 'all' });
  const other = await person(w.gateway, 'other@example.com');
  const { token } = await apiToken(w.gateway, other);
  const session = { 'mcp-session-id': await openSession(w.mcp, w.token) };
  const storm = Array.from({ length: 60 }, (_, id) => post(w.mcp, w.token, call('ok', {}, id), session));
  const theirs = await openSession(w.mcp, token);
  t.is((await post(w.mcp, token, call('ok'), { 'mcp-session-id': theirs })).status, 200);
  const answers = await Promise.all(storm);
  const served = answers.filter(({ status }) => status === 200).length;
  // Two of the twenty have opened the session.
  t.is(served, 18);
  const refused = answers.filter(({ status }) => status === 429);
  t.is(refused.length, 60 - served);
  for (const { headers } of refused) {
    const wait = Number(headers.get('retry-after'));
    t.true(wait > 0 && wait <= 60);
  }
  t.is(upstream.seen().filter((method) => method === 'tools/call').length, served + 1);
  t.is((await rows()).filter((row) => row.startsWith('tools/call')).length, served + 1, 'who waits has not been decided on');
});
