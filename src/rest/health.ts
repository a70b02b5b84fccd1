/** Health endpoints: whether the process runs, and whether load balancers should send it requests. */
import { Router } from 'express';

/** Returns, for each part that must work before requests are accepted, whether it works. Does not reject. */
export type Ready = () => Promise<Readonly<Record<string, boolean>>>;

export function healthRoutes(ready: Ready): Router {
  const router = Router({ caseSensitive: true, strict: true });
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
