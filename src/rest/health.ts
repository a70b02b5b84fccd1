/** Health endpoints: whether the process runs, and whether load balancers should send it requests. */
import type { IncomingMessage } from 'node:http';
import { Router } from 'express';
import { laneOnce } from '../base/turns/lane.ts';

/** Returns, for each part that must work before requests are accepted, whether it works. Does not reject. */
export type Ready = () => Promise<Readonly<Record<string, boolean>>>;

export function healthRoutes(ready: Ready, addressOf: (req: IncomingMessage) => string): Router {
  const router = Router({ caseSensitive: true, strict: true });
  // Nobody is refused here. A flood must neither take the thread from others, nor keep the load balancer waiting.
  router.use(async (req, _res, next) => {
    await laneOnce(`health ${addressOf(req)}`, () => undefined);
    next();
  });
  router.get('/live', (_req, res) => {
    res.set('Cache-Control', 'no-store').json({ live: true });
  });
  router.get('/ready', async (_req, res) => {
    const checks = await ready();
    const ok = Object.values(checks).every(Boolean);
    res
      .status(ok ? 200 : 503)
      .set('Cache-Control', 'no-store')
      .json({ ready: ok, checks });
  });
  return router;
}
