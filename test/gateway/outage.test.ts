import test, { type ExecutionContext } from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { readConfig } from '../../src/config/config.ts';
import { createGateway } from '../../src/gateway.ts';
import { cuttable } from '../support/cuttable.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { world } from '../support/world.ts';

async function until(t: ExecutionContext, what: string, holds: () => Promise<boolean>): Promise<void> {
  for (let tried = 0; tried < 500; tried++) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  t.fail(`never: ${what}`);
}

test.serial('a start without a usable database fails with a clear message', async (t) => {
  const error = await t.throwsAsync(
    createGateway(
      readConfig({ DATABASE_URL: 'sqlite:/dev/null/portcullis.db', MASTER_KEY: Buffer.alloc(32).toString('base64') }),
    ),
    {
      instanceOf: AppError,
    },
  );
  t.is(error.code, 'unavailable');
  t.regex(error.message, /\/dev\/null\/portcullis\.db cannot be opened/);
});

for (const trouble of ['cut', 'freeze'] as const) {
  eachServer(
    test.serial,
    `database ${trouble}: requests are refused in limited time, nothing is forwarded, and the gateway recovers without a restart`,
    async (t, at) => {
      const way = await cuttable(t, at.url);
      const w = await world(t, way.url);
      await w.allow({ name: 'all' });
      const session = await openSession(w.mcp, w.token);
      const echo = () => post(w.mcp, w.token, call('echo', { message: 'x' }), { 'mcp-session-id': session });
      t.truthy((await echo()).message?.result);
      const forwarded = w.target.recorder.objects().length;

      way[trouble]();
      const started = performance.now();
      const refused = await echo();
      t.is(refused.status, 503);
      t.truthy(refused.headers.get('retry-after'));
      t.is(refused.message?.result, undefined);
      const { body } = await w.gateway.rest<{ code: string }>(503, 'GET', '/api/policies', { token: w.admin.token });
      t.is(body.code, 'unavailable');
      await w.gateway.rest(503, 'GET', '/health/ready');
      await w.gateway.rest(200, 'GET', '/health/live');
      t.true(performance.now() - started < 30_000);
      t.is(w.target.recorder.objects().length, forwarded, 'nothing was forwarded');

      way.mend();
      await until(t, 'the gateway recovers', async () => (await echo()).status === 200);
      t.is(w.target.recorder.objects().length, forwarded + 1);
      await until(t, 'it says so', async () => (await rest(w.gateway.url, 'GET', '/health/ready')).status === 200);
    },
  );
}
