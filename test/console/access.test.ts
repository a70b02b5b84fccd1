/** The access matrix, and what everybody sees of their own access. */
import test from 'ava';
import fc from 'fast-check';
import type { Policy } from '../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import { browse, signIn } from '../browser/browser.ts';
import { inProcess, policies as policiesCommand } from '../cli/cli.ts';
import { decide, decideTarget } from '../engine/oracle.ts';
import { apiToken, type Person, person, type TestGateway } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';
import { HOSTILE, scene } from './scene.ts';

interface Cell {
  readonly effect: string;
  readonly policy: { readonly id: string; readonly name: string } | null;
}
interface Matrix {
  readonly revision: number;
  readonly names: readonly { readonly resource_type: string | null; readonly resource_name: string | null }[];
  readonly names_count: number;
  readonly rows: readonly {
    readonly subject_type: string;
    readonly subject_value: string | null;
    readonly email: string | null;
    readonly cells: readonly Cell[];
    readonly before: readonly Cell[] | null;
  }[];
}
interface Named {
  readonly resource_type: string;
  readonly resource_name: string;
}

const matches = (pattern: string, name: string): boolean => new RegExp(pattern, 'u').test(name);

const subject = (users: readonly Person[]) =>
  fc.constantFrom(
    { subject_type: 'everyone', subject_value: null },
    { subject_type: 'role', subject_value: 'user' },
    { subject_type: 'role', subject_value: 'Dev' },
    { subject_type: 'group', subject_value: 'dev' },
    { subject_type: 'group', subject_value: HOSTILE },
    ...users.map(({ id }) => ({ subject_type: 'user', subject_value: id })),
  );

const policyOf = (users: readonly Person[], targets: readonly string[]) =>
  fc.record({
    name: fc.constantFrom('a', 'b', HOSTILE),
    enabled: fc.boolean(),
    effect: fc.constantFrom('allow', 'deny'),
    priority: fc.integer({ min: 0, max: 3 }),
    target_id: fc.constantFrom(null, ...targets),
    resource_type: fc.constantFrom('tool', 'resource', 'prompt', 'all'),
    resource_pattern: fc.constantFrom(null, '^echo$', 'get-', 'e', '^get-(sum|env)$', 'x'),
    subjects: fc.uniqueArray(subject(users), { maxLength: 3, selector: (one) => JSON.stringify(one) }),
  });

/** The text of each cell of the table, by row. */
const cellsOf = (page: string): string[][] =>
  [...page.matchAll(/<tr><th scope="row">(.*?)<\/tr>/gs)].map(([, row = '']) =>
    [...row.matchAll(/<td class="mx (\w\w)( changed)?">/g)].map(([, sign = '', changed = '']) => sign + changed),
  );

test.serial(
  'the matrix and what somebody can use equal the oracle, explain, the command line and the pages, for random sets',
  async (t) => {
    const { gateway, admin, user, target } = await world(t);
    const { token } = admin;
    const other = await person(gateway, 'other@example.com');
    await gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token, body: { groups: ['dev', HOSTILE] } });
    await gateway.rest(200, 'PUT', `/api/users/${other.id}`, { token, body: { role: 'Dev', groups: ['dev'] } });
    await gateway.rest(200, 'POST', `/api/targets/${target.id}/check`, { token, body: {} });
    const facts = new Map<string, PrincipalFacts>([
      [admin.id, { sub: admin.id, role: 'admin', groups: [] }],
      [user.id, { sub: user.id, role: 'user', groups: ['dev', HOSTILE] }],
      [other.id, { sub: other.id, role: 'Dev', groups: ['dev'] }],
    ]);
    const console_ = browse(gateway);
    await signIn(console_, admin);
    const get = async <T>(path: string): Promise<T> => (await gateway.rest<T>(200, 'GET', `/api${path}`, { token })).body;

    const sets = fc.sample(fc.array(policyOf([user, other], [target.id]), { minLength: 1, maxLength: 6 }), {
      numRuns: 8,
      seed: 7,
    });
    let compared = 0;
    for (const set of sets) {
      const before = (await get<Policy[]>('/policies')).map((policy) => policy);
      const earlier = (await gateway.rest(200, 'GET', '/api/policies', { token })).headers.get('portcullis-revision');
      for (const { id } of before) await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token });
      for (const body of set) await gateway.rest(201, 'POST', '/api/policies', { token, body });
      const policies = await get<Policy[]>('/policies');
      const expected = (its: readonly Policy[], who: PrincipalFacts, object: Matrix['names'][number]) =>
        object.resource_name === null
          ? decideTarget(its, who, target.id)
          : decide(its, who, target.id, object as NamedObject, matches);
      const answered = ({ effect, policy }: Cell) => ({ effect, policyId: policy?.id ?? null });
      for (const rows of ['named', 'users']) {
        const query = `target=everything&rows=${rows}&compare=${earlier}`;
        const matrix = await get<Matrix>(`/policies/matrix?${query}`);
        t.true(matrix.names.length > 5);
        t.is(matrix.names.length, matrix.names_count);
        for (const row of matrix.rows) {
          const who =
            row.subject_type === 'user'
              ? (facts.get(row.subject_value ?? '') ?? { sub: '', role: '', groups: [] })
              : {
                  sub: '',
                  role: row.subject_type === 'role' ? (row.subject_value ?? '') : '',
                  groups: row.subject_type === 'group' ? [row.subject_value ?? ''] : [],
                };
          t.deepEqual(
            row.cells.map(answered),
            matrix.names.map((name) => expected(policies, who, name)),
          );
          t.deepEqual(
            row.before?.map(answered),
            matrix.names.map((name) => expected(before, who, name)),
          );
          compared += row.cells.length;
        }
        const page = (await console_.get(`/console/access?${query}`)).text;
        t.notRegex(page, /<img|<script>/);
        t.deepEqual(
          cellsOf(page),
          matrix.rows.map(({ cells, before: was }) =>
            cells.map(({ effect, policy }, at) => {
              const sign = effect === 'allow' ? 'al' : policy === null ? 'no' : 'de';
              return was?.[at]?.effect === effect ? sign : `${sign} changed`;
            }),
          ),
        );
      }
      // One cell by explain, and the row of a user by the list of access, the page and the command line.
      const matrix = await get<Matrix>('/policies/matrix?target=everything&rows=users');
      const row = matrix.rows.find(({ subject_value }) => subject_value === other.id);
      for (const [at, { resource_type, resource_name }] of matrix.names.entries()) {
        if (at % 5 !== 0) continue;
        const object = resource_type === null ? {} : { resource_type, resource_name };
        const body = { principal: { user: other.email }, target: 'everything', ...object };
        const { body: why } = await gateway.rest<Cell>(200, 'POST', '/api/policies/explain', { token, body });
        t.deepEqual([why.effect, why.policy?.id ?? null], [row?.cells[at]?.effect, row?.cells[at]?.policy?.id ?? null]);
      }
      const usesTarget = row?.cells[0]?.effect === 'allow';
      const said = await inProcess({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, (terminal) =>
        policiesCommand(['what-can', other.email], terminal),
      );
      t.is(said.code, 0, said.err);
      t.is(/^everything {2}by/m.test(said.out), usesTarget, said.out);
    }
    t.true(compared > 300, `${compared} cells`);
  },
);

test.serial('the matrix refuses what it cannot show, and gives at most 50 names', async (t) => {
  const { gateway, admin, user } = await scene(t);
  const { token } = admin;
  for (const query of [
    '',
    'target=nowhere',
    'target=everything&rows=x',
    'target=everything&limit=101',
    'target=everything&skip=-1',
  ])
    await gateway.rest(400, 'GET', `/api/policies/matrix?${query}`, { token });
  await gateway.rest(404, 'GET', '/api/policies/matrix?target=everything&compare=999999', { token });
  await gateway.rest(403, 'GET', '/api/policies/matrix?target=everything', { token: user.token });
  const first = await gateway.rest<Matrix>(200, 'GET', '/api/policies/matrix?target=everything&limit=1', { token });
  t.is(first.body.rows.length, 1);
  const link = /<([^>]*)>/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
  const second = await gateway.rest<Matrix>(200, 'GET', link, { token });
  t.notDeepEqual(second.body.rows, first.body.rows);
  const skipped = await gateway.rest<Matrix>(200, 'GET', '/api/policies/matrix?target=everything&skip=1', { token });
  t.deepEqual(skipped.body.names, first.body.names.slice(1));
});

/** Lists the tools of the target once, so that the gateway has seen them. */
async function list(t: Parameters<typeof modernClient>[0], gateway: TestGateway, token: string): Promise<string[]> {
  const client = await modernClient(t, `${gateway.url}/mcp/everything`, token);
  return (await client.listTools()).tools.map(({ name }) => name).sort();
}

test.serial('users see exactly the tools that they may call, and no target or tool that policies do not allow', async (t) => {
  const { gateway, admin, user, token, browser } = await scene(t);
  const none = await person(gateway, 'none@example.com');
  const { body: secret } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token: admin.token,
    body: { name: 'secret', transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' },
  });
  await gateway.rest(201, 'POST', '/api/policies', {
    token: admin.token,
    body: {
      ...{ name: 'Administrators', resource_type: 'all', effect: 'allow', priority: 2_000 },
      subjects: [{ subject_type: 'role', subject_value: 'admin' }],
    },
  });
  await gateway.rest(201, 'POST', '/api/policies', {
    token: admin.token,
    body: {
      ...{ name: 'Nobody uses secret', target_id: secret.id, resource_type: 'all', effect: 'deny', priority: 3_000 },
      subjects: [{ subject_type: 'everyone' }],
    },
  });
  const all = await list(t, gateway, (await apiToken(gateway, admin)).token);
  t.true(all.includes('get-env'));
  const own = async (who: string, at = 'everything', status = 200) =>
    (await gateway.rest<{ names: Named[] }>(status, 'GET', `/api/auth/access/${at}`, { token: who })).body;
  const listed = await list(t, gateway, token);
  t.deepEqual(
    (await own(user.token)).names
      .filter(({ resource_type }) => resource_type === 'tool')
      .map(({ resource_name }) => resource_name),
    listed,
  );
  t.deepEqual(
    (await own(admin.token)).names.map(({ resource_name }) => resource_name),
    all,
  );
  t.deepEqual(
    (await gateway.rest<{ target: string }[]>(200, 'GET', '/api/auth/access', { token: user.token })).body.map(
      ({ target }) => target,
    ),
    ['everything'],
  );

  // No oracle: a target without access answers like one that does not exist.
  const [hidden, missing] = await Promise.all(['secret', 'nowhere'].map((name) => own(user.token, name, 404)));
  const told = (body: object | undefined, name: string) => JSON.stringify({ ...body, request_id: '' }).replaceAll(name, 'x');
  t.is(told(hidden, 'secret'), told(missing, 'nowhere'));
  const page = await browser(user);
  const mine = (await page.get('/console/mine')).text;
  t.regex(mine, /everything/);
  t.notRegex(mine, /secret</);
  const tools = (await page.get('/console/mine/everything')).text;
  for (const name of all) t.is(tools.includes(`<code>${name}</code>`), listed.includes(name), name);
  t.is((await page.get('/console/mine/secret')).status, 404);
  t.is((await page.get('/console/mine/NO')).status, 404);

  // A policy that ends takes the target away with the next page.
  const empty = await browser(none);
  const { body: policies } = await gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/policies', {
    token: admin.token,
  });
  for (const { id, name } of policies)
    if (!['No environment', 'Administrators'].includes(name))
      await gateway.rest(204, 'DELETE', `/api/policies/${id}?override=true`, { token: admin.token });
  t.regex((await empty.get('/console/mine')).text, /No policy lets you use a target/);
  t.deepEqual((await gateway.rest(200, 'GET', '/api/auth/access', { token: user.token })).body, []);
});

test.serial('the connect page has the texts of the command line, for the targets that the user may use', async (t) => {
  const { gateway, user, browser } = await scene(t);
  const page = await browser(user);
  const shown = (text: string): string => text.replaceAll(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)));
  const { text } = await page.get('/console/connect?target=everything');
  const { CLIENTS } = await import('../../src/clients/client-files.ts');
  for (const { id, title } of CLIENTS) {
    const said = await inProcess({ PORTCULLIS_URL: gateway.url, HOME: '/nowhere' }, async (terminal) => {
      const { runWords } = await import('../../src/cli/entries.ts');
      return (await runWords(['connect', id, '--target', 'everything'], terminal)) ?? -1;
    });
    const [config = ''] = said.out.split('\nThis belongs in ');
    t.true(config.length > 20, said.err);
    t.true(shown(text).includes(config), title);
  }
  t.true(shown((await page.get('/console/connect?target=secret')).text).includes(`${gateway.url}/mcp"`));
});
