import test from 'ava';
import { createRateLimits } from '../../src/http/rate-limit.ts';

test('MCP_RATE_LIMIT counts each pair of principal and address', (t) => {
  const limits = createRateLimits({ login: 60, mcp: 2, changes: 30, oauth: 600, registration: 20 });
  const ask = (principal: string, address: string) => limits.mcp(principal, address)?.code ?? 'passed';
  t.is(ask('ann', '192.0.2.1'), 'passed');
  t.is(ask('ann', '192.0.2.1'), 'passed');
  t.is(ask('ann', '192.0.2.1'), 'too_many_requests');
  t.is(ask('ben', '192.0.2.1'), 'passed', 'who shares an address shares no count');
  t.is(ask('ann', '192.0.2.2'), 'passed', 'nor does the same principal elsewhere');
  const refusal = limits.mcp('ann', '192.0.2.1');
  t.true((refusal?.retryAfter ?? 0) >= 1 && (refusal?.retryAfter ?? 0) <= 60);
});
