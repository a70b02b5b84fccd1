/** What the pages show equals the API, the command line and the oracle, for random policy sets. */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import fc from 'fast-check';
import type { Policy, ResourceType } from '../../src/engine/compile/policy.ts';
import type { PrincipalFacts } from '../../src/engine/decision.ts';
import type { CountsJson } from '../../src/rest/audit/contract.ts';
import { browse, signIn } from '../browser/browser.ts';
import { command, inProcess, policies as policiesCommand } from '../cli/cli.ts';
import { decide, decideTarget } from '../engine/oracle.ts';
import { person } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';
import { matches, policyOf, SETS } from './random-sets.ts';
import { HOSTILE } from './scene.ts';

interface Row {
  readonly target: string;
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  readonly policy_id: string;
}
interface Logged {
  readonly id: string;
  readonly effect: string;
  readonly reason: string;
  readonly policy_id: string | null;
  readonly user_id: string;
  readonly user_role: string;
  readonly user_groups: readonly string[];
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
}
type Counted = Pick<CountsJson['counts'][number], 'allowed' | 'denied' | 'unmatched'>;
type Asked = Pick<Row, 'resource_type' | 'resource_name'>;

const unescaped = (text: string): string => text.replaceAll(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)));
const rowsOf = (page: string): string[] => [...page.matchAll(/<tr[^>]*>(.*?)<\/tr>/gs)].map(([, row = '']) => row);
const keyOf = ({ resource_type, resource_name }: Asked): string => `${resource_type} ${resource_name}`;

/** The ids of the policies, in the order of the list of the console. */
const listed = (page: string): string[] =>
  rowsOf(page).flatMap((row) => /<th scope="row"><a href="\/console\/policies\/([0-9a-f-]{36})"/.exec(row)?.[1] ?? []);

/** What somebody can use, as the page says: the name, and the policy that allows it. */
const usable = (page: string): string[] =>
  rowsOf(page).flatMap((row) => {
    const [, href = ''] = /<th scope="row"><a href="\/console\/access\/why\?([^"]*)"/.exec(row) ?? [];
    const [, policy] = /data-label="Allowed by"><a href="\/console\/policies\/([0-9a-f-]{36})"/.exec(row) ?? [];
    const query = new URLSearchParams(unescaped(href));
    return policy === undefined
      ? []
      : [
          `${keyOf({ resource_type: query.get('resource_type') as ResourceType, resource_name: query.get('resource_name') })} ${policy}`,
        ];
  });

/** The fields of the editor for a policy. */
const formOf = ({ target_id, resource_pattern, enabled, subjects, priority, ...policy }: Policy): Record<string, string> => ({
  ...{ name: policy.name, description: '', effect: policy.effect, resource_type: policy.resource_type },
  ...{
    target_id: target_id ?? '',
    resource_pattern: resource_pattern ?? '',
    priority: String(priority),
    enabled: enabled ? 'yes' : '',
  },
  subjects: subjects
    .map(({ subject_type: type, subject_value: value }) => (value === null ? type : `${type}: ${value}`))
    .join('\n'),
});

test.serial(
  'order, effective access, counts and the consequences of a change are the same on the pages as everywhere',
  async (t) => {
    t.timeout(110_000);
    const { gateway, admin, user, token: callers, target, mcp } = await world(t);
    const { token } = admin;
    const other = await person(gateway, 'other@example.com');
    await gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token, body: { groups: ['dev', HOSTILE] } });
    await gateway.rest(200, 'PUT', `/api/users/${other.id}`, { token, body: { role: 'Dev', groups: ['dev'] } });
    const facts: readonly (readonly [who: string, facts: PrincipalFacts])[] = [
      ['everyone', { sub: '', role: '', groups: [] }],
      ['role:Dev', { sub: '', role: 'Dev', groups: [] }],
      [`group:${HOSTILE}`, { sub: '', role: '', groups: [HOSTILE] }],
      [`user:${user.email}`, { sub: user.id, role: 'user', groups: ['dev', HOSTILE] }],
      [`user:${other.id}`, { sub: other.id, role: 'Dev', groups: ['dev'] }],
    ];
    const console_ = browse(gateway);
    await signIn(console_, admin);
    const get = async <T>(path: string): Promise<T> => (await gateway.rest<T>(200, 'GET', `/api${path}`, { token })).body;
    const text = async (path: string): Promise<string> => (await console_.get(path)).text;
    const answer = (policies: readonly Policy[], who: PrincipalFacts, { resource_type, resource_name }: Asked) =>
      resource_type === null || resource_name === null
        ? decideTarget(policies, who, target.id)
        : decide(policies, who, target.id, { resource_type, resource_name }, matches);

    const one = policyOf([user, other], [target.id]);
    const sets = fc.sample(fc.tuple(fc.array(one, { minLength: 1, maxLength: 6 }), one), { numRuns: SETS, seed: 18 });
    const seen = { allowed: 0, changed: 0 };
    /** How many decisions each policy made, as the oracle says. An empty id: no policy matched. */
    const made = new Map<string, Counted>();
    const known = new Set<string>();
    for (const [set, next] of sets) {
      for (const { id } of await get<Policy[]>('/policies')) await gateway.rest(204, 'DELETE', `/api/policies/${id}`, { token });
      for (const body of set) await gateway.rest(201, 'POST', '/api/policies', { token, body });
      // Decisions of the set: whether the client may connect, and calls that are allowed or denied.
      const client = await modernClient(t, mcp, callers).catch(() => null);
      for (const name of ['echo', 'get-env', HOSTILE])
        await client?.callTool({ name, arguments: { message: 'x' } }).catch(() => null);
      await client?.close();

      const policies = await get<Policy[]>('/policies');
      const inOrder = policies.toSorted(
        (a, b) => b.priority - a.priority || (a.effect === b.effect ? 0 : a.effect === 'deny' ? -1 : 1) || (a.id < b.id ? -1 : 1),
      );
      const log = await get<Logged[]>('/logs?limit=1000');
      for (const entry of log) {
        if (known.has(entry.id)) continue;
        known.add(entry.id);
        const its = { sub: entry.user_id, role: entry.user_role, groups: entry.user_groups };
        const { effect, policyId } = answer(policies, its, entry);
        t.deepEqual([entry.effect, entry.policy_id], [effect, policyId]);
        const { allowed, denied, unmatched } = made.get(policyId ?? '') ?? { allowed: 0, denied: 0, unmatched: 0 };
        made.set(policyId ?? '', {
          allowed: allowed + (effect === 'allow' ? 1 : 0),
          denied: denied + (effect === 'deny' && policyId !== null ? 1 : 0),
          unmatched: unmatched + (policyId === null ? 1 : 0),
        });
      }
      t.deepEqual(
        listed(await text('/console/policies')),
        inOrder.map(({ id }) => id),
      );

      const objects = new Map<string, Asked>([['', { resource_type: null, resource_name: null }]]);
      for (const { resource_type, resource_name } of log)
        if (resource_name !== null) objects.set(keyOf({ resource_type, resource_name }), { resource_type, resource_name });
      for (const [who, its] of facts) {
        const expected = [...objects.values()].flatMap((object) => {
          const { effect, policyId } = answer(policies, its, object);
          return effect === 'allow' ? [`${keyOf(object)} ${policyId}`] : [];
        });
        const query = new URLSearchParams({ who });
        const api = await get<Row[]>(`/policies/access?${query}`);
        const shown = await text(`/console/access?${query}`);
        t.notRegex(shown, /<img|<script>/);
        t.deepEqual(usable(shown).sort(), expected.sort(), who);
        t.deepEqual(api.map((row) => `${keyOf(row)} ${row.policy_id}`).sort(), expected, who);
        const said = await inProcess({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, (terminal) =>
          policiesCommand(['what-can', who, '--json'], terminal),
        );
        t.deepEqual(JSON.parse(said.out), api, said.err);
        seen.allowed += expected.length;
      }

      // The consequences of one more policy, for the recorded decisions.
      const id = 'ffffffff-ffff-4fff-bfff-ffffffffffff';
      const added = { ...next, id } as unknown as Policy;
      const candidate = [...policies, added];
      const decided = log.filter(({ reason }) => reason === 'matched' || reason === 'default');
      const flips = decided.map((entry) => {
        const its = { sub: entry.user_id, role: entry.user_role, groups: entry.user_groups };
        return `${entry.effect} ${answer(candidate, its, entry).effect}`;
      });
      const [grants, refuses] = ['deny allow', 'allow deny'].map((flip) => flips.filter((each) => each === flip).length);
      const preview = await console_.post('/console/policies/new', { ...formOf(added), do: 'preview' });
      t.is(preview.status, 200, preview.text);
      t.true(
        preview.text.includes(
          `${decided.length} of the ${log.length} decisions of the last 7 days were made again: ${(grants ?? 0) + (refuses ?? 0) === 0 ? 'none would be different' : `${grants} would be allowed now, ${refuses} would be denied now`}.`,
        ),
        `${decided.length} of ${log.length}, ${grants} ${refuses} ${/<h2 id="replay">.*?<\/p>/s.exec(preview.text)?.[0]}`,
      );
      seen.changed += (grants ?? 0) + (refuses ?? 0);
    }
    t.true(Math.min(seen.allowed, seen.changed) > 30, JSON.stringify(seen));

    // The gateway counts in the background.
    const counted = async (): Promise<Map<string, Counted>> => {
      const { counts } = await get<CountsJson>('/logs/counts?by=policy');
      return new Map(
        counts.map(({ policy_id, allowed, denied, unmatched }) => [policy_id ?? '', { allowed, denied, unmatched }]),
      );
    };
    const sum = (counts: Map<string, Counted>): number =>
      [...counts.values()].reduce((total, { allowed, denied, unmatched }) => total + allowed + denied + unmatched, 0);
    while (sum(await counted()) < known.size) await sleep(100);
    const counts = await counted();
    t.deepEqual(new Map([...counts].sort()), new Map([...made].sort()));
    t.true(made.size > 15, `${made.size} policies made decisions`);
    const said = await inProcess({ PORTCULLIS_URL: gateway.url, PORTCULLIS_TOKEN: token }, (terminal) =>
      command('log')(['count', '--by', 'policy', '--json'], terminal),
    );
    t.deepEqual(JSON.parse(said.out).counts, (await get<CountsJson>('/logs/counts?by=policy')).counts, said.err);
    for (const [id, { allowed, denied }] of made) {
      if (id === '') continue;
      const page = (await text(`/console/log?policy_id=${id}`)).replaceAll(/<[^>]*>/g, ' ').replaceAll(/\s+/g, ' ');
      t.regex(page, new RegExp(`Allow ${allowed} .*Deny ${denied} .*Default deny 0 `), id);
    }
    const list = await text('/console/policies');
    for (const { id } of await get<Policy[]>('/policies')) {
      const { allowed, denied } = made.get(id) ?? { allowed: 0, denied: 0 };
      t.true(list.includes(`<a href="/console/log?policy_id=${id}">${allowed + denied}</a>`), id);
    }
  },
);
