/** The documents that tell clients how to authenticate (RFC 7517, RFC 8414, RFC 9728), the same for every caller and target name. */
import { Router } from 'express';
import type { KeyRing } from '../auth/keys.ts';
import { AppError } from '../base/errors.ts';
import { resourceMetadata, serverMetadata } from '../oauth/metadata.ts';
import { TARGET_NAME } from '../targets/target.ts';

/** `registration`: whether OAuth clients may register. `idJag`: whether they may exchange assertions of a provider now. */
export function wellKnownRoutes(keys: KeyRing, publicUrl: string, registration: boolean, idJag: () => Promise<boolean>): Router {
  const router = Router({ caseSensitive: true, strict: true });

  router.get('/jwks.json', async (_req, res) => {
    res.set('Cache-Control', 'public, max-age=60').json(await keys.jwks());
  });
  // Clients look for the authorization server in either place.
  for (const path of ['/oauth-authorization-server', '/openid-configuration']) {
    router.get(path, async (_req, res) => {
      res.json(serverMetadata(publicUrl, registration, await idJag()));
    });
  }
  router.get('/oauth-protected-resource', (_req, res) => {
    res.json(resourceMetadata(publicUrl, ''));
  });
  router.get('/oauth-protected-resource/mcp', (_req, res) => {
    res.json(resourceMetadata(publicUrl, '/mcp'));
  });
  // The answer does not reveal whether a target with this name exists (law 10).
  router.get('/oauth-protected-resource/mcp/:name', (req, res) => {
    if (!TARGET_NAME.test(req.params.name)) throw new AppError('not_found', 'No target can have this name.');
    res.json(resourceMetadata(publicUrl, `/mcp/${req.params.name}`));
  });
  return router;
}
