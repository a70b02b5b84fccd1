/** A company for the pictures of the console: targets, users, policies with a history, and a day of decisions. */
import { setTimeout as sleep } from 'node:timers/promises';
import { createChainKey, firstIdOf } from '../../../src/audit/chain/chain.ts';
import { createAuditWriter } from '../../../src/audit/writer.ts';
import { createVault } from '../../../src/auth/vault.ts';
import { readConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/db/database.ts';
import type { Effect, ResourceType } from '../../../src/engine/compile/policy.ts';
import { file, policySets } from '../../policies/sets.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { apiToken, type Person, person, type Run, startGateway, type TestGateway } from '../../support/gateway.ts';
import { modernClient } from '../../support/mcp.ts';
import { freePort } from '../../support/port.ts';
import { byMethod, startRecording } from '../../support/upstreams/recording.ts';

export const ADMIN = 'ines.okafor@example.com';
const HOUR_MS = 60 * 60_000;
/** The decisions of the last hours, and how many in each. */
const HOURS = 30;
const PER_HOUR = 110;

const TOOLS: Readonly<Record<string, readonly string[]>> = {
  github: [
    ...['search_issues', 'get_issue', 'create_issue', 'create_comment', 'list_pull_requests', 'get_pull_request'],
    ...['merge_pull_request', 'push_files', 'delete_repository'],
  ],
  warehouse: ['list_tables', 'describe_table', 'run_query', 'export_table', 'drop_table'],
  'kubernetes-prod': ['get_pods', 'describe_pod', 'get_logs', 'rollout_restart', 'scale_deployment', 'exec_in_pod'],
  billing: ['list_invoices', 'get_invoice', 'refund_payment', 'export_invoices'],
  helpdesk: ['search_tickets', 'get_ticket', 'reply_to_ticket', 'close_ticket'],
  crm: ['find_contact', 'get_account', 'update_account', 'delete_contact'],
};

const PEOPLE: readonly (readonly [name: string, role: string, groups: readonly string[]])[] = [
  ['kofi.mensah', 'developer', ['developers', 'on-call']],
  ['p.ruiz', 'developer', ['developers']],
  ['t.lindqvist', 'support', ['support']],
  ['r.haddad', 'support', ['support']],
  ['m.sato', 'analyst', ['analysts']],
  ['j.brandt', 'analyst', ['analysts', 'finance']],
  ['a.diallo', 'finance', ['finance']],
  ['svc-reports', 'service', ['finance']],
  ['svc-deploy', 'service', ['deployers']],
  ['c.external', 'contractor', ['contractors']],
  ['l.garcia', 'auditor', []],
];

const group = (value: string) => ({ subject_type: 'group', subject_value: value }) as const;
const role = (value: string) => ({ subject_type: 'role', subject_value: value }) as const;

type Policy = Parameters<typeof file>[0] & object;
const deny = (name: string, target: string | null, pattern: string, priority: number, more: Policy = {}): Policy => ({
  ...{ name, target, resource_pattern: pattern, priority, effect: 'deny' },
  ...more,
});
const allow = (name: string, target: string, pattern: string | null, groups: readonly string[], more: Policy = {}): Policy => ({
  ...{ name, target, resource_pattern: pattern, priority: 100, subjects: groups.map(group) },
  ...more,
});

const FIRST: Readonly<Record<string, Policy>> = {
  'nothing-is-deleted.yaml': deny('Agents delete nothing', null, '^(delete|drop)_', 1_000, {
    description: 'People delete by hand, with a second pair of eyes.',
  }),
  'no-shell.yaml': deny('No shell in production clusters', 'kubernetes-prod', '^exec_in_pod$', 900),
  'contractors-crm.yaml': deny('Contractors stay out of customer data', 'crm', '.', 800, {
    subjects: [group('contractors'), role('contractor')],
  }),
  'issues.yaml': allow('Developers work on issues', 'github', '^(search_issues|get_issue|create_issue|create_comment)$', [
    'developers',
    'contractors',
  ]),
  'pulls.yaml': allow('Developers read pull requests', 'github', '^(list_pull_requests|get_pull_request)$', ['developers']),
  'clusters.yaml': allow('On-call reads and restarts', 'kubernetes-prod', '^(get|describe)_|^rollout_restart$', ['on-call']),
  'deploys.yaml': allow('Deployments restart', 'kubernetes-prod', '^(get_pods|rollout_restart)$', ['deployers']),
  'tables.yaml': allow('Analysts query the warehouse', 'warehouse', '^(list_tables|describe_table|run_query)$', ['analysts']),
  'invoices.yaml': allow('Finance reads invoices', 'billing', '^(list|get)_invoices?$', ['finance']),
  'tickets.yaml': allow('Support answers tickets', 'helpdesk', '^(search_tickets|get_ticket|reply_to_ticket)$', ['support']),
  'contacts.yaml': allow('Support looks up customers', 'crm', '^(find_contact|get_account)$', ['support']),
};
/** What the second revision adds: one of them has no anchor, so lint says something. */
const SECOND: Readonly<Record<string, Policy>> = {
  'year-end.yaml': deny('Billing is frozen for the end of the year', 'billing', '^(refund_payment|export_invoices)$', 700),
  'merges.yaml': allow('Developers merge', 'github', 'merge_pull_request', ['developers'], { priority: 90 }),
  'legacy.yaml': allow('Old reports', 'warehouse', '^export_table$', ['finance'], { enabled: false, priority: 20 }),
};

/** What is asked for: by whom, how often, of which target, what. */
const DEMAND: readonly (readonly [who: string, weight: number, target: string, names: readonly string[]])[] = [
  ['kofi.mensah', 9, 'github', ['search_issues', 'get_issue', 'create_comment', 'get_pull_request']],
  ['kofi.mensah', 4, 'kubernetes-prod', ['get_pods', 'get_logs', 'describe_pod', 'rollout_restart', 'exec_in_pod']],
  ['p.ruiz', 7, 'github', ['search_issues', 'create_issue', 'list_pull_requests', 'merge_pull_request', 'push_files']],
  ['p.ruiz', 1, 'kubernetes-prod', ['scale_deployment', 'get_logs']],
  ['t.lindqvist', 6, 'helpdesk', ['search_tickets', 'get_ticket', 'reply_to_ticket']],
  ['r.haddad', 5, 'helpdesk', ['get_ticket', 'reply_to_ticket', 'close_ticket']],
  ['r.haddad', 2, 'crm', ['find_contact', 'get_account', 'delete_contact']],
  ['m.sato', 8, 'warehouse', ['list_tables', 'describe_table', 'run_query', 'run_query']],
  ['j.brandt', 4, 'warehouse', ['describe_table', 'run_query', 'export_table']],
  ['a.diallo', 3, 'billing', ['list_invoices', 'get_invoice', 'export_invoices']],
  ['svc-reports', 6, 'billing', ['list_invoices', 'get_invoice']],
  ['svc-deploy', 5, 'kubernetes-prod', ['get_pods', 'rollout_restart', 'scale_deployment']],
  ['c.external', 2, 'github', ['search_issues', 'get_issue', 'push_files']],
  ['c.external', 1, 'crm', ['find_contact']],
];

export interface Company {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly targets: ReadonlyMap<string, string>;
}

const MASTER_KEY = Buffer.alloc(32, 7);

/** Starts a gateway that has worked for the company for a day. `t` ends it. `isListed`: a client then asks the targets for their lists. */
export async function startCompany(t: Run, isListed = true): Promise<Company> {
  const database = await createSqlite();
  t.teardown(() => database.drop());
  const environment = { PORT: String(await freePort()), MASTER_KEY: MASTER_KEY.toString('base64') };
  const first = ended(t);
  const gateway = await startGateway(first.run, database.url, environment);
  const admin = await person(gateway, ADMIN);
  const { token } = admin;
  const targets = new Map<string, string>();
  for (const [name, tools] of Object.entries(TOOLS)) {
    const upstream = await startRecording(
      byMethod({
        'tools/list': { tools: tools.map((tool) => ({ name: tool, inputSchema: { type: 'object' } })) },
        'tools/call': { content: [{ type: 'text', text: 'done' }] },
      }),
    );
    t.teardown(() => upstream.stop());
    // A target that fails belongs into the pictures.
    const url = name === 'crm' ? 'http://127.0.0.1:9/mcp' : upstream.url;
    const body = { name, transport: 'streamable-http', url };
    targets.set(name, (await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body })).body.id);
  }
  const ids = new Map<string, string>();
  for (const [name, of, groups] of PEOPLE) {
    const body = { email: `${name}@example.com`, password: `a long passphrase of ${name}`, role: of, groups };
    ids.set(name, (await gateway.rest<{ id: string }>(201, 'POST', '/api/users', { token, body })).body.id);
  }
  const right = { subject_type: 'user', subject_value: ids.get('l.garcia'), right: 'read' };
  await gateway.rest(201, 'POST', '/api/rights', { token, body: right });
  await gateway.rest(201, 'PUT', `/api/targets/${targets.get('github')}/credentials/default`, {
    token,
    body: { type: 'header', name: 'authorization', value: 'Bearer invented' },
  });
  const { apply } = policySets(gateway, token);
  const files = (policies: Readonly<Record<string, Policy>>) =>
    Object.fromEntries(Object.entries(policies).map(([name, policy]) => [name, file(policy)]));
  await apply(files(FIRST));
  await apply(files({ ...FIRST, ...SECOND }));
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', {
    token,
    body: {
      ...{ name: 'Administrators use everything', resource_type: 'all', effect: 'allow', priority: 50 },
      subjects: [{ subject_type: 'role', subject_value: 'admin' }],
    },
  });
  await gateway.rest(200, 'PUT', `/api/policies/${made.body.id}`, { token, body: { priority: 10 } });
  const day = await dayOf(gateway, token, ids, targets);
  await first.end();
  await record(database.url, day);

  const again = await startGateway(t, database.url, environment);
  const { body: signedIn } = await again.rest<{ token: string }>(200, 'POST', '/api/auth/login', {
    body: { email: admin.email, password: admin.password },
  });
  const company = { gateway: again, admin: { ...admin, token: signedIn.token }, targets };
  if (isListed) await list(t, company);
  await counted(company);
  return company;
}

/** The part of a run that ends before the rest. */
function ended(t: Run) {
  const ends: (() => unknown)[] = [];
  const run: Run = { fail: (message) => t.fail(message), teardown: (end) => void ends.push(end) };
  const end = async (): Promise<void> => {
    for (const each of ends.reverse()) await each();
  };
  return { run, end };
}

interface Asked {
  readonly who: (typeof PEOPLE)[number];
  readonly userId: string;
  readonly target: string;
  readonly targetId: string;
  readonly name: string;
  readonly effect: Effect;
  readonly policy: { readonly id: string; readonly name: string; readonly priority: number } | null;
  readonly revision: number;
}

/** Returns what is asked for, each as often as its weight, as the gateway decides it. */
async function dayOf(
  gateway: TestGateway,
  token: string,
  ids: ReadonlyMap<string, string>,
  targets: ReadonlyMap<string, string>,
): Promise<readonly Asked[]> {
  const day: Asked[] = [];
  for (const [name, weight, target, tools] of DEMAND) {
    const who = PEOPLE.find(([each]) => each === name);
    if (who === undefined) throw new Error(`nobody is called ${name}`);
    for (const tool of tools) {
      const body = { principal: { user: ids.get(name) }, target, resource_type: 'tool', resource_name: tool };
      const { body: decided } = await gateway.rest<Pick<Asked, 'effect' | 'policy' | 'revision'>>(
        200,
        'POST',
        '/api/policies/explain',
        { token, body },
      );
      const { effect, policy, revision } = decided;
      const place = { target, targetId: targets.get(target) ?? '', name: tool };
      const asked = { who, userId: ids.get(name) ?? '', ...place, effect, policy, revision };
      for (let i = 0; i < weight; i++) day.push(asked);
    }
  }
  return day;
}

/** Writes the decisions of the last hours, as the gateway would have recorded them. */
async function record(url: string, day: readonly Asked[]): Promise<void> {
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, async () => undefined);
  const key = createChainKey(createVault(MASTER_KEY).derive('audit chain'));
  const began = Date.now() - HOURS * HOUR_MS;
  let now = began;
  const log = { info: () => undefined, warn: (what: object) => console.warn(what) };
  const writer = createAuditWriter({ database, key, host: {}, log, now: () => now });
  for (let i = 0; i < HOURS * PER_HOUR; i++) {
    // Nights are quieter, and no two minutes are alike, but every run makes the same picture.
    const hour = Math.floor(i / PER_HOUR);
    const isQuiet = (i * 7) % 10 < 4 + 4 * Math.cos(((hour - 4) / 24) * 2 * Math.PI);
    now = began + Math.floor(((i + ((i * 37) % 10) / 12) / PER_HOUR) * HOUR_MS);
    const asked = day[(i * 611 + hour * 13) % day.length];
    if (isQuiet || asked === undefined) continue;
    const { who, userId, target, targetId, name, effect, policy, revision } = asked;
    const id = `${firstIdOf(now).slice(0, 14)}7000-8000-${i.toString(16).padStart(12, '0')}`;
    await writer.decision({
      ...{ id, created_at: now, issuer: 'http://127.0.0.1', user_id: userId, user_email: `${who[0]}@example.com` },
      ...{ user_role: who[1], user_groups: who[2], target_id: targetId, target_name: target, method: 'tools/call' },
      ...{ resource_type: 'tool' satisfies ResourceType, resource_name: name, arguments: null, effect },
      ...{ reason: policy === null ? 'default' : 'matched', policy_id: policy?.id ?? null, policy_name: policy?.name ?? null },
      ...{ policy_priority: policy?.priority ?? null, revision, data_hash: 'd'.repeat(64), engine_hash: 'e'.repeat(64) },
    });
    const isBad = effect === 'allow' && i % 41 === 0;
    const outcome = effect === 'deny' ? 'denied' : isBad ? 'upstream_error' : 'ok';
    writer.outcome({ decision_id: id, outcome, duration_ms: effect === 'deny' ? 0 : 18 + ((i * 53) % 240) });
    if (i % 500 === 0) await writer.flush();
  }
  await writer.close();
  await database.close();
}

/** The administrator's client asks every target for its lists. */
async function list(t: Run, { gateway, admin, targets }: Company): Promise<void> {
  const { token } = await apiToken(gateway, admin, 'laptop');
  for (const [name, id] of targets) {
    if (name === 'crm') {
      await gateway.rest(200, 'POST', `/api/targets/${id}/check`, { token: admin.token });
      continue;
    }
    const client = await modernClient(t, `${gateway.url}/mcp/${name}`, token);
    await client.listTools();
    if (name === 'github') await client.callTool({ name: 'delete_repository', arguments: {} }).catch(() => undefined);
  }
}

/** Resolves when the gateway has counted all decisions until now. */
async function counted({ gateway, admin: { token } }: Company): Promise<void> {
  const now = Date.now();
  for (;;) {
    const { body } = await gateway.rest<{ counted_to: string }>(200, 'GET', '/api/logs/counts?by=hour', { token });
    if (Date.parse(body.counted_to) >= now) return;
    await sleep(200);
  }
}
