/** `/api/policies` for OPA and for reviewers of Rego. Mount it before single policies. */
import { readFile } from 'node:fs/promises';
import { type Response, Router } from 'express';
import type { KeyRing } from '../../auth/keys.ts';
import { readQuery } from '../../base/validate.ts';
import type { Database } from '../../db/database.ts';
import { readInTurn } from '../../db/turns.ts';
import { compileFor, type PolicyModule } from '../../engine/engine.ts';
import type { EngineCache } from '../../engine/engines.ts';
import { admissionOf } from '../../http/context.ts';
import {
  BUNDLE_TYPE,
  type BundleParts,
  bundleArchive,
  bundleFiles,
  bundleStatement,
  type RegoSources,
} from '../../policies/bundle.ts';
import { earlierSet } from '../../policies/history.ts';
import type { ReadStoredSet } from '../../policies/stored-set.ts';
import { showRevision } from './routes.ts';

const REVISION = /^[0-9]{1,15}$/;

export function createBundleRoutes(deps: {
  readonly database: Database;
  readonly readStoredSet: ReadStoredSet;
  readonly keys: KeyRing;
  readonly engineOf: EngineCache;
  readonly module: PolicyModule;
}): Router {
  const { database, readStoredSet, keys, engineOf, module } = deps;
  const router = Router({ caseSensitive: true, strict: true });

  async function partsOf(res: Response, asked: string | undefined): Promise<BundleParts> {
    const current = await database.snapshot(readStoredSet);
    showRevision(res, current.position);
    const revision = asked === undefined ? current.position.revision : Number(asked);
    const by = admissionOf(res).principal.sub;
    const policies = await earlierSet(database, by, revision, current);
    const isCurrent = revision === current.position.revision;
    // No question is asked about an earlier revision here, so it needs no engine.
    const { json, hash } = await readInTurn(by, async () =>
      isCurrent ? (await engineOf(policies, revision)).compiled : compileFor(module, policies),
    );
    return { revision, data: json, dataHash: hash, engineHash: module.hash, rego: await regoSources() };
  }

  router.get('/bundle', async (req, res) => {
    const { revision, signed } = readQuery(req.query, { revision: REVISION, signed: /^(true|false)$/ });
    const parts = await partsOf(res, revision);
    const files = bundleFiles(parts);
    const signer = signed === 'true' ? await keys.signer() : null;
    const signature = signer && (await signer.signAs(BUNDLE_TYPE, bundleStatement(files, signer.kid)));
    const archive = await readInTurn(admissionOf(res).principal.sub, () => bundleArchive(files, signature));
    // OPA polls with If-None-Match. Leave the signature out: it differs each time for the same content.
    const about = [parts.revision, parts.dataHash.slice(0, 16), parts.engineHash.slice(0, 16), signer?.kid ?? 'unsigned'];
    res
      .setHeader('ETag', `"${about.join('.')}"`)
      .setHeader('Content-Disposition', `attachment; filename="portcullis-${parts.revision}.tar.gz"`)
      .type('application/gzip')
      .send(archive);
  });

  router.get('/rego', async (req, res) => {
    const { revision, data, dataHash, engineHash, rego } = await partsOf(
      res,
      readQuery(req.query, { revision: REVISION }).revision,
    );
    // Express would compute a tag for each answer.
    const tag = `"${[revision, dataHash.slice(0, 16), engineHash.slice(0, 16)].join('.')}"`;
    await readInTurn(admissionOf(res).principal.sub, async () => {
      const rest = JSON.stringify({ revision, data_hash: dataHash, engine_hash: engineHash, rego }).slice(1);
      res.setHeader('ETag', tag).type('application/json').send(`{"data":${data},${rest}`);
    });
  });

  return router;
}

async function regoSources(): Promise<RegoSources> {
  const read = (name: string): Promise<string> => readFile(new URL(`../../../rego/${name}`, import.meta.url), 'utf8');
  const [reference, gateway] = await Promise.all([read('reference.rego'), read('gateway.rego')]);
  return { 'gateway.rego': gateway, 'reference.rego': reference };
}
