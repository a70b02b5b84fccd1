/** Valid and forged tokens, each checked by both readers: `verify.ts` (for /mcp) and express-jwt (for /api). */
import { createHmac, createPublicKey, createSign, generateKeyPairSync, type KeyObject } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { v7 as uuidv7 } from 'uuid';
import { createKeyRing, makeKeys } from '../../src/auth/keys.ts';
import { isRefusal } from '../../src/auth/principal.ts';
import { tokenStore } from '../../src/auth/token-store.ts';
import { createVault } from '../../src/auth/vault.ts';
import { createVerifier } from '../../src/auth/verify.ts';
import { openDatabase } from '../../src/db/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { type Rest, startRest } from '../support/rest.ts';

const part = (value: unknown): string =>
  Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');

function signed(header: object, payload: unknown, key: KeyObject): string {
  const input = `${part(header)}.${part(payload)}`;
  return `${input}.${createSign('sha256').update(input).sign({ key, dsaEncoding: 'ieee-p1363' }, 'base64url')}`;
}

/** Returns the gateway's private key, so that a test can sign tokens that the gateway would never sign. */
async function stolenKey(rest: Rest): Promise<{ kid: string; key: KeyObject }> {
  const row = await rest.database.knex('secret_keys').where({ purpose: 'signing' }).first();
  const { createPrivateKey } = await import('node:crypto');
  return {
    kid: row.id,
    key: createPrivateKey({ key: rest.vault.open(`signing:${row.id}`, row.sealed), format: 'der', type: 'pkcs8' }),
  };
}

async function sqlite(t: ExecutionContext): Promise<string> {
  const { url, drop } = await createSqlite();
  t.teardown(drop);
  return url;
}

test.serial('both readers come to the same verdict on every token', async (t) => {
  const rest = await startRest(t, await sqlite(t));
  const { id, token: good } = await rest.account('a@example.com');
  const verify = createVerifier(rest.keys, rest.rules);
  const { kid, key } = await stolenKey(rest);
  const [h = '', p = '', s = ''] = good.split('.');
  const claims = JSON.parse(Buffer.from(p, 'base64url').toString());
  const header = { alg: 'ES256', typ: 'JWT', kid };
  const other = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const publicPem = createPublicKey(key).export({ type: 'spki', format: 'pem' }).toString();
  const jwk = other.publicKey.export({ format: 'jwk' });
  const seconds = Math.floor(Date.now() / 1000);
  const make = (change: object, head: object = {}) => signed({ ...header, ...head }, { ...claims, ...change }, key);
  const without = (name: string) => {
    const { [name]: _, ...rest } = claims;
    return signed(header, rest, key);
  };
  const hmac = (secret: string) => {
    const input = `${part({ ...header, alg: 'HS256' })}.${part(claims)}`;
    return `${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`;
  };

  const accepted: Record<string, string> = {
    'as issued': `Bearer ${good}`,
    'scheme in lower case': `bearer ${good}`,
    'scheme in upper case, two spaces': `BEARER  ${good}`,
    'signed again': `Bearer ${make({})}`,
    'within the tolerance of clocks': `Bearer ${make({ exp: seconds - 1, iat: seconds + 1 })}`,
    'issued by a replica whose clock is ahead': `Bearer ${make({ iat: seconds + 28, nbf: seconds + 28 })}`,
    'our audience among several': `Bearer ${make({ aud: ['another', 'portcullis'] })}`,
    'unknown claims added': `Bearer ${make({ extra: { deep: [1] } })}`,
  };
  const refused: Record<string, string> = {
    'no scheme': good,
    Basic: `Basic ${good}`,
    'scheme alone': 'Bearer',
    'empty token': 'Bearer ',
    'two tokens': `Bearer ${good}, Bearer ${good}`,
    'two tokens after one scheme': `Bearer ${good} ${good}`,
    'two parts': `Bearer ${h}.${p}`,
    'four parts': `Bearer ${good}.x`,
    'five parts, as JWE has': `Bearer ${good}.${h}.${p}`,
    padding: `Bearer ${good}=`,
    'not base64url': `Bearer ${h}.${p}+/.${s}`,
    'header is not JSON': `Bearer ${part('x')}.${p}.${s}`,
    'header is null': `Bearer ${part('null')}.${p}.${s}`,
    'header is a list': `Bearer ${part('[]')}.${p}.${s}`,
    'payload is not JSON': `Bearer ${signed(header, 'x', key)}`,
    'payload is null': `Bearer ${signed(header, 'null', key)}`,
    'payload is a list': `Bearer ${signed(header, '[]', key)}`,
    'payload is a string': `Bearer ${signed(header, '"x"', key)}`,
    'no signature': `Bearer ${h}.${p}.`,
    'alg none without signature': `Bearer ${part({ ...header, alg: 'none' })}.${p}.`,
    'alg none with signature': `Bearer ${part({ ...header, alg: 'none' })}.${p}.${s}`,
    'alg nOnE': `Bearer ${part({ ...header, alg: 'nOnE' })}.${p}.${s}`,
    'HS256 with the public key as secret': `Bearer ${hmac(publicPem)}`,
    'HS256 with the x coordinate as secret': `Bearer ${hmac(String(jwk.x))}`,
    'ES384 in the header': `Bearer ${make({}, { alg: 'ES384' })}`,
    'alg in lower case': `Bearer ${make({}, { alg: 'es256' })}`,
    'payload changed': `Bearer ${h}.${part({ ...claims, role: 'root' })}.${s}`,
    'signature changed': `Bearer ${h}.${p}.${s.startsWith('A') ? 'B' : 'A'}${s.slice(1)}`,
    'signature of zeros': `Bearer ${h}.${p}.${part(Buffer.alloc(64).toString('latin1'))}`,
    'signature empty after base64url': `Bearer ${h}.${p}.A`,
    'a different key under our kid': `Bearer ${signed(header, claims, other.privateKey)}`,
    'unknown kid': `Bearer ${signed({ ...header, kid: 'unknown' }, claims, other.privateKey)}`,
    'unknown kid with our key': `Bearer ${make({}, { kid: 'x' })}`,
    'kid is a path': `Bearer ${make({}, { kid: '../../dev/null' })}`,
    'kid is a number': `Bearer ${make({}, { kid: 1 })}`,
    'kid of the sealing key': `Bearer ${make({}, { kid: 'sealing' })}`,
    'no kid': `Bearer ${make({}, { kid: undefined })}`,
    'no typ': `Bearer ${make({}, { typ: undefined })}`,
    'typ of a different kind of token': `Bearer ${make({}, { typ: 'at+jwt' })}`,
    'typ in lower case': `Bearer ${make({}, { typ: 'jwt' })}`,
    'contains its key (jwk)': `Bearer ${signed({ ...header, jwk }, claims, other.privateKey)}`,
    'names its key (jku)': `Bearer ${signed({ ...header, jku: 'https://evil.example/jwks.json' }, claims, other.privateKey)}`,
    'x5u, signed by us': `Bearer ${make({}, { x5u: 'https://evil.example/x' })}`,
    'crit, signed by us': `Bearer ${make({}, { crit: ['b64'], b64: true })}`,
    expired: `Bearer ${make({ exp: seconds - 10 })}`,
    'not yet valid': `Bearer ${make({ nbf: seconds + 60 })}`,
    'issued in the future': `Bearer ${make({ iat: seconds + 60 })}`,
    'exp is a string': `Bearer ${make({ exp: String(seconds + 60) })}`,
    'exp is null': `Bearer ${make({ exp: null })}`,
    'iat is a string': `Bearer ${make({ iat: 'now' })}`,
    'nbf is a string': `Bearer ${make({ nbf: '0' })}`,
    'no iat': `Bearer ${without('iat')}`,
    'wrong issuer': `Bearer ${make({ iss: 'https://evil.example' })}`,
    'wrong audience': `Bearer ${make({ aud: 'another' })}`,
    'other audiences': `Bearer ${make({ aud: ['another', 'portcullis-2'] })}`,
    'an empty list of audiences': `Bearer ${make({ aud: [] })}`,
    'a list of audiences with a number': `Bearer ${make({ aud: ['portcullis', 1] })}`,
    'no audience': `Bearer ${without('aud')}`,
    'no issuer': `Bearer ${without('iss')}`,
    'no sub': `Bearer ${without('sub')}`,
    'no jti': `Bearer ${without('jti')}`,
    'no e-mail': `Bearer ${without('email')}`,
    'no role': `Bearer ${without('role')}`,
    'no groups': `Bearer ${without('groups')}`,
    'groups is text': `Bearer ${make({ groups: 'admins' })}`,
    'a group is a number': `Bearer ${make({ groups: [1] })}`,
    'role is a list': `Bearer ${make({ role: ['admin'] })}`,
    'sub is a number': `Bearer ${make({ sub: 1 })}`,
    'jti is empty': `Bearer ${make({ jti: '' })}`,
  };
  const rest401 = async (authorization: string) => rest.call('GET', '/api/auth/me', { headers: { authorization } });
  for (const [name, authorization] of Object.entries(accepted)) {
    const verdict = await verify({ authorization });
    t.false(isRefusal(verdict), `verify: ${name}`);
    t.deepEqual(await verify({ authorization }), verdict, `verify, remembered: ${name}`);
    t.is((await rest401(authorization)).status, 200, `express-jwt: ${name}`);
  }
  for (const [name, authorization] of Object.entries(refused)) {
    const verdict = await verify({ authorization });
    const answer = await rest401(authorization);
    if (!isRefusal(verdict)) {
      t.fail(`verify: ${name}`);
      continue;
    }
    t.is(answer.status, 401, `express-jwt: ${name}`);
    t.is(answer.body.code, verdict.refused, name);
    t.regex(
      String(answer.headers['www-authenticate']),
      /^Bearer resource_metadata="http:\/\/[^"]+"(, error="invalid_token")?$/,
      name,
    );
    t.is(String(answer.headers['www-authenticate']).includes('error='), verdict.refused === 'invalid_token', name);
  }
  t.true(isRefusal(await verify({ authorization: undefined })));
  const bare = await rest.call('GET', '/api/auth/me');
  t.is(bare.status, 401);
  t.is(bare.body.code, 'unauthenticated');

  // The token of another user's record, a token without a record, and a login token without exp.
  const stranger = await rest.account('b@example.com');
  for (const change of [{ sub: stranger.id }, { jti: uuidv7() }, { exp: undefined }, { sub: uuidv7() }]) {
    t.is((await rest401(`Bearer ${make(change)}`)).status, 401, JSON.stringify(change));
  }
  // The role and groups in the claims decide nothing (law 7).
  const { body } = await rest401(
    `Bearer ${signed(header, { ...JSON.parse(Buffer.from(stranger.token.split('.')[1] ?? '', 'base64url').toString()), role: 'admin' }, key)}`,
  );
  t.is(body.role, 'user');
  t.truthy(id);
  t.false(rest.logged().includes(good.slice(-40)), 'no token is logged');
});

test.serial('two Authorization headers are refused, whichever comes first', async (t) => {
  const rest = await startRest(t, await sqlite(t));
  const { token } = await rest.account('a@example.com');
  for (const authorization of [
    [`Bearer ${token}`, `Bearer ${token}`],
    [`Bearer ${token}`, 'Basic eDp5'],
    ['Basic eDp5', `Bearer ${token}`],
  ]) {
    t.is((await rest.call('GET', '/api/auth/me', { headers: { authorization } })).status, 401);
  }
});

test.serial('a remembered token still expires', async (t) => {
  const rest = await startRest(t, await sqlite(t));
  const { token } = await rest.account('a@example.com');
  const verify = createVerifier(rest.keys, rest.rules);
  t.false(isRefusal(await verify({ authorization: `Bearer ${token}` })));
  rest.pass(12 * 3_600_000 + 10_000);
  t.true(isRefusal(await verify({ authorization: `Bearer ${token}` })));
});

eachEngine(test.serial, 'keys rotate with overlap, on every replica', async (t, database, engine) => {
  const rest = await startRest(t, database.url);
  const { token } = await rest.account('admin@example.com');
  const user = await rest.account('user@example.com');
  const api = (await rest.call('POST', '/api/auth/tokens', { token, body: { name: 'x' } })).body.token;
  // A second replica if the database accepts one, otherwise a second key ring. It does not know of the rotation yet.
  const replica =
    engine === 'sqlite' ? await createKeyRing(rest.database.knex, rest.vault) : (await startRest(t, database.url)).keys;
  const verify = createVerifier(replica, rest.rules);
  t.is((await rest.call('POST', '/api/keys/rotate', { token: user.token })).status, 403);
  t.is(
    (await rest.call('POST', '/api/keys/rotate', { token, body: { kid: 'mine' } })).body.errors?.[0]?.message,
    'is not a member of this object',
  );

  const before = (await rest.keys.signer()).kid;
  const rotated = await rest.call('POST', '/api/keys/rotate', { token });
  t.is(rotated.status, 201);
  t.is((await rest.keys.signer()).kid, rotated.body['kid'] as string);
  t.is((await replica.signer()).kid, rotated.body['kid'] as string);
  t.not(rotated.body['kid'], before);

  const login = await rest.call('POST', '/api/auth/login', {
    body: { email: 'user@example.com', password: 'correct horse battery' },
  });
  const fresh = String(login.body.token);
  t.is(JSON.parse(Buffer.from(fresh.split('.')[0] ?? '', 'base64url').toString()).kid, rotated.body['kid']);
  for (const bearer of [token, api, fresh]) {
    t.is((await rest.call('GET', '/api/auth/me', { token: String(bearer) })).status, 200);
    t.false(isRefusal(await verify({ authorization: `Bearer ${bearer}` })));
  }
  const { keys } = JSON.parse((await rest.call('GET', '/.well-known/jwks.json')).text);
  t.deepEqual(
    keys.map((key: { kid: string }) => key.kid),
    [rotated.body['kid'], before],
  );
  t.deepEqual(Object.keys(keys[0]), ['kty', 'crv', 'x', 'y', 'kid', 'alg', 'use'], 'only public members');

  // The old key verifies only the tokens that it signed, and after the overlap only API tokens.
  const record = await tokenStore(rest.database.knex).find(
    JSON.parse(Buffer.from(fresh.split('.')[1] ?? '', 'base64url').toString()).jti,
  );
  t.is(record?.kid, rotated.body['kid'] as string);
  const old = await rest.database.knex('secret_keys').where({ id: before }).first();
  const { createPrivateKey } = await import('node:crypto');
  const stolen = createPrivateKey({ key: rest.vault.open(`signing:${before}`, old.sealed), format: 'der', type: 'pkcs8' });
  const claims = JSON.parse(Buffer.from(fresh.split('.')[1] ?? '', 'base64url').toString());
  const forged = signed({ alg: 'ES256', typ: 'JWT', kid: before }, claims, stolen);
  t.is((await rest.call('GET', '/api/auth/me', { token: forged })).status, 401, 'its record names the new key');
  rest.pass(13 * 3_600_000);
  const forever = signed({ alg: 'ES256', typ: 'JWT', kid: before }, { ...claims, exp: claims.exp * 2 }, stolen);
  t.true(isRefusal(await verify({ authorization: `Bearer ${forever}` })));
  t.is((await rest.call('GET', '/api/auth/me', { token: String(api) })).status, 200);
  t.is((await rest.changes.page(1, null)).changes[0]?.action, 'key.rotate');
});

test.serial('unknown key ids cause at most one read a second, which all waiting callers share', async (t) => {
  const rest = await startRest(t, await sqlite(t));
  let reads = 0;
  rest.database.knex.on('query', ({ sql }: { sql: string }) => {
    if (sql.includes('secret_keys')) reads++;
  });
  const began = performance.now();
  const found = await Promise.all(Array.from({ length: 200 }, (_, i) => rest.keys.resolve(`kid${i}`)));
  t.true(found.every((key) => key === null));
  await rest.keys.resolve('another');
  t.true(reads <= 2, String(reads));
  t.true(performance.now() - began > 900);
  t.is(await rest.keys.resolve('not a kid; drop table'), null);
  t.true(reads <= 2);
});

eachEngine(test.serial, 'a different master key is refused with a clear message, and changes nothing', async (t, { url }) => {
  const config = url.startsWith('sqlite:')
    ? { kind: 'sqlite' as const, path: url.slice('sqlite:'.length) }
    : { kind: 'mysql' as const, url, allowWeakDurability: false, poolSize: 3 };
  const start = async (fill: number) => {
    const vault = createVault(Buffer.alloc(32, fill));
    const database = await openDatabase(config, (db) => makeKeys(db, vault));
    const keys = await createKeyRing(database.knex, vault);
    const { keys: jwks } = await keys.jwks();
    const rows = await database.knex('secret_keys').count({ n: '*' }).first();
    await database.close();
    return { sealing: keys.sealingKey.toString('hex'), kids: jwks.map((key) => key.kid), rows: Number(rows?.['n']) };
  };
  const first = await start(1);
  t.is(first.rows, 3);
  t.is(first.sealing.length, 64);
  t.deepEqual(await start(1), first);
  await t.throwsAsync(start(2), { message: /a different master key/, code: 'unavailable' });
  t.deepEqual(await start(1), first);
});
