/** Suggestions over a log that callers have filled with odd names, and that two versions of the gateway have written. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import express, { type ErrorRequestHandler } from 'express';
import type { DecisionRecord } from '../../../src/audit/records/records.ts';
import { AppError, ERRORS } from '../../../src/base/errors.ts';
import { loadPolicyModule } from '../../../src/engine/engine.ts';
import { createEngineCache } from '../../../src/engine/engines.ts';
import { openContext } from '../../../src/http/context.ts';
import { createHeavyWork } from '../../../src/policies/heavy/heavy.ts';
import type { Moments } from '../../../src/policies/heavy/moments.ts';
import type { Moment } from '../../../src/policies/sets/candidate-set.ts';
import { createStoredSet } from '../../../src/policies/stored-set.ts';
import { createLogReads } from '../../../src/rest/policy-questions/log-reads.ts';
import { createSuggestRoutes } from '../../../src/rest/policy-questions/suggest-routes.ts';
import type { Admission } from '../../../src/state/admission.ts';
import { createFoundUsers } from '../../../src/state/found-users.ts';
import { legacyWriter } from '../../audit/legacy-writer.ts';
import { decision, quietWriter } from '../../audit/records.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { policy } from '../policies.ts';

const module = await loadPolicyModule();
const TARGET = '00000000-0000-7000-8000-00000000000a';
const user = (n: number): string => `00000000-0000-7000-8000-${String(n).padStart(12, '0')}`;
const subjects = [{ id: 's', subject_type: 'role', subject_value: 'developer' }] as const;
const moment: Moment = {
  position: { sequence: 1, revision: 1 } as Moment['position'],
  policies: [policy('11111111-1111-7111-8111-111111111111', { resource_type: 'prompt', subjects })],
  stored: [policy('11111111-1111-7111-8111-111111111111', { resource_type: 'prompt', subjects })],
  targets: [{ id: TARGET, name: 'everything', enabled: true }],
  changes: [],
};

interface Answer {
  readonly detail?: string;
  readonly decisions: number;
  readonly unlisted: number;
  readonly files: Readonly<Record<string, string>>;
  readonly suggested: readonly { readonly names: readonly { readonly resource_name: string; readonly count: number }[] }[];
  readonly left_out: readonly { readonly reason: string; readonly resource_name: string }[];
}

interface Options {
  readonly maxDecisions?: number;
  /** Runs when a suggestion is made, before it is checked with the log. */
  readonly onMade?: () => Promise<void>;
}

async function routes(t: ExecutionContext, at: Parameters<typeof openTestDatabase>[1], { onMade, ...limits }: Options = {}) {
  const database = await openTestDatabase(t, at);
  const work = createHeavyWork({
    database,
    targets: async () => moment.targets,
    findDraft: async () => null,
    readStoredSet: createStoredSet(),
    foundUsers: createFoundUsers(),
  });
  t.teardown(() => work.close());
  const heavy: typeof work = {
    ...work,
    async suggest(...given) {
      const made = await work.suggest(...given);
      await onMade?.();
      return made;
    },
  };
  const refuse: ErrorRequestHandler = (error, _req, res, _next) => {
    res.status(error instanceof AppError ? ERRORS[error.code].status : 500).json({ detail: String(error.message) });
  };
  const parts = {
    ...{ database, module, heavy, engineOf: createEngineCache(module), logReads: createLogReads(), now: Date.now },
    foundUsers: createFoundUsers(),
    moments: { now: async () => moment } as unknown as Moments,
    ...limits,
  };
  const app = express()
    .use(express.json())
    .use((_req, res, next) => {
      openContext(res, { requestId: 'r', admission: { principal: { sub: 'admin' } } as Admission });
      next();
    })
    .use(createSuggestRoutes(parts))
    .use(refuse);
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const ask = async (body: object): Promise<{ status: number; body: Answer }> => {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/suggest`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ from: '2020-01-01T00:00:00Z', ...body }),
    });
    return { status: answer.status, body: (await answer.json()) as Answer };
  };
  return { database, ask };
}

const denied = (over: Partial<DecisionRecord>): DecisionRecord => decision({ target_id: TARGET, user_id: user(1), ...over });

eachEngine(test.serial, 'a caller who invents names neither fills the suggestion nor leaves its file', async (t, at) => {
  const { database, ask } = await routes(t, at);
  const [older, newer] = [legacyWriter(database), quietWriter(database)];
  // By turns of a gateway before and after the upgrade.
  const write = (record: DecisionRecord, n: number): Promise<void> => (n % 2 === 0 ? older : newer).decision(record);
  const odd = ["x'\n", '# x', '^.*$', 'a\neffect: deny', '{{', '&a *a', '\u202e', '---'];
  const written = Array.from({ length: 1_200 }, (_, n) => denied({ user_id: user(666), resource_name: `${odd[n % 8]} ${n}` }));
  await Promise.all(written.map(write));
  for (let n = 0; n < 10; n++) await write(denied({ user_id: user(1 + (n % 2)), resource_name: 'echo' }), n);
  for (const writer of [older, newer]) await writer.flush();
  await newer.close();

  const { status, body } = await ask({ denied: {}, for: 'role' });
  t.is(status, 200, body.detail);
  t.is(body.decisions, 1_210);
  t.is(body.unlisted, 200, 'one user has at most 1000 entries');
  const [first] = body.suggested.flatMap(({ names }) => names).sort((a, b) => b.count - a.count);
  t.like(first, { resource_name: 'echo', count: 10 });
  // No request can have a control character in its name.
  t.true(body.left_out.length > 100);
  for (const { reason, resource_name } of body.left_out)
    t.deepEqual([reason, resource_name.includes('\n')], ['inexpressible', true]);
  for (const text of Object.values(body.files)) {
    t.regex(
      text,
      /^name: 'everything: tools for role developer'\ndescription: [^\n]+\ntarget: everything\nresource_type: tool\nresource_pattern: /,
    );
    t.regex(text, /\neffect: allow\npriority: 0\nsubjects:\n {2}- role: developer\n$/);
  }
  const few = (await ask({ denied: {}, for: 'role', min_count: 2 })).body;
  t.deepEqual(Object.values(few.files).length, 1);
  t.regex(Object.values(few.files).join(), /resource_pattern: \^echo\$\n/);
});

test.serial('a range with too many decisions is refused', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const { database, ask } = await routes(t, at, { maxDecisions: 5 });
  const writer = quietWriter(database);
  for (let n = 0; n < 6; n++) await writer.decision(denied({ resource_name: `t${n}` }));
  await writer.close();
  const { status, body } = await ask({ denied: {} });
  t.is(status, 400);
  t.regex(body.detail ?? '', /from: leads to more than 5 decisions/);
  t.is((await ask({ least_privilege: 'developer' })).status, 400);
});

test.serial('a suggestion for a role is refused if it would take away what the log has by then', async (t) => {
  const at = await createSqlite();
  t.teardown(() => at.drop());
  const used = (resource_name: string): DecisionRecord =>
    denied({ resource_type: 'prompt', resource_name, effect: 'allow', user_role: 'developer' });
  let late: DecisionRecord | null = used('late');
  const { database, ask } = await routes(t, at, {
    async onMade() {
      if (late !== null) await writer.decision(late);
      late = null;
    },
  });
  const writer = quietWriter(database);
  await writer.decision(used('early'));
  const first = await ask({ least_privilege: 'developer' });
  t.deepEqual(
    [first.status, first.body.detail],
    [503, 'Requests were recorded while the suggestion was made. Repeat the request.'],
  );
  const { status, body } = await ask({ least_privilege: 'developer' });
  t.is(status, 200, body.detail);
  t.deepEqual(body.suggested.flatMap(({ names }) => names.map(({ resource_name }) => resource_name)).sort(), ['early', 'late']);
  await writer.close();
});
