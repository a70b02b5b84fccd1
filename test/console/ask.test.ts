/** Operations of REST that a page asks for inside of the process. */
import { EventEmitter } from 'node:events';
import test from 'ava';
import { type Response, Router } from 'express';
import { AppError } from '../../src/base/errors.ts';
import { deferred } from '../../src/base/promises.ts';
import { lane } from '../../src/base/turns/lane.ts';
import { createAsk } from '../../src/console/ask.ts';
import { callerOf } from '../../src/http/caller.ts';
import { openContext } from '../../src/http/context.ts';

const facts = { issuer: 'i', sub: 's', email: 'e', groups: [], limits: null } as const;
const token = { token_id: 't', token_kind: 'browser', issued_at: null } as const;

/** The answer of a page for a user with this role. null: the page forgot to say who the user is. */
function pageOf(role: string | null): Response {
  const page = new EventEmitter() as unknown as Response;
  const principal = { ...facts, ...token, role: role ?? '', granted: { role, groups: [] } };
  const admission = { principal, snapshot: { rights: [] } } as never;
  openContext(page, { requestId: 'r', ...(role === null ? {} : { admission }) });
  return page;
}

test('an operation gets the user and the request of the page, and refuses users without the right', async (t) => {
  const status = Router();
  let asked = 0;
  status.get('/', (_req, res) => {
    asked++;
    const { principal, requestId, reason } = callerOf(res);
    res.setHeader('Link', '</api/status?cursor=x&limit=1>; rel="next"').json({ sub: principal.sub, requestId, reason });
  });
  const { ask } = createAsk([{ path: '/status', router: status }]);
  const answer = await ask(pageOf('admin'), 'GET', '/status');
  t.deepEqual(answer.body, { sub: 's', requestId: 'r', reason: null });
  t.is(answer.next?.get('cursor'), 'x');
  t.is(asked, 1);
  const code = async (page: Response, method: 'GET' | 'POST', path: string): Promise<string> =>
    (await t.throwsAsync<AppError>(ask(page, method, path), { instanceOf: AppError }))?.code ?? '';
  t.is(await code(pageOf('user'), 'GET', '/status'), 'forbidden');
  t.is(await code(pageOf(null), 'GET', '/status'), 'unauthenticated');
  t.is(await code(pageOf('admin'), 'POST', '/status'), 'not_found');
  t.is(await code(pageOf('admin'), 'GET', '/nothing'), 'not_found');
  t.is(asked, 1);
});

test('operations that a page asks for at once leave time for other requests between them', async (t) => {
  const status = Router();
  let turn = 0;
  const turns: number[] = [];
  status.get('/', (_req, res) => {
    turns.push(turn);
    // Longer than a slice.
    for (const end = performance.now() + 6; performance.now() < end; );
    res.json({});
  });
  const { ask } = createAsk([{ path: '/status', router: status }]);
  const page = pageOf('admin');
  let isOver = false;
  const count = (): void => {
    turn++;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  await Promise.all(Array.from({ length: 5 }, () => ask(page, 'GET', '/status')));
  isOver = true;
  t.is(new Set(turns).size, 5);
});

test('if the browser leaves, the operation learns it', async (t) => {
  const status = Router();
  const [began, left] = [deferred(), deferred()];
  status.get('/', (_req, res) => {
    res.once('close', () => left.resolve());
    began.resolve();
  });
  const page = pageOf('admin');
  void createAsk([{ path: '/status', router: status }]).ask(page, 'GET', '/status');
  await began.promise;
  page.emit('close');
  await t.notThrowsAsync(left.promise);
});

test('a long answer is read in the lane, and only once if the gateway keeps its bytes', async (t) => {
  const says = { items: Array.from({ length: 40_000 }, (_, at) => ({ at, text: `"${at}\n\u00e9"`, none: null, part: -0.5 })) };
  const bytes = Buffer.from(JSON.stringify(says));
  const status = Router();
  let isKept = true;
  status.get('/', (_req, res) => void (isKept ? res.end(bytes) : res.json(says)));
  const { ask } = createAsk([{ path: '/status', router: status }]);
  const run = lane.run;
  let long = 0;
  lane.run = (...given) => {
    long++;
    return run.apply(lane, given);
  };
  t.teardown(() => {
    lane.run = run;
  });
  const get = () => ask(pageOf('admin'), 'GET', '/status');
  const answers = await Promise.all([get(), get()]);
  t.deepEqual(answers[0]?.body, says);
  t.is(answers[0]?.body, answers[1]?.body);
  t.is(long, 1);
  isKept = false;
  t.deepEqual((await get()).body, says);
  t.is(long, 2);
});
