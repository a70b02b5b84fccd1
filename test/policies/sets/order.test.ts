/** Moving a policy in the order of evaluation, over REST. */
import test from 'ava';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { policyBody } from '../policies.ts';
import { file, type ProblemAnswer, policySets, type RevisionAnswer } from '../sets.ts';

interface Ordered {
  readonly position: number;
  readonly policy: { readonly id: string; readonly name: string; readonly priority: number };
}

eachEngine(test.serial, 'a policy moves in one revision, and only as its plan showed', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const { token } = await person(gateway, 'admin@example.com');
  const { apply, call, revision } = policySets(gateway, token);
  for (const name of ['a', 'b', 'c']) await call(201, 'POST', '', policyBody({ name, priority: 5 }));
  await call(201, 'POST', '', policyBody({ name: 'd', priority: 1, effect: 'deny' }));
  const order = async () => (await call<Ordered[]>(200, 'GET', '/order')).body;
  const names = async () => (await order()).map(({ policy }) => policy.name).join('');
  t.is(await names(), 'abcd');
  const d = (await order())[3]?.policy.id;
  const before = await revision();

  const plan = (
    await call<{ revision: number; verdict: string; changes: { name: string; flips: unknown[] }[] }>(200, 'POST', '/order/plan', {
      policy_id: d,
      position: 2,
    })
  ).body;
  t.is(plan.revision, before);
  t.deepEqual(plan.changes.map(({ name }) => name).sort(), ['a', 'd']);
  t.is(plan.verdict, 'equal', 'the deny still comes after an allow for the same requests');
  t.is((await call<{ verdict: string }>(200, 'POST', '/order/plan', { policy_id: d, position: 1 })).body.verdict, 'stricter');
  t.is(await names(), 'abcd', 'a plan changes nothing');

  await call(412, 'POST', '/order', { policy_id: d, position: 2, expected_revision: before - 1 });
  await call(200, 'POST', '/order', { policy_id: d, position: 2, expected_revision: before, reason: 'first' });
  t.is(await names(), 'adbc');
  t.is(await revision(), before + 1);
  const [made] = (await call<RevisionAnswer[]>(200, 'GET', '/history?limit=1')).body;
  t.like(made, { updated: 2, created: 0, deleted: 0, reason: 'first', override: false });
  await call(200, 'POST', '/order', { policy_id: d, position: 2 });
  t.is(await revision(), before + 1, 'nothing to move makes no revision');

  for (const wrong of [
    { position: 5 },
    { position: 0 },
    { position: 1.5 },
    { position: '1' },
    {},
    { position: 1, policy_id: 'x' },
    { position: 1, other: 1 },
  ]) {
    for (const path of ['/order', '/order/plan']) await call(400, 'POST', path, { policy_id: d, ...wrong });
  }
  for (const path of ['/order', '/order/plan'])
    await call(404, 'POST', path, { policy_id: '0190163d-8694-739b-aea5-966c26f8ad90', position: 1 });

  // Policies of files, and limits of their owner.
  await gateway.rest(201, 'PUT', '/api/owners/team', { token, body: { limits: { priority: { max: 60 } } } });
  await apply({ 'e.yaml': file({ name: 'e', priority: 2 }) }, { owner: 'team' });
  const e = (await order()).find(({ policy }) => policy.name === 'e')?.policy.id;
  const refused = (await call<ProblemAnswer>(409, 'POST', '/order', { policy_id: e, position: 1 })).body;
  t.is(refused.code, 'managed_by_files');
  await call(200, 'PUT', `/${d}`, { priority: 100 });
  t.is(
    (await call<ProblemAnswer>(409, 'POST', '/order', { policy_id: e, position: 1, override: true })).body.code,
    'outside_limits',
  );
  await call(200, 'POST', '/order', { policy_id: e, position: 2, override: true });
  t.is(await names(), 'deabc');
  t.like((await call<RevisionAnswer[]>(200, 'GET', '/history?limit=1')).body[0], { override: true });
});

test.serial('two moves at the same time give one order, and a right for one owner is not enough', async (t) => {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'admin@example.com');
  const { call } = policySets(gateway, token);
  for (const name of ['a', 'b', 'c', 'd']) await call(201, 'POST', '', policyBody({ name, priority: 5 }));
  const order = async () => (await call<Ordered[]>(200, 'GET', '/order')).body;
  const [a, , , d] = (await order()).map(({ policy }) => policy.id);
  await Promise.all([
    call(200, 'POST', '/order', { policy_id: a, position: 4 }),
    call(200, 'POST', '/order', { policy_id: d, position: 1 }),
  ]);
  t.is((await order()).map(({ policy }) => policy.name).join(''), 'dbca');

  const other = await person(gateway, 'other@example.com');
  for (const right of ['policies:manage', 'policies:plan']) {
    await gateway.rest(201, 'POST', '/api/rights', {
      token,
      body: { right, owner: 'team', subject_type: 'role', subject_value: 'user' },
    });
  }
  for (const path of ['/order', '/order/plan'])
    await gateway.rest(403, 'POST', `/api/policies${path}`, { token: other.token, body: { policy_id: a, position: 1 } });
});
