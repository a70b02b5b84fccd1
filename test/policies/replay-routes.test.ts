import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import express, { type ErrorRequestHandler } from 'express';
import { AppError, ERRORS } from '../../src/base/errors.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { openContext } from '../../src/http/context.ts';
import type { Moment } from '../../src/policies/sets/candidate-set.ts';
import { createLogReads } from '../../src/rest/policy-questions/log-reads.ts';
import { createReplayRoutes } from '../../src/rest/policy-questions/replay-routes.ts';
import type { Admission } from '../../src/state/admission.ts';
import { openTestDatabase } from '../support/database.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { until } from '../support/listener.ts';

const MOMENT: Moment = {
  position: { sequence: 0, nonce: '', revision: 0 },
  ...{ policies: [], stored: [], targets: [], changes: [] },
};

test.serial('a client that disconnects during the planning of a replay frees its slot', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const module = await loadPolicyModule();
  let planning = 0;
  let planned = (): void => {};
  const held = new Promise<void>((resolve) => {
    planned = resolve;
  });
  const moments = {
    now: async () => MOMENT,
    of: async () => {
      planning++;
      await held;
      return MOMENT;
    },
  };
  const engineOf = (policies: readonly Policy[], revision: number) => createEngine({ module, policies, revision });
  const database = await openTestDatabase(t, at);
  const refuse: ErrorRequestHandler = (error, _req, res, _next) => {
    res.status(error instanceof AppError ? ERRORS[error.code].status : 500).end();
  };
  const app = express()
    .use(express.json())
    .use((_req, res, next) => {
      openContext(res, { requestId: 'r', admission: { principal: { sub: 'admin' } } as Admission });
      next();
    })
    .use(createReplayRoutes({ database, module, moments, engineOf, logReads: createLogReads(), now: Date.now }))
    .use(refuse);
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  let gone = 0;
  server.on('request', (_req, res) => res.on('close', () => res.writableFinished || gone++));
  const ask = async (signal?: AbortSignal): Promise<number> => {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/replay`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{"from":"2026-01-01T00:00:00Z"}',
      ...(signal && { signal }),
    });
    await answer.text();
    return answer.status;
  };

  const leaving = new AbortController();
  const left = [ask(leaving.signal), ask(leaving.signal)].map((asked) => asked.catch((error: Error) => error.name));
  await until('both are planned', () => planning === 2);
  t.is(await ask(), 429);
  leaving.abort();
  t.deepEqual(await Promise.all(left), ['AbortError', 'AbortError']);
  await until('it is known that they are gone', () => gone === 2);
  planned();
  await until('their places are free', async () => (await ask()) === 200);
  t.deepEqual(await Promise.all([ask(), ask()]), [200, 200], 'both of them');
});
