/** `/api/policies/drafts`: reports about a draft while an administrator saves it again. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import express from 'express';
import { openContext } from '../../src/http/context.ts';
import { draftStore, shadowStore } from '../../src/policies/drafts/draft-store.ts';
import { newShadow } from '../../src/policies/drafts/shadow.ts';
import type { Moments } from '../../src/policies/heavy/moments.ts';
import type { Draft } from '../../src/policies/sets/draft.ts';
import { createDraftRoutes } from '../../src/rest/policy-drafts/routes.ts';
import type { Admission } from '../../src/state/admission.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

eachEngine(test.serial, 'the report of a shadow is about the draft that its counts are about', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const draft = (text: string): Draft => ({
    ...{ name: 'd', owner: 'w', prune: false, adopt: false, hash: text, files: { 'a.yaml': text }, tests: {} },
    ...{ author: { id: 'a', email: 'a@example.com' }, created_at: 1, updated_at: 1 },
  });
  await draftStore(database.knex).put(draft('old'));
  await shadowStore(database.knex).begin(await database.knex.transaction((trx) => newShadow(trx, 'd', 1)), 'a');
  const asked: unknown[] = [];
  const moments: Pick<Moments, 'of'> = {
    async of(source) {
      await draftStore(database.knex).put(draft('new'));
      asked.push(source);
      return { position: { sequence: 1, nonce: '', revision: 1 }, policies: [], stored: [], targets: [], changes: [] };
    },
  };
  const app = express()
    .use((_req, res, next) => {
      openContext(res, { requestId: 'r', admission: { principal: { sub: 'admin' } } as Admission });
      next();
    })
    .use(createDraftRoutes({ database, drafts: {} as never, moments: moments as Moments }));
  const server = createServer(app).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/drafts/d/shadow`);
  t.is(answer.status, 200);
  t.deepEqual(asked, [{ files: { 'a.yaml': 'old' }, owner: 'w', prune: false, adopt: false }]);
});
