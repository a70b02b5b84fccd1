/** Bad neighbours that are callers: users, administrators, and callers with a revoked token. */
import { setTimeout as sleep } from 'node:timers/promises';
import { openSession } from '../../test/support/mcp.ts';
import type { Step } from './workload.ts';
import { inSession, jsonHeaders, listening, message, type Neighbour, opening, posted, type World } from './world.ts';

const SCIM = {
  users: 5_000,
  atOnce: 4,
  group: '{"schemas":["urn:ietf:params:scim:schemas:core:2.0:Group"],"displayName":"All"}',
};

const BENCH = '/mcp/bench';
const MEMBERS = 199_000;
/** Just below the largest body that a plain user may send. */
const WRONG_MEMBERS = 5_400;
const CHANGES = { count: 5_000, seconds: 60 };
const CHANGED_USERS = 20;
const FILES = 9_800;
const BATCHES = { loops: 64, targets: 20, messages: 50, revision: '2025-03-26' };
const LISTENERS = { users: 60, targets: 100, everyMs: 500, settleMs: 10_000 };
/** Nearly all the room that a user has for subscriptions. */
const SUBSCRIPTIONS = { loops: 4, resources: 250, characters: 256 };
const STRANGERS = { connections: 2_000, everyMs: 4_000, bytes: 16_000 };

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

interface Directory {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly group: string;
  post(kind: 'Users' | 'Groups', body: string): Promise<string>;
}

const scimUser = (name: string): string =>
  `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"externalId":"${name}","userName":"${name}@example.com",` +
  `"active":true,"emails":[{"value":"${name}@example.com","type":"work","primary":true}],"name":{"givenName":"A","familyName":"B"}}`;

const scimPatch = (operation: string): string =>
  `{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":[${operation}]}`;

/** A provider whose directory has sent one group without members. */
async function startDirectory({ api, origin, admin }: World): Promise<Directory> {
  const provider = { name: 'company', preset: 'openid', issuer: 'https://directory.example.com', client_id: 'bench' };
  const { id } = await api.call<{ id: string }>('POST', '/api/providers', admin, { ...provider, groups_from: 'directory' });
  const { token } = await api.call<{ token: string }>('POST', `/api/providers/${id}/scim/token`, admin, {});
  const path = '/scim/v2/company';
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/scim+json' };
  const post = async (kind: string, body: string): Promise<string> => {
    const answer = await fetch(`${origin}${path}/${kind}`, { method: 'POST', headers, body });
    const text = await answer.text();
    if (answer.status !== 201) throw new Error(`SCIM answered ${answer.status}: ${text}`);
    return (JSON.parse(text) as { id: string }).id;
  };
  return { path, headers, group: await post('Groups', SCIM.group), post };
}

/** Sends SCIM.users users, and returns their ids. */
async function makeUsers(post: Directory['post']): Promise<readonly string[]> {
  let next = 0;
  const ids: string[] = [];
  const loop = async (): Promise<void> => {
    while (next < SCIM.users) ids.push(await post('Users', scimUser(`user-${next++}`)));
  };
  await Promise.all(Array.from({ length: SCIM.atOnce }, loop));
  return ids;
}

/** Opens a stream of the user at `/mcp` and reads it until the gateway ends. */
async function listen(origin: string, token: string): Promise<void> {
  const url = `${origin}/mcp`;
  const { headers } = listening('/mcp', token);
  const answer = await fetch(url, { headers: { ...headers, 'mcp-session-id': await openSession(url, token) } });
  if (answer.status !== 200 || answer.body === null) throw new Error(`a stream at /mcp was answered with ${answer.status}`);
  answer.body.pipeTo(new WritableStream()).catch(() => undefined);
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
    name: 'batches',
    what: `a user posts batches of ${BATCHES.messages} lists of ${BATCHES.targets} targets at \`/mcp\` in ${BATCHES.loops} loops`,
    async prepare({ api, admin, neighbour: { token }, discard }) {
      const [bench] = await api.call<{ url: string }[]>('GET', '/api/targets', admin);
      for (let i = 1; i < BATCHES.targets; i++)
        await api.call('POST', '/api/targets', admin, { name: `bench-${i}`, url: bench?.url });
      const everyTool = { name: 'users call all tools', resource_type: 'tool', effect: 'allow', priority: 50, target_id: null };
      const subjects = [{ subject_type: 'role', subject_value: 'user' }];
      await api.call('POST', '/api/policies', admin, { ...everyTool, subjects });
      const { revision } = BATCHES;
      const lists = Array.from({ length: BATCHES.messages }, (_, id) => message('tools/list', {}, id));
      const steps = [posted('/mcp', token, `[${lists.join()}]`, revision)];
      return { workload: { loops: BATCHES.loops, first: opening('/mcp', token, revision), steps }, instead: { discard } };
    },
  },
  {
    name: 'subscriptions',
    what: `a user subscribes to ${(SUBSCRIPTIONS.loops * SUBSCRIPTIONS.resources).toLocaleString('en')} resources of a target of 2026-07-28, and changes one subscription in ${SUBSCRIPTIONS.loops} loops`,
    async prepare({ api, admin, neighbour: { token }, bad, discard }) {
      const { id } = await api.call<{ id: string }>('POST', '/api/targets', admin, { name: 'modern', url: `${bad}/modern` });
      const everything = {
        name: 'users use everything there',
        resource_type: 'all',
        effect: 'allow',
        priority: 50,
        target_id: id,
      };
      const subjects = [{ subject_type: 'role', subject_value: 'user' }];
      await api.call('POST', '/api/policies', admin, { ...everything, subjects });
      const path = '/mcp/modern';
      const changed = (method: string, uri: string): Step => inSession(path, token, `resources/${method}`, { uri });
      const { loops, resources, characters } = SUBSCRIPTIONS;
      const filled = (i: number): string => `file:///${i}/`.padEnd(characters, 'r');
      const first = Array.from({ length: resources }, (_, i) => changed('subscribe', filled(i)));
      const steps = ['subscribe', 'unsubscribe'].map((method) => changed(method, 'file:///changed'));
      return { workload: { loops, first: [...opening(path, token), ...first], steps }, instead: { discard } };
    },
  },
  {
    name: 'strangers',
    what: `${STRANGERS.connections.toLocaleString('en')} connections that send the bodies of logins slowly, without a token`,
    async prepare({ discard }, ms) {
      const headers = { 'content-type': 'application/json' };
      const body = `{"email":"${' '.repeat(STRANGERS.bytes)}"}`;
      const steps: Step[] = [{ method: 'POST', path: '/api/auth/login', headers, body, sendMs: ms }];
      const { connections: loops, everyMs } = STRANGERS;
      return { workload: { loops, everyMs, first: [], steps }, instead: { discard } };
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
    name: 'wrong bodies',
    what: `a plain user sends bodies of ${WRONG_MEMBERS.toLocaleString('en')} members to an operation that takes none, in four loops`,
    async prepare({ neighbour: { login }, discard }) {
      const body = JSON.stringify(members(WRONG_MEMBERS));
      const steps: Step[] = [{ method: 'POST', path: '/api/auth/logout', headers: jsonHeaders(login), body }];
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
    name: 'policy changes',
    what: `an administrator changes a policy twice a second, while ${LISTENERS.users} users have streams at \`/mcp\` of ${LISTENERS.targets} targets`,
    // They sign in before the measurement.
    env: { LOGIN_RATE_LIMIT: '100000' },
    async prepare({ api, admin, origin, bad, discard }) {
      for (let i = 0; i < LISTENERS.targets; i++) {
        await api.call('POST', '/api/targets', admin, { name: `mute-${i}`, url: `${bad}/mute` });
      }
      const everything = { name: 'users use everything', resource_type: 'all', effect: 'allow', priority: 50, target_id: null };
      const subjects = [{ subject_type: 'role', subject_value: 'user' }];
      const { id } = await api.call<{ id: string }>('POST', '/api/policies', admin, { ...everything, subjects });
      for (let i = 0; i < LISTENERS.users; i++) await listen(origin, (await api.logIn(`listener-${i}@example.com`)).token);
      // The gateway opens the sessions at the targets in the background.
      await sleep(LISTENERS.settleMs);
      const steps = [51, 52].map(
        (priority): Step => ({
          method: 'PUT',
          path: `/api/policies/${id}`,
          headers: jsonHeaders(admin),
          body: JSON.stringify({ priority }),
        }),
      );
      return { workload: { loops: 1, everyMs: LISTENERS.everyMs, first: [], steps }, instead: { discard } };
    },
  },
  {
    name: 'scim sync',
    what: `a directory sends users in ${SCIM.atOnce} loops, and makes each a member of a group`,
    // Long enough for 5,000 users and more.
    ms: 180_000,
    async prepare(world) {
      const { path, headers, group } = await startDirectory(world);
      const capture = { name: 'id', pattern: '"id":"([0-9a-f-]{36})"' };
      const member = scimPatch('{"op":"Add","path":"members","value":[{"value":"{id}"}]}');
      const steps: Step[] = [
        { method: 'POST', path: `${path}/Users`, headers, body: scimUser('user-{n}'), capture },
        { method: 'PATCH', path: `${path}/Groups/${group}`, headers, body: member },
      ];
      return { workload: { loops: SCIM.atOnce, first: [], steps }, instead: { discard: world.discard } };
    },
  },
  {
    name: 'scim group',
    what: `a directory renames a group of ${SCIM.users.toLocaleString('en')} members in a loop`,
    async prepare(world) {
      const { path, headers, group, post } = await startDirectory(world);
      const ids = await makeUsers(post);
      const members = JSON.stringify({
        schemas: ['urn:ietf:params:scim:schemas:core:2.0:Group'],
        displayName: 'All',
        members: ids.map((value) => ({ value })),
      });
      const answer = await fetch(`${world.origin}${path}/Groups/${group}`, { method: 'PUT', headers, body: members });
      await answer.arrayBuffer();
      if (answer.status !== 200) throw new Error(`SCIM answered ${answer.status} to the members`);
      const body = scimPatch('{"op":"Replace","path":"displayName","value":"All {n}"}');
      const steps: Step[] = [{ method: 'PATCH', path: `${path}/Groups/${group}`, headers, body }];
      return { workload: { loops: 1, first: [], steps }, instead: { discard: world.discard } };
    },
  },
  {
    name: 'user list',
    what: `an auditor reads the list of ${SCIM.users.toLocaleString('en')} users in four loops`,
    async prepare(world) {
      await makeUsers((await startDirectory(world)).post);
      const { api, admin, neighbour, discard } = world;
      await api.call('PUT', `/api/users/${neighbour.id}`, admin, { role: 'auditor' });
      const step: Step = { method: 'GET', path: '/api/users', headers: jsonHeaders(neighbour.token) };
      return { workload: { loops: 4, first: [], steps: [step] }, instead: { discard } };
    },
  },
  {
    name: 'small requests',
    what: 'a user asks REST for something small in 80 loops',
    async prepare({ neighbour: { token }, discard }) {
      const step: Step = { method: 'GET', path: '/api/credentials', headers: jsonHeaders(token) };
      return { workload: { loops: 80, first: [], steps: [step] }, instead: { discard } };
    },
  },
  {
    name: 'pages',
    what: 'a stranger asks for the sign-in page in 256 loops, without a token',
    async prepare({ discard }) {
      const step: Step = { method: 'GET', path: '/signin', headers: {} };
      return { workload: { loops: 256, first: [], steps: [step] }, instead: { discard } };
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
