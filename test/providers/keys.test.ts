/** The keys of a provider over time: rotation, and outages of the provider. The clock belongs to the test. */
import { generateKeyPairSync } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { CompactSign, exportJWK } from 'jose';
import type { TokenClaims } from '../../src/auth/principal.ts';
import type { Provider } from '../../src/auth/provider.ts';
import { hashOf } from '../../src/auth/verify.ts';
import { OutboundFault } from '../../src/base/network/outbound.ts';
import { readProvider } from '../../src/providers/document.ts';
import { createFaultLog, isFault } from '../../src/providers/faults.ts';
import { createProviderKeys } from '../../src/providers/keys.ts';
import { createProviderTokens } from '../../src/providers/tokens.ts';

const ISSUER = 'https://login.example.com';
const MINUTE = 60_000;
const START = Date.parse('2026-01-01T00:00:00Z');

const PROVIDER: Provider = readProvider(
  {
    ...{ name: 'company', preset: 'openid', issuer: ISSUER, client_id: 'the-gateway' },
    ...{ algorithms: ['ES256'], tokens: { audiences: ['api'] }, outage_minutes: 60, clock_skew_seconds: 0 },
  },
  { id: 'p', created_at: 0, updated_at: 0 },
).provider;

async function world(t: ExecutionContext) {
  const published = new Map<string, object>();
  const signing = new Map<string, ReturnType<typeof generateKeyPairSync>['privateKey']>();
  const state = { now: START, isDown: false, hangs: null as Promise<void> | null, reads: 0 };
  const fetchWith = () => async (address: string | URL) => {
    if (String(address).endsWith('/jwks')) state.reads++;
    await state.hangs;
    if (state.isDown) throw new OutboundFault('the provider is down');
    const body = String(address).endsWith('/jwks')
      ? { keys: [...published.values()] }
      : { issuer: ISSUER, jwks_uri: `${ISSUER}/jwks` };
    return new Response(JSON.stringify(body));
  };
  const keys = createProviderKeys({ outbound: { fetchWith }, now: () => state.now, elapsed: () => state.now });
  const providers = new Map([[ISSUER, PROVIDER]]);
  const tokens = createProviderTokens({
    ...{ keys, faults: createFaultLog(() => state.now), now: () => state.now, own: [] },
    people: { settle: async (_provider, { subject }) => ({ id: `user-${subject}`, subject, facts: null }) as never },
    known: () => providers,
    fresh: async () => providers,
  });
  const world = {
    state,
    keys,
    async addKey(kid: string) {
      const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
      published.set(kid, { ...(await exportJWK(publicKey)), kid, alg: 'ES256', use: 'sig' });
      signing.set(kid, privateKey);
    },
    withdraw: (kid: string) => void published.delete(kid),
    later: (ms: number) => {
      state.now += ms;
    },
    token(kid: string, claims: object = {}): Promise<string> {
      const iat = Math.floor(state.now / 1_000);
      const payload = { iss: ISSUER, aud: 'api', sub: 'alice', iat, exp: iat + 24 * 3_600, ...claims };
      return new CompactSign(Buffer.from(JSON.stringify(payload)))
        .setProtectedHeader({ alg: 'ES256', typ: 'at+jwt', kid })
        .sign(signing.get(kid) as never);
    },
    /** Returns what a request with the token gets: `ok`, or the status of the refusal. */
    async present(token: string): Promise<'ok' | 401 | 503> {
      const hash = hashOf(token);
      try {
        const answer = tokens.recall(hash) ?? (await tokens.check(token, hash));
        return answer !== null && 'sub' in answer ? 'ok' : 401;
      } catch (error) {
        t.like(error, { code: 'unavailable', retryAfter: 10 });
        return 503;
      }
    },
    recall: (token: string): TokenClaims | null => tokens.recall(hashOf(token)),
  };
  await world.addKey('one');
  return world;
}

test('keys overlap in a rotation, and a withdrawn key counts no more', async (t) => {
  const w = await world(t);
  const old = await w.token('one');
  t.is(await w.present(old), 'ok');
  await w.addKey('two');
  w.later(MINUTE);
  const renewed = await w.token('two');
  t.is(await w.present(renewed), 'ok', 'the unknown key is read at once');
  t.is(await w.present(old), 'ok', 'the old key is still published');
  w.withdraw('one');
  w.later(10 * MINUTE);
  const stolen = await w.token('one', { sub: 'mallory' });
  t.deepEqual(await Promise.all([w.present(stolen), w.present(old), w.present(renewed)]), [401, 401, 'ok'], 'nobody came before');
  t.is(w.state.reads, 3, 'they shared one read');
});

test('a key counts no more if the provider withdraws its only key', async (t) => {
  const w = await world(t);
  t.is(await w.present(await w.token('one')), 'ok');
  w.withdraw('one');
  w.later(10 * MINUTE);
  t.is(await w.present(await w.token('one', { sub: 'mallory' })), 503, 'the provider may publish a new key soon');
  t.like(w.keys.report(PROVIDER), { status: 'failing' });
  await w.addKey('two');
  w.later(MINUTE);
  t.is(await w.present(await w.token('two')), 'ok');
});

test('tokens do not wait for the keys if they come all the time, nor while the provider hangs after one of them has waited', async (t) => {
  const w = await world(t);
  const known = await w.token('one');
  t.is(await w.present(known), 'ok');
  w.later(6 * MINUTE);
  t.not(w.recall(known), null, 'the keys are read in the background');
  await w.keys.probe(PROVIDER);
  t.is(w.state.reads, 2, 'the same read');
  w.later(5 * MINUTE);
  t.not(w.recall(known), null, 'that read counts');

  const hang = () => {
    let fail = (): void => {};
    w.state.hangs = new Promise((_, reject) => {
      fail = () => reject(new OutboundFault('has not answered within 5 s'));
    });
    w.state.hangs.catch(() => {});
    return fail;
  };
  let fail = hang();
  w.later(10 * MINUTE);
  const waiting = w.present(known);
  w.later(10_000);
  fail();
  t.is(await waiting, 'ok', 'the old keys count, because the read has failed');
  for (let i = 0; i < 10; i++) {
    fail = hang();
    w.later(11_000);
    t.is(await w.present(known), 'ok', 'does not wait for the read in the background');
    w.later(10_000);
    fail();
    await new Promise(setImmediate);
  }
  w.later(2 * MINUTE);
  w.state.hangs = null;
  w.withdraw('one');
  await w.addKey('two');
  t.is(await w.present(known), 401, 'the failure is forgotten, so this one waits');
});

test('a provider that is down does not stop known keys, for a limited time', async (t) => {
  const w = await world(t);
  const known = await w.token('one');
  t.is(await w.present(known), 'ok');
  w.state.isDown = true;
  w.later(59 * MINUTE);
  t.is(await w.present(known), 'ok', 'a token that was seen before');
  t.is(await w.present(await w.token('one', { sub: 'bob' })), 'ok', 'a token that was not');
  w.later(2 * MINUTE);
  t.is(await w.present(known), 503);
  w.state.isDown = false;
  w.later(MINUTE);
  t.is(await w.present(known), 'ok');
});

test('a token with a new key gets 503 while the keys cannot be read, and the provider is asked seldom', async (t) => {
  const w = await world(t);
  const known = await w.token('one');
  t.is(await w.present(known), 'ok');
  await w.addKey('two');
  w.state.isDown = true;
  w.later(MINUTE);
  const renewed = await w.token('two');
  const isBroken = await w.keys.find(PROVIDER, { alg: 'ES256', kid: 'two' });
  t.true(isFault(isBroken) && /cannot|could not be read again/.test(isBroken.reason), JSON.stringify(isBroken));
  for (let i = 0; i < 20; i++) t.is(await w.present(renewed), 503);
  t.is(await w.present(known), 'ok', 'known keys go on meanwhile');
  w.state.isDown = false;
  w.later(11_000);
  t.is(await w.present(renewed), 'ok');
  t.is(w.state.reads, 2, 'the keys were read at the start and after the outage');
  w.later(MINUTE);
  await w.addKey('three');
  w.withdraw('three');
  t.is(await w.present(await w.token('three')), 401, 'a key that the provider does not publish');
});

test('long tokens are remembered up to a number of characters in all', async (t) => {
  const w = await world(t);
  const long = (jti: number) => w.token('one', { jti, pad: 'x'.repeat(12_000) });
  const first = await long(0);
  t.is(await w.present(first), 'ok');
  const tokens = Math.ceil((16 * 1024 * 1024) / first.length);
  for (let index = 1; index < tokens - 1; index++) await w.present(await long(index));
  t.truthy(w.recall(first));
  for (let index = tokens; index < 2 * tokens; index++) await w.present(await long(index));
  t.is(w.recall(first), null);
  t.is(await w.present(first), 'ok', 'it is verified again');
  t.truthy(w.recall(first));
});

test('an expired token begins no request, and what began before goes on', async (t) => {
  const w = await world(t);
  const token = await w.token('one', { exp: Math.floor(START / 1_000) + 60 });
  t.is(await w.present(token), 'ok');
  const claims = w.recall(token);
  t.is(claims?.exp, START / 1_000 + 60, 'streams end by this');
  w.later(MINUTE);
  t.is(w.recall(token), null);
  t.is(await w.present(token), 401);
  t.is(claims?.provider?.judge(PROVIDER), null, 'the gate, which also sees calls in flight, does not judge times');
  t.regex(claims?.provider?.judge({ ...PROVIDER, algorithms: ['RS256'] }) ?? '', /algorithm/);
});
