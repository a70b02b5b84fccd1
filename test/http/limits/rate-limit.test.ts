import { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { AppError } from '../../../src/base/errors.ts';
import { addressGroup, addressSite } from '../../../src/http/limits/client-address.ts';
import { beforeRefusal, createRateLimits } from '../../../src/http/limits/rate-limit.ts';

/** The time before a refusal does not keep the process alive. */
const alive = (t: ExecutionContext): void => {
  const ticking = setInterval(() => undefined, 1_000);
  t.teardown(() => clearInterval(ticking));
};

/** A request whose body has not arrived. */
const incoming = (): IncomingMessage => Object.assign(new IncomingMessage(new Socket()), { complete: false });

test('many refusals of one sender do not begin at once, and those of others do not wait behind them', async (t) => {
  alive(t);
  let refused = 0;
  const req = incoming();
  for (let i = 0; i < 20_000; i++) void beforeRefusal(req, '192.0.2.1').then(() => refused++);
  await Promise.all(Array.from({ length: 10 }, (_, i) => beforeRefusal(req, `198.51.100.${i}`)));
  t.true(refused < 10_000, `${refused} of 20,000 were refused before`);
});

test('addresses of one IPv6 network share the turn of a refusal', async (t) => {
  alive(t);
  let refused = 0;
  const req = incoming();
  for (let i = 0; i < 20_000; i++) void beforeRefusal(req, `2001:db8::${i.toString(16)}`).then(() => refused++);
  await Promise.all(Array.from({ length: 10 }, (_, i) => beforeRefusal(req, `203.0.113.${i}`)));
  t.true(refused < 10_000, `${refused} of 20,000 were refused before`);
});

test('what has arrived of the body is dropped while its refusal waits', async (t) => {
  alive(t);
  const req = incoming();
  req.push(Buffer.alloc(60_000));
  t.is(req.readableLength, 60_000);
  const refused = beforeRefusal(req, '192.0.2.3');
  await setImmediate();
  t.is(req.readableLength, 0);
  await refused;
});

test('MCP_RATE_LIMIT counts each pair of principal and address', (t) => {
  const limits = createRateLimits({ login: 60, mcp: 2, api: 3, changes: 30, oauth: 600, registration: 20 });
  const ask = (principal: string, address: string) => limits.mcp(principal, address)?.code ?? 'passed';
  t.is(ask('ann', '192.0.2.1'), 'passed');
  t.is(ask('ann', '192.0.2.1'), 'passed');
  t.is(ask('ann', '192.0.2.1'), 'too_many_requests');
  t.is(ask('ben', '192.0.2.1'), 'passed', 'who shares an address shares no count');
  t.is(ask('ann', '192.0.2.2'), 'passed', 'nor does the same principal elsewhere');
  const refusal = limits.mcp('ann', '192.0.2.1');
  t.true((refusal?.retryAfter ?? 0) >= 1 && (refusal?.retryAfter ?? 0) <= 60);
});

const detailOf = (allowed: unknown): string => (allowed instanceof AppError ? allowed.message : '');

test('API_RATE_LIMIT counts each pair of principal and address, apart from MCP_RATE_LIMIT', (t) => {
  const limits = createRateLimits({ login: 60, mcp: 2, api: 3, changes: 30, oauth: 600, registration: 20 });
  for (let n = 0; n < 3; n++) t.is(limits.api('ann', '192.0.2.1'), null);
  t.like(limits.api('ann', '192.0.2.1'), { code: 'too_many_requests' });
  t.regex(detailOf(limits.api('ann', '192.0.2.1')), /3 requests a minute.*API_RATE_LIMIT/);
  t.is(limits.api('ben', '192.0.2.1'), null);
  t.is(limits.api('ann', '192.0.2.2'), null);
  t.is(limits.mcp('ann', '192.0.2.1'), null);
});

test('API_RATE_LIMIT also limits an address, but refuses nobody there who sends little', (t) => {
  const limits = createRateLimits({ login: 60, mcp: 2, api: 20, changes: 30, oauth: 600, registration: 20 });
  for (const principal of ['ann', 'ben', 'cid']) for (let n = 0; n < 20; n++) t.is(limits.api(principal, '192.0.2.1'), null);
  for (const uses of [1, 2]) t.deepEqual(limits.api('dan', '192.0.2.1'), { inSpareTime: true, uses });
  t.regex(detailOf(limits.api('dan', '192.0.2.1')), /one address may send 60 requests a minute.*API_RATE_LIMIT/);
  t.deepEqual(limits.api('eve', '192.0.2.1'), { inSpareTime: true, uses: 1 }, 'an administrator who revokes a token');
  t.is(limits.api('dan', '192.0.2.2'), null);
});

test('codes for devices and registrations of clients are counted apart, and by network', (t) => {
  const limits = createRateLimits({ login: 60, mcp: 2, api: 3, changes: 30, oauth: 600, registration: 1 });
  t.is(limits.registration('2001:db8:1:2::1'), null);
  t.is(limits.registration('2001:db8:1:2::2')?.code, 'too_many_requests');
  t.is(limits.device('2001:db8:1:2::3'), null);
  t.is(limits.device('2001:db8:1:2::4')?.code, 'too_many_requests');
  t.is(limits.device('2001:db8:1:3::4'), null);
});

test('an IPv6 address counts with its network: a /64 for requests, a /48 for what is stored', (t) => {
  t.deepEqual(
    ['2001:db8:1:2:3::4', '2001:db8::', '::1', '192.0.2.1'].map((address) => [addressGroup(address), addressSite(address)]),
    [
      ['2001:db8:1:2::/64', '2001:db8:1::/48'],
      ['2001:db8:0:0::/64', '2001:db8:0::/48'],
      ['0:0:0:0::/64', '0:0:0::/48'],
      ['192.0.2.1', '192.0.2.1'],
    ],
  );
});
