/** Pages with long lists: they show a part, and make its markup in slices, in a turn of their user. */
import test, { type ExecutionContext } from 'ava';
import { findingsPage } from '../../src/console/findings.ts';
import { changesPage } from '../../src/console/gateway.ts';
import { comparePage, historyPage } from '../../src/console/history.ts';
import { inSlices, SHOWN } from '../../src/console/lists.ts';
import { demandPage } from '../../src/console/log/demand.ts';
import { logPage, logRows } from '../../src/console/log/log.ts';
import { accessPage, matrixSection } from '../../src/console/people/access.ts';
import { ownTargetPage } from '../../src/console/people/mine.ts';
import { deniedPage, tokensPage } from '../../src/console/people/own.ts';
import { clientsPage, rightsPage } from '../../src/console/people/rights.ts';
import { holdingsPage } from '../../src/console/people/user-forms.ts';
import { usersPage } from '../../src/console/people/users.ts';
import { policiesPage, policyPage } from '../../src/console/policies.ts';
import { draftPage, draftsPage } from '../../src/console/policy-changes/drafts.ts';
import { patternSection } from '../../src/console/policy-changes/pattern.ts';
import { allowTools, credentialsPage } from '../../src/console/targets/forms.ts';
import { sessionsPage } from '../../src/console/targets/sessions.ts';
import { targetPage, targetsPage } from '../../src/console/targets/targets.ts';
import type { Changing, Shown, View } from '../../src/console/view.ts';
import { countTurns } from '../support/turns.ts';

const T = '2026-01-01T00:00:00.000Z';
const idOf = (at: number): string => `00000000-0000-4000-8000-${String(at).padStart(12, '0')}`;
const many = <Item>(length: number, item: (at: number) => Item): Item[] => Array.from({ length }, (_, at) => item(at));

/** A view whose operations answer with these bodies, by the beginning of the path. Counts the turns that the page takes. */
function viewOf(bodies: Readonly<Record<string, unknown>>, query: View['query'] = {}) {
  const taken = { turns: 0 };
  const ask = async (path: string) => {
    const known = Object.entries(bodies).find(([begin]) => path.startsWith(begin));
    return { body: known === undefined ? [] : known[1], next: null, etag: '"1"' };
  };
  const view = {
    ...{ get: ask, post: ask, send: (_method: string, path: string) => ask(path), query, id: idOf(1), done: '', refused: null },
    ...{ may: (operation: string) => operation !== 'lintPolicies', isRecent: true, publicUrl: 'http://127.0.0.1', pages: [] },
    inTurn: async (work: () => Promise<unknown>) => {
      taken.turns++;
      return work();
    },
  } as unknown as Changing;
  return { view, taken };
}

const textOf = ({ body }: Pick<Shown, 'body'>): string => (Array.isArray(body) ? body.map(String).join('') : String(body));
const countOf = (text: string, pattern: RegExp): number => text.match(pattern)?.length ?? 0;

test('the page of an own target asks for 200 names at a time, and leads to all of them', async (t) => {
  const names = many(10_500, (at) => ({
    resource_type: ['tool', 'resource', 'prompt'][Math.floor(at / 3_500)],
    resource_name: `n${at}`,
  }));
  const found: string[] = [];
  for (let skip: string | undefined = '0'; skip !== undefined; ) {
    const at: number = Number(skip);
    const part = { names: names.slice(at, at + SHOWN), more: at + SHOWN < names.length };
    const access = { target: 'evil', endpoint: 'http://127.0.0.1/mcp/evil', ...part };
    const { view } = viewOf({ [`/auth/access/evil?skip=${at}&limit=${SHOWN}`]: access }, { skip });
    const text = textOf(await ownTargetPage({ ...view, id: 'evil' }));
    found.push(...[...text.matchAll(/<li><code>([^<]*)/g)].map(([, name = '']) => name));
    t.regex(text, /Names .* to .* are shown/);
    skip = /href="\/console\/mine\/evil\?skip=(\d+)">Next/.exec(text)?.[1];
  }
  t.deepEqual(
    found,
    names.map(({ resource_name }) => resource_name),
  );
});

test('a few names need no other page', async (t) => {
  const names = many(3, (at) => ({ resource_type: 'tool', resource_name: `t${at}` }));
  const access = { target: 'a', endpoint: 'http://127.0.0.1/mcp/a', names, more: false };
  const { view, taken } = viewOf({ '/auth/access': access }, { skip: 'x' });
  const text = textOf(await ownTargetPage(view));
  t.is(countOf(text, /<li><code>/g), 3);
  t.notRegex(text, /are shown/);
  t.is(taken.turns, 0);
});

test('the event loop turns between items, and a long list waits for a turn of its user', async (t) => {
  const { view, taken } = viewOf({});
  const busy = (at: number): string => {
    // Longer than a slice.
    for (const end = performance.now() + 4; performance.now() < end; );
    return `${at}`;
  };
  const turns = countTurns();
  const items = many(30, (at) => at);
  t.deepEqual(await inSlices(view, items, busy), items.map(String));
  t.true(turns() >= items.length - 1);
  t.is(taken.turns, 1);
});

const policy = (at: number) => ({
  ...{ id: idOf(at), name: `p${at}`, description: null, target_id: null, resource_type: 'all', resource_pattern: null },
  ...{ effect: 'allow', priority: 1, enabled: true, subjects: [], managed_as: null, drift_since: null },
  ...{ created_at: T, updated_at: T },
});
const target = (at: number) => ({
  ...{ id: idOf(at), name: `t${at}`, description: null, transport: 'streamable-http', url: 'https://x.example', enabled: false },
});
const user = (at: number) => ({
  ...{ id: idOf(at), email: `u${at}@example.com`, role: 'user', groups: many(900, (group) => `g${group}`), enabled: true },
  ...{ issuer: 'portcullis', subject: 's', refusal: null, created_at: T, updated_at: T },
});
const decision = (at: number) => ({
  ...{ id: idOf(at), created_at: T, user_id: idOf(1), user_email: 'a', user_role: 'user', user_groups: [], target_id: null },
  ...{ target_name: 't', method: 'tools/call', resource_type: 'tool', resource_name: `n${at}`, effect: 'allow' },
  ...{ policy_id: null, policy_name: null, reason: 'default', outcome: 'ok', duration_ms: 1 },
});
const subjects = many(1_000, (at) => ({ subject_type: 'group', subject_value: `group-number-${at}` }));
const file = { name: 'f', target: null, resource_type: 'all', resource_pattern: null, effect: 'allow', priority: 1, subjects };
const change = (action: string) => (at: number) => ({
  ...{ action, name: `c${at}`, members: action === 'update' ? ['subjects'] : [], before: action === 'update' ? file : null },
  ...{ after: file, flips: [] },
});
const catalogue = {
  replica: 'r',
  names: many(1_000, (at) => ({ resource_type: 'tool', resource_name: `n${at}`, seen_at: T, matches: null })),
  names_count: 3_000,
};
const credential = (at: number) => ({
  ...{ subject_type: 'group', subject_value: `g${at}`, type: 'header', name: 'x', usable: true, updated_at: T },
});
const ROWS = /<tr><th scope="row"/g;

interface Case {
  readonly show: (view: Changing) => Promise<Shown | string | object>;
  readonly bodies: Readonly<Record<string, unknown>>;
  readonly query?: View['query'];
  /** What an item begins with, and how many the page shows. */
  readonly item?: RegExp;
  readonly shown: number;
}

const PAGES: Readonly<Record<string, Case>> = {
  'own tokens': {
    show: tokensPage,
    bodies: {
      '/auth/tokens': many(1_000, (at) => ({ id: idOf(at), name: 'n', created_at: T, expires_at: null, limits: null })),
      '/auth/rights': { rights: [] },
    },
    shown: SHOWN,
  },
  'own denials': { show: deniedPage, bodies: { '/logs/denials': many(100, decision) }, shown: 100 },
  users: { show: usersPage, bodies: { '/users': many(100, user) }, shown: 100 },
  'what users hold': {
    show: holdingsPage,
    bodies: {
      '/users': user(1),
      '/auth/tokens': many(1_000, (at) => ({ id: idOf(at), name: 'n', created_at: T, expires_at: null })),
      '/auth/browser-sessions': many(1_000, (at) => ({ id: idOf(at), agent: 'a', address: '::1', seen_at: T })),
      '/auth/grants': many(1_000, (at) => ({ id: idOf(at), client: { name: 'c' }, redirect_uri: 'u', used_at: T })),
    },
    shown: 3 * SHOWN,
  },
  rights: {
    show: rightsPage,
    bodies: {
      '/rights': many(1_000, (at) => ({ id: idOf(at), subject_type: 'role', subject_value: 'r', right: 'read', owner: null })),
    },
    shown: SHOWN,
  },
  clients: {
    show: clientsPage,
    bodies: {
      '/clients': many(100, (at) => ({
        id: idOf(at),
        client_id: 'c',
        name: 'n',
        redirect_uris: [],
        enabled: true,
        used_at: null,
      })),
    },
    shown: 100,
  },
  'access of one': {
    show: accessPage,
    bodies: {
      '/policies/access': many(10_000, (at) => ({
        ...{ target: 't', resource_type: 'tool', resource_name: `n${at}`, policy_id: idOf(1), policy_name: 'p' },
      })),
    },
    query: { who: 'everyone' },
    shown: 500,
  },
  targets: { show: targetsPage, bodies: { '/targets': many(100, target) }, shown: 100 },
  'a target': {
    show: (view) => targetPage(view),
    bodies: {
      [`/targets/${idOf(1)}/health`]: { status: 'ok', last_success_at: null, last_fault: null, replica: 'r', retry_at: null },
      [`/targets/${idOf(1)}/credentials`]: many(1_000, credential),
      [`/targets/${idOf(1)}/catalogue?limit=${SHOWN}`]: { ...catalogue, names: catalogue.names.slice(0, SHOWN) },
      '/targets': target(1),
    },
    shown: 2 * SHOWN,
  },
  'credentials of a target': {
    show: credentialsPage,
    bodies: { [`/targets/${idOf(1)}/credentials`]: many(1_000, credential), '/targets': target(1) },
    shown: SHOWN,
  },
  'tools of a target': {
    show: (view) => Promise.resolve(allowTools({ ...view, form: { do: 'try' } })),
    bodies: {
      [`/targets/${idOf(1)}/check`]: {
        ...{ fault: null, server: null, more: false },
        tools: many(1_000, (at) => ({ name: `n${at}`, title: null, description: null, read_only: true })),
      },
      '/targets': target(1),
    },
    // What the page does not show must not be allowed, so it shows all.
    shown: 1_000,
  },
  sessions: {
    show: sessionsPage,
    bodies: {
      '/sessions': many(100, (at) => ({
        ...{ id: idOf(at), user_id: idOf(1), target_id: null, client: { name: 'c', version: '1' }, revision: 'r' },
        ...{ created_at: T, seen_at: T },
      })),
      '/users': user(1),
    },
    shown: 100,
  },
  log: {
    show: logPage,
    bodies: { '/logs/counts': {}, '/logs/verification': { verification: null, full: null }, '/logs': many(100, decision) },
    item: /<tr id="d-/g,
    shown: 100,
  },
  'new rows of the log': {
    show: async (view) => ({ title: '', body: await logRows(view) }),
    bodies: { '/logs': many(100, decision) },
    item: /<tr id="d-/g,
    shown: 100,
  },
  demand: {
    show: demandPage,
    bodies: {
      '/logs/demand': {
        ...{ denials: 1, from: T, read_to: null, more: false },
        demand: many(100, (at) => ({
          ...{
            target_id: null,
            target_name: 't',
            resource_type: 'tool',
            resource_name: `n${at}`,
            denials: 1,
            user_count: 0,
            users: [],
          },
          last: { id: idOf(at), created_at: T, policy_id: null, policy_name: null, reason: 'error' },
        })),
      },
    },
    shown: 100,
  },
  changes: {
    show: changesPage,
    bodies: {
      '/changes': many(50, (at) => ({
        ...{ sequence: at, created_at: T, actor: { id: 'i', email: 'e' }, reason: null, override: false, action: 'a' },
        ...{ object_id: idOf(at), before: null, after: null },
      })),
    },
    item: /<tr><td class="num" data-label="#">/g,
    shown: 50,
  },
  history: {
    show: historyPage,
    bodies: {
      '/policies/history': many(100, (at) => ({
        ...{ revision: at, created_at: T, actor: { id: 'i', email: 'e' }, reason: null, policy: null },
        ...{ created: 1, updated: 0, deleted: 0, override: false },
      })),
    },
    shown: 100,
  },
  'updated policies': {
    show: comparePage,
    bodies: { '/policies/compare': { from: 1, to: 2, verdict: 'equal', changes: many(1_000, change('update')) } },
    item: /<section /g,
    shown: 100,
  },
  drafts: {
    show: draftsPage,
    bodies: {
      '/policies/drafts': many(1_000, (at) => ({
        ...{ name: `d${at}`, owner: 'o', shadow: null, author: { id: 'i', email: 'e' }, updated_at: T },
      })),
    },
    shown: SHOWN,
  },
  policies: {
    show: policiesPage,
    bodies: {
      '/policies/order': many(100, (at) => ({ position: at + 1, policy: policy(at) })),
      '/logs/counts': { counts: [] },
    },
    item: /<tr class="[^"]*" data-id=/g,
    shown: 100,
  },
  'subjects of a policy': {
    show: policyPage,
    bodies: {
      '/policies/order': [],
      '/logs/counts': { counts: [] },
      [`/policies/${idOf(1)}`]: { ...policy(1), subjects },
    },
    item: />group /g,
    shown: 1_000,
  },
  findings: {
    show: findingsPage,
    bodies: {
      '/policies/lint': {
        analysed: 1,
        findings: many(10_000, () => ({ code: 'c', severity: 'warning', message: 'm', policies: [] })),
      },
    },
    shown: SHOWN,
  },
  'names that a pattern matches': {
    show: async (view) => ({
      title: '',
      body: await patternSection(view, { target_id: null, resource_type: 'all', resource_pattern: null }, [target(1)]),
    }),
    bodies: { '/targets': catalogue },
    item: /<li><code>/g,
    shown: SHOWN,
  },
};

for (const [name, { show, bodies, query, item = ROWS, shown }] of Object.entries(PAGES)) {
  test(`the page with ${name} makes a part of a long list, in slices and in a turn`, async (t: ExecutionContext) => {
    const { view, taken } = viewOf(bodies, query);
    const text = textOf((await show(view)) as Shown);
    t.is(countOf(text, item), shown);
    t.true(taken.turns > 0);
  });
}

test('the list of users shows ten groups of each, and a change shows the beginning of long values', async (t) => {
  const users = textOf(await usersPage(viewOf({ '/users': many(2, user) }).view));
  t.is(countOf(users, />group /g), 20);
  t.is(countOf(users, />890 more</g), 2);
  const compared = (action: string) => ({
    '/policies/compare': { from: 1, to: 2, verdict: 'equal', changes: [change(action)(0)] },
  });
  const updated = textOf(await comparePage(viewOf(compared('update')).view));
  t.true(updated.length < 30_000);
  t.regex(updated, /GET \/api\/policies\/compare has the rest/);
  const created = textOf(await comparePage(viewOf(compared('create')).view));
  t.is(countOf(created, />group /g), 20);
  t.regex(created, />980 more</);
});

test('a draft shows the beginning of long files, and the first changes and warnings', async (t) => {
  const files = Object.fromEntries(many(20, (at) => [`f${at}.yaml`, 'x'.repeat(60_000)]));
  const { view, taken } = viewOf({
    [`/policies/drafts/${idOf(1)}`]: {
      ...{
        author: { id: 'i', email: 'e' },
        files,
        owner: 'o',
        prune: false,
        adopt: false,
        shadow: null,
        tests: {},
        updated_at: T,
      },
    },
    '/policies/plan': {
      ...{ revision: 1, owner_revision: 1, targets_hash: 'h', invariants: [], verdict: 'looser' },
      ...{ warnings: many(1_000, () => ({ message: 'w' })), changes: many(1_000, change('create')) },
    },
    '/policies/replay': { decisions: 0, replayed: 0, grants: 0, refuses: 0, lists: { hides: 0 }, flips: [] },
  });
  const text = textOf(await draftPage(view));
  t.is(countOf(text, /x/g) > 500_000 && countOf(text, /x{1000}/g) === 500, true);
  t.is(countOf(text, /50,000 of 60,000 characters are shown/g), 10);
  t.is(countOf(text, /0 of 60,000 characters are shown/g), 20);
  t.is(countOf(text, /<div>w<\/div>/g), SHOWN);
  t.regex(text, /200 of 1,000 warnings are shown/);
  t.regex(text, /These are the first 100 of 1000 changed policies/);
  t.true(taken.turns > 0);
});

test('a matrix of long names shows fewer columns, and leads to all of them', async (t) => {
  const CELL = { effect: 'allow', policy: null } as const;
  const matrixOf = (names: readonly string[], skip: number) => ({
    ...{ revision: 1, compared: null, target: 't', target_enabled: true, searched: null, names_count: names.length },
    names: names.slice(skip, skip + 50).map((resource_name) => ({ resource_type: 'resource', resource_name })),
    rows: many(100, (at) => ({
      ...{ subject_type: 'role' as const, subject_value: `r${at}`, email: null, before: null },
      cells: names.slice(skip, skip + 50).map(() => CELL),
    })),
  });
  for (const [length, first] of [
    [2_000, 1],
    [200, 10],
    [10, 50],
  ] as const) {
    const names = many(120, (at) => `n${at}-${'&'.repeat(length)}`);
    const found: string[] = [];
    for (let skip = 0; ; ) {
      const text = String(await matrixSection(matrixOf(names, skip), { skip: `${skip}` }, null));
      const shown = [...text.matchAll(/class="turned">(n\d+-)/g)].map(([, name = '']) => name);
      if (skip === 0) t.true(shown.length >= first && shown.length <= Math.max(first, 50), `${shown.length} of ${length}`);
      t.is(countOf(text, /<td class="mx/g), 100 * shown.length);
      t.true(text.length < 3_000_000);
      found.push(...shown);
      const next = /skip=(\d+)">Next/.exec(text)?.[1];
      if (next === undefined) break;
      skip = Number(next);
    }
    t.deepEqual(
      found,
      many(120, (at) => `n${at}-`),
      `${length}`,
    );
  }
});
