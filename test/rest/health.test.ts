/** Health checks beside a flood of them. */
import test from 'ava';
import type { Request, Response } from 'express';
import { deferred } from '../../src/base/promises.ts';
import { healthRoutes } from '../../src/rest/health.ts';

test('a load balancer does not wait behind the health checks of others', async (t) => {
  const router = healthRoutes(
    async () => ({ database: true }),
    (req) => String(req.headers['x-from']),
  );
  const answered: string[] = [];
  const ask = async (from: string): Promise<void> => {
    const done = deferred();
    const res = {
      set: () => res,
      status: () => res,
      json(body: unknown) {
        t.deepEqual(body, { live: true });
        answered.push(from);
        done.resolve();
      },
    };
    const req = { method: 'GET', url: '/live', headers: { 'x-from': from } };
    router(req as unknown as Request, res as unknown as Response, () => t.fail('no route'));
    await done.promise;
  };
  await Promise.all([...Array.from({ length: 300 }, () => ask('stranger')), ask('balancer')]);
  t.true(answered.indexOf('balancer') < 250, `answer ${answered.indexOf('balancer')} of ${answered.length}`);
});
