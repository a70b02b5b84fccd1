/** Reports about access name only those whom the gateway lets in, and say what is disabled. */
import test, { type ExecutionContext } from 'ava';
import { person, rest, startGateway } from '../../support/gateway.ts';
import { registration, startProvider } from '../../support/provider.ts';

interface Shown {
  readonly principal: { readonly enabled: boolean };
  readonly target: { readonly enabled: boolean };
  readonly effect: string;
}

async function scene(t: ExecutionContext) {
  const gateway = await startGateway(t);
  const { token } = await person(gateway, 'admin@example.com');
  const provider = await startProvider(t);
  const ask = async <T>(status: number, method: string, path: string, body?: unknown): Promise<T> =>
    (await gateway.rest<T>(status, method, path, { token, ...(body === undefined ? {} : { body }) })).body;
  const rules = [{ if_group: 'ops', role: 'operator' }];
  const registered = await ask<{ id: string }>(201, 'POST', '/api/providers', registration(provider, { rules }));
  const target = await ask<{ id: string }>(201, 'POST', '/api/targets', { name: 't', url: 'http://127.0.0.1:9/mcp' });
  const policy = { name: 'p', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await ask(201, 'POST', '/api/policies', policy);
  const access = await provider.token({ groups: ['ops'] });
  const me = () => rest<{ id: string }>(gateway.url, 'GET', '/api/auth/me', { token: access });
  const { id } = (await me()).body;
  const csv = async (): Promise<string> =>
    await (
      await fetch(`${gateway.url}/api/policies/access?format=csv`, { headers: { authorization: `Bearer ${token}` } })
    ).text();
  const question = { principal: { user: id }, target: 't' };
  return { ask, me, id, csv, question, provider: `/api/providers/${registered.id}`, target: `/api/targets/${target.id}` };
}

/** What each report says of the user of the provider. */
async function reported({ ask, id, csv, question }: Awaited<ReturnType<typeof scene>>) {
  const names = (rows: readonly { readonly subject_value: string | null }[]): boolean =>
    rows.some(({ subject_value }) => subject_value === id);
  const explained = await ask<Shown>(200, 'POST', '/api/policies/explain', question);
  const simulated = await ask<{ results: Shown[] }>(200, 'POST', '/api/policies/simulate', { files: {}, requests: [question] });
  const matrix = await ask<{ target_enabled: boolean; rows: { subject_value: string | null }[] }>(
    ...([200, 'GET', '/api/policies/matrix?target=t&rows=users'] as const),
  );
  return {
    access: names(await ask(200, 'GET', '/api/policies/access')),
    who: names(await ask(200, 'GET', `/api/policies/access?who=user:${id}`)),
    csv: (await csv()).includes(id),
    matrix: names(matrix.rows),
    explained: explained.principal.enabled,
    simulated: simulated.results[0]?.principal.enabled,
    targets: [matrix.target_enabled, explained.target.enabled, simulated.results[0]?.target.enabled],
  };
}

const all = (user: boolean, target: boolean) => ({
  ...{ access: user && target, who: user && target, csv: user && target },
  ...{ matrix: user, explained: user, simulated: user, targets: [target, target, target] },
});

test.serial('a user whose provider is disabled or deleted can use nothing, and no report says otherwise', async (t) => {
  const w = await scene(t);
  t.deepEqual([(await w.me()).status, await reported(w)], [200, all(true, true)]);
  await w.ask(200, 'PUT', w.provider, { enabled: false });
  t.deepEqual([(await w.me()).status, await reported(w)], [401, all(false, true)]);
  await w.ask(200, 'PUT', w.provider, { enabled: true });
  t.deepEqual([(await w.me()).status, await reported(w)], [200, all(true, true)]);
  await w.ask(204, 'DELETE', w.provider);
  t.deepEqual([(await w.me()).status, await reported(w)], [401, all(false, true)]);
});

test.serial('a disabled target is named as such wherever it is decided about', async (t) => {
  const w = await scene(t);
  await w.ask(200, 'PUT', w.target, { enabled: false });
  t.deepEqual(await reported(w), all(true, false));
});
