/** Bad neighbours that are callers: users, administrators, and callers with a revoked token. */
import { openSession } from '../../test/support/mcp.ts';
import type { Step } from './workload.ts';
import { inSession, jsonHeaders, type Neighbour, opening, type World } from './world.ts';

const BENCH = '/mcp/bench';
const MEMBERS = 199_000;
const CHANGES = { count: 5_000, seconds: 60 };
const CHANGED_USERS = 20;
const FILES = 9_800;

const members = (count: number): object => Object.fromEntries(Array.from({ length: count }, (_, i) => [`m${100_000 + i}`, 0]));
const echo = (token: string, args: object): Step => inSession(BENCH, token, 'tools/call', { name: 'echo', arguments: args });

/** A call in a session that was opened while the token was good. */
async function revokedCall({ api, origin, neighbour }: World, args: object): Promise<Step> {
  const { token, api_token } = await api.call<{ token: string; api_token: { id: string } }>(
    'POST',
    '/api/auth/tokens',
    neighbour.login,
    { name: 'revoked' },
  );
  const session = await openSession(origin + BENCH, token);
  await api.call('DELETE', `/api/auth/tokens/${api_token.id}`, neighbour.login);
  const { headers, ...step } = echo(token, args);
  return { ...step, headers: { ...headers, 'mcp-session-id': session } };
}

/** Files of the form that `portcullis policies plan` sends. */
function policyFiles(count: number): Record<string, string> {
  const file = (i: number): string =>
    `name: Planned policy ${i}\nresource_type: tool\nresource_pattern: ^tool_${i}$\neffect: allow\npriority: ${i % 100}\nsubjects:\n  - group: group-${i % 500}\n`;
  return Object.fromEntries(Array.from({ length: count }, (_, i) => [`planned-${i}.yaml`, file(i)]));
}

export const byCallers: readonly Neighbour[] = [
  {
    name: 'large, revoked',
    what: 'two loops of 2.3 MB bodies with 199,000 members, with a revoked token',
    async prepare(world) {
      const steps = [await revokedCall(world, members(MEMBERS))];
      return { workload: { loops: 2, first: [], steps }, instead: { discard: world.discard } };
    },
  },
  {
    name: 'large, valid',
    what: 'the same with a valid token, in a session',
    async prepare({ neighbour: { token }, discard }) {
      const workload = { loops: 2, first: opening(BENCH, token), steps: [echo(token, members(MEMBERS))] };
      return { workload, instead: { discard } };
    },
  },
  {
    name: 'slow, revoked',
    what: '150 connections that send bodies of 4 MiB slowly, with a revoked token',
    async prepare(world, ms) {
      const step = await revokedCall(world, { text: 'x'.repeat(4 * 1024 * 1024 - 1_000) });
      const sendMs = ms * 0.75;
      const workload = { loops: 150, everyMs: sendMs, first: [], steps: [{ ...step, sendMs }] };
      return { workload, instead: { discard: world.discard } };
    },
  },
  {
    name: 'medium',
    what: 'eight loops of 60 KiB bodies with 30,000 values, of one user, up to 200 a second',
    async prepare({ neighbour: { token }, discard }) {
      const step = echo(token, { values: Array.from({ length: 30_000 }, () => 0) });
      return { workload: { loops: 8, everyMs: 40, first: opening(BENCH, token), steps: [step] }, instead: { discard } };
    },
  },
  {
    name: 'tokens',
    what: 'a plain user makes and revokes tokens in four loops',
    async prepare({ neighbour: { login }, discard }) {
      const headers = jsonHeaders(login);
      const capture = { name: 'id', pattern: '"api_token":\\{"id":"([^"]+)"' };
      const steps: Step[] = [
        { method: 'POST', path: '/api/auth/tokens', headers, body: '{"name":"token {n}"}', capture },
        { method: 'DELETE', path: '/api/auth/tokens/{id}', headers },
      ];
      return { workload: { loops: 4, first: [], steps }, instead: { discard } };
    },
  },
  {
    name: 'user changes',
    what: `an administrator changes the groups of users ${CHANGES.count.toLocaleString('en')} times in ${CHANGES.seconds} s`,
    ms: CHANGES.seconds * 1_000,
    async prepare({ api, admin, discard }) {
      const steps: Step[] = [];
      for (let i = 0; i < CHANGED_USERS; i++) {
        const account = { email: `changed-${i}@example.com`, password: 'a long passphrase' };
        const { id } = await api.call<{ id: string }>('POST', '/api/users', admin, account);
        steps.push({ method: 'PUT', path: `/api/users/${id}`, headers: jsonHeaders(admin), body: '{"groups":["group-{n}"]}' });
      }
      const loops = 8;
      const everyMs = (loops * CHANGES.seconds * 1_000) / CHANGES.count;
      return { workload: { loops, everyMs, first: [], steps }, instead: { discard } };
    },
  },
  {
    name: 'plan',
    what: `an administrator has ${FILES.toLocaleString('en')} files planned in a loop, the gateway with a heap of 128 MB`,
    nodeOptions: ['--max-old-space-size=128'],
    async prepare({ admin, discard }) {
      const body = JSON.stringify({ files: policyFiles(FILES) });
      const step: Step = { method: 'POST', path: '/api/policies/plan', headers: jsonHeaders(admin), body };
      return { workload: { loops: 1, first: [], steps: [step] }, instead: { discard } };
    },
  },
  {
    name: 'failed logins',
    what: 'four loops of logins with a wrong password',
    async prepare({ discard }) {
      const headers = { 'content-type': 'application/json' };
      const body = '{"email":"user-{n}@example.com","password":"not the passphrase"}';
      const steps: Step[] = [{ method: 'POST', path: '/api/auth/login', headers, body }];
      return { workload: { loops: 4, first: [], steps }, instead: { discard } };
    },
  },
  {
    name: 'left sessions',
    what: 'four loops that open sessions and leave them',
    async prepare({ neighbour: { token }, discard }) {
      return { workload: { loops: 4, first: [], steps: opening(BENCH, token) }, instead: { discard } };
    },
  },
  {
    name: 'log',
    what: 'an auditor reads the log in two loops: pages of 1,000, and exports',
    async prepare({ api, admin, discard, neighbour }) {
      await api.call('PUT', `/api/users/${neighbour.id}`, admin, { role: 'auditor' });
      const headers = jsonHeaders(neighbour.token);
      const steps: Step[] = [
        { method: 'GET', path: '/api/logs?limit=1000', headers },
        { method: 'GET', path: '/api/logs/export?format=ndjson', headers },
      ];
      return { workload: { loops: 2, first: [], steps }, instead: { discard } };
    },
  },
];
