/** The access matrix, and what everybody sees of their own access. */
import { createHash, randomUUID } from 'node:crypto';
import { gzipSync } from 'node:zlib';
import test from 'ava';
import fc from 'fast-check';
import { matrixSection } from '../../src/console/people/access.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import { browse, signIn } from '../browser/browser.ts';
import { inProcess, policies as policiesCommand } from '../cli/cli.ts';
import { decide, decideTarget } from '../engine/oracle.ts';
import { apiToken, person, rest, type TestGateway } from '../support/gateway.ts';
import { modernClient, post } from '../support/mcp.ts';
import { registration, startProvider } from '../support/provider.ts';
import { world } from '../support/world.ts';
import { matches, policyOf, SETS } from './random-sets.ts';
import { HOSTILE, scene } from './scene.ts';

interface Cell {
  readonly effect: string;
  readonly policy: { readonly id: string; readonly name: string } | null;
}
interface Matrix {
  readonly revision: number;
  readonly names: readonly { readonly resource_type: string | null; readonly resource_name: string | null }[];
  readonly names_count: number;
  readonly searched: { readonly rows: number; readonly names: number } | null;
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

const shown = (text: string): string => text.replaceAll(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)));

/** The text of each cell of the table, by row. */
const cellsOf = (page: string): string[][] =>
  [...page.matchAll(/<tr><th scope="row">(.*?)<\/tr>/gs)].map(([, row = '']) =>
    [...row.matchAll(/<td class="mx (\w\w)( changed)?"><a /g)].map(([, sign = '', changed = '']) => sign + changed),
  );

test.serial(
  'the matrix and what somebody can use equal the oracle, explain, the command line and the pages, for random sets',
  async (t) => {
    t.timeout(110_000);
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
      numRuns: SETS,
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
        // Cells lead to the reason of the same decision.
        const links = [...page.matchAll(/<td class="mx \w\w(?: changed)?"><a href="([^"]*)"/g)].map(([, href = '']) =>
          shown(href),
        );
        const answers = matrix.rows.flatMap(({ cells }) => cells);
        t.is(links.length, answers.length);
        for (const [at, href] of links.entries()) {
          if (at % 71 !== 7) continue;
          const why = await console_.get(href);
          const { effect, policy } = answers[at] ?? { effect: '', policy: null };
          t.is(why.status, 200, href);
          t.notRegex(why.text, /<img|<script>/);
          const [, mark, decider] =
            /<li class="stop"><span class="fx (\w+)">.*?<\/span> (?:<a href="\/console\/policies\/([0-9a-f-]+)")?/s.exec(
              why.text,
            ) ?? [];
          t.deepEqual([mark, decider], [policy === null ? 'none' : effect, policy?.id], href);
        }
        // Only what differs: the cells of the rows and columns with a difference.
        const part = cellsOf((await console_.get(`/console/access?${query}&changed=yes`)).text);
        const all = cellsOf(page);
        const rowsLeft = all.filter((row) => row.some((cell) => cell.endsWith('changed')));
        const columnsLeft = (row: string[]) => row.filter((_, at) => rowsLeft.some((other) => other[at]?.endsWith('changed')));
        t.deepEqual(part, rowsLeft.map(columnsLeft));
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
    t.true(compared > 1_200, `${compared} cells`);
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

test.serial('only what differs covers the whole matrix, and an answer searches a bounded part of it', async (t) => {
  t.timeout(110_000);
  const { gateway, admin, target, mcp } = await world(t);
  const { token } = admin;
  // The log knows 60 names, and policies name 240 roles.
  for (let at = 0; at < 60; at++) {
    const message = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: `tool-${10 + at}`, arguments: {} } };
    await post(mcp, token, message, { 'mcp-session-id': 'none' });
  }
  const roles = Array.from({ length: 240 }, (_, at) => ({ subject_type: 'role', subject_value: `role-${100 + at}` }));
  const policy = (name: string, pattern: string, subjects: readonly object[]) => ({
    ...{ name, target_id: target.id, resource_type: 'tool', resource_pattern: pattern, effect: 'allow', priority: 1, subjects },
  });
  const make = (body: object) => gateway.rest(201, 'POST', '/api/policies', { token, body });
  for (let at = 0; at < roles.length; at += 60) await make(policy('Same', '^nothing$', roles.slice(at, at + 60)));
  const { headers } = await gateway.rest(200, 'GET', '/api/policies', { token });
  const earlier = headers.get('portcullis-revision');
  await make(policy('Last', '^tool-(69|10)$', roles.slice(239)));
  await make(policy('Some', '^tool-68$', roles.slice(3, 5)));

  const pagesOf = async (query: string): Promise<Matrix[]> => {
    const pages: Matrix[] = [];
    for (
      let path: string | undefined = `/api/policies/matrix?target=everything&compare=${earlier}&${query}`;
      path !== undefined;
    ) {
      const { body, headers: its }: { body: Matrix; headers: Headers } = await gateway.rest<Matrix>(200, 'GET', path, { token });
      pages.push(body);
      path = /<([^>]*)>/.exec(its.get('link') ?? '')?.[1];
    }
    return pages;
  };
  /** The cells that became different, as `role name effect`. */
  const differing = (pages: readonly Matrix[]): string[] =>
    pages.flatMap(({ rows, names }) =>
      rows.flatMap(({ subject_value, cells, before }) =>
        cells.flatMap(({ effect }, at) =>
          before?.[at]?.effect === effect ? [] : [`${subject_value} ${names[at]?.resource_name} ${effect}`],
        ),
      ),
    );
  const whole = [...(await pagesOf('')), ...(await pagesOf('skip=50'))];
  const parts = await pagesOf('changed=yes');
  t.is(differing(whole).length, 4);
  t.deepEqual(differing(parts).sort(), differing(whole).sort());
  t.deepEqual(
    parts.map(({ searched, rows, names_count }) => [searched, rows.length, names_count]),
    [
      [{ rows: 164, names: 61 }, 2, 1],
      [{ rows: 77, names: 61 }, 1, 2],
    ],
  );
  const small = await pagesOf('changed=yes&limit=1');
  t.deepEqual(differing(small), differing(parts));
  t.deepEqual(
    small.map(({ searched, rows }) => [searched?.rows, rows.length]),
    [
      [5, 1],
      [164, 1],
      [72, 1],
    ],
  );
  t.deepEqual((await pagesOf('changed=yes&skip=1'))[1]?.names, parts[1]?.names.slice(1));
  for (const query of ['changed=yes', `changed=x&compare=${earlier}`])
    await gateway.rest(400, 'GET', `/api/policies/matrix?target=everything&${query}`, { token });

  const console_ = browse(gateway);
  await signIn(console_, admin);
  const first = (await console_.get(`/console/access?target=everything&compare=${earlier}&changed=yes`)).text;
  t.regex(first, /2 of 164 rows and 1 of 61 names differ\. There are more rows: one page searches only a part of them\./);
  const [, next = ''] = /href="([^"]*)"[^>]*>Search the next rows/.exec(first) ?? [];
  const second = (await console_.get(shown(next))).text;
  t.regex(second, /1 of 77 rows and 2 of 61 names differ\.<\/p>/);
  t.is(cellsOf(second).length, 1);
  t.regex(second, /role-339/);
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
  const partly = async (query: string, status = 200) =>
    (
      await gateway.rest<{ names: Named[]; more: boolean }>(status, 'GET', `/api/auth/access/everything?${query}`, {
        token: user.token,
      })
    ).body;
  const { names } = await own(user.token);
  t.deepEqual(await partly('skip=1&limit=2'), { ...(await own(user.token)), names: names.slice(1, 3), more: names.length > 3 });
  t.like(await partly(`limit=${names.length}`), { names, more: false });
  t.like(await partly(`limit=${names.length - 1}`), { names: names.slice(0, -1), more: true });
  t.like(await partly('skip=10000'), { names: [], more: false });
  await partly('limit=-1', 400);
  await partly('skip=x', 400);
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

test.serial('the reason of a cell says who, and refuses what it cannot read', async (t) => {
  const { admin, user, browser } = await scene(t);
  const console_ = await browser(admin);
  const why = (query: Record<string, string>) => console_.get(`/console/access/why?${new URLSearchParams(query)}`);
  const object = { target: 'everything', resource_type: 'tool', resource_name: 'get-sum' };
  t.regex((await why({ ...object, who: `group:${HOSTILE}` })).text, /class="fx allow".*It matches, so it decides/s);
  t.regex((await why({ ...object, who: 'everyone' })).text, /No policy matches/);
  t.regex((await why({ ...object, who: `user:${user.id}` })).text, /May user@example\.com use/);
  t.regex((await why({ target: 'everything', who: 'everyone' })).text, /use the target\?/);
  const ambiguous = { target: 'everything', resource_type: 'resource', resource_name: 'file:///a/../b' };
  t.regex((await why({ ...ambiguous, who: 'everyone' })).text, /The URI is ambiguous/);
  for (const query of [
    { ...object, who: 'x' },
    { ...object, who: 'user:nobody' },
    { ...object, who: 'everyone', target: 'nowhere' },
    {},
  ]) {
    const page = await why(query as Record<string, string>);
    t.is(page.status, 400, JSON.stringify(query));
    t.notRegex(page.text, /<img|<script>/);
  }
  t.is((await (await browser(user)).get('/console/access/why?who=everyone&target=everything')).status, 403);
});

test.serial('the pages about access say what is disabled', async (t) => {
  const { gateway, admin, user, target, browser } = await scene(t);
  const { token } = admin;
  const console_ = await browser(admin);
  const why = `/console/access/why?${new URLSearchParams({ who: `user:${user.id}`, target: 'everything' })}`;
  const [matrix, page] = ['/console/access?target=everything', `/console/users/${user.id}`];
  const disabled = async () => {
    const texts = await Promise.all([why, matrix, page].map(async (path) => (await console_.get(path)).text));
    return texts.map((text) => [...text.matchAll(/The (user|target|provider)[^.]* is disabled/g)].map(([, what]) => what).join());
  };
  t.deepEqual(await disabled(), ['', '', '']);
  await gateway.rest(200, 'PUT', `/api/targets/${target.id}`, { token, body: { enabled: false } });
  t.deepEqual(await disabled(), ['target', 'target', '']);
  await gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token, body: { enabled: false } });
  t.deepEqual(await disabled(), ['user,target', 'target', 'user']);

  const provider = await startProvider(t);
  const registered = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', { token, body: registration(provider) });
  const theirs = await rest<{ id: string }>(gateway.url, 'GET', '/api/auth/me', { token: await provider.token() });
  const cut = async (): Promise<boolean> =>
    /The provider of the user is disabled/.test((await console_.get(`/console/users/${theirs.body.id}`)).text);
  t.false(await cut());
  await gateway.rest(200, 'PUT', `/api/providers/${registered.body.id}`, { token, body: { enabled: false } });
  t.true(await cut());
});

test('a page of 100 rows and 50 names is small enough', async (t) => {
  const names = Array.from({ length: 50 }, (_, at) => ({
    resource_type: 'tool',
    resource_name: `get-${createHash('md5').update(`${at}`).digest('hex').slice(0, 20)}`,
  }));
  const policies = Array.from({ length: 30 }, (_, at) => ({ id: `id-${at}`, name: `Policy ${at}` }));
  const cellAt = (row: number, at: number) => {
    const [byte = 0] = createHash('md5').update(`${row} ${at}`).digest();
    return {
      effect: byte % 3 === 0 ? ('allow' as const) : ('deny' as const),
      policy: byte % 3 === 2 ? null : (policies[byte % 30] ?? null),
    };
  };
  const rows = Array.from({ length: 100 }, (_, row) => ({
    ...{ subject_type: 'user' as const, subject_value: randomUUID(), email: `person-${row}@example.com`, before: null },
    cells: names.map((_, at) => cellAt(row, at)),
  }));
  const page = String(
    await matrixSection(
      {
        ...{ revision: 1, compared: null, target: 'everything', target_enabled: true, names, names_count: 50, searched: null },
        rows,
      },
      {},
      null,
    ),
  );
  const bytes = gzipSync(page).length;
  t.log(`${page.length} characters, ${bytes} bytes compressed`);
  t.true(bytes < 50_000, `${bytes} bytes; the frame and the menu need the rest of 60 KB`);
});
