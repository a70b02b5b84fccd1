/** Bad neighbours that are targets, with a user who uses them. */
import { join } from 'node:path';
import type { Workload } from './workload.ts';
import { callsOf, inSession, listening, type Neighbour, opening, type World } from './world.ts';

const BAD = '/mcp/bad';
const ENDLESS = join(import.meta.dirname, 'endless.mjs');
const UNREAD_STREAMS = 40;
const UNREAD_ANSWERS = 60;
/** A client that is refused a stream waits before it asks again. Otherwise this would be a flood of requests. */
const RETRY_MS = 500;
const LISTING = { users: 4, loops: 3, targets: 100 };

const call = ({ neighbour: { token } }: World, name: string) =>
  inSession(BAD, token, 'tools/call', { name, arguments: { message: 'hello' } });

async function addBad({ addTarget, bad }: World, path: string): Promise<string> {
  const url = bad + path;
  await addTarget('bad', { url });
  return url;
}

/** Runs each loop in a separate session. */
const inSessions = ({ neighbour: { token } }: World, rest: Omit<Workload, 'first'>): Workload => ({
  ...rest,
  first: opening(BAD, token),
});

export const byTargets: readonly Neighbour[] = [
  {
    name: 'huge answers',
    what: 'a user calls a target in a loop that answers with 1.15 million members (15 MB)',
    async prepare(world) {
      const target = await addBad(world, '/good');
      return { workload: inSessions(world, { loops: 1, steps: [call(world, 'huge')] }), instead: { target } };
    },
  },
  {
    name: 'unread streams',
    what: `${UNREAD_STREAMS} clients that do not read their streams; the target sends \`Connection: close\` and then data without end`,
    async prepare(world) {
      const target = await addBad(world, '/endless');
      const steps = [{ ...call(world, 'endless'), unread: true }];
      return { workload: inSessions(world, { loops: UNREAD_STREAMS, everyMs: RETRY_MS, steps }), instead: { target } };
    },
  },
  {
    name: 'unread answers',
    what: `${UNREAD_ANSWERS} clients that do not read the 12 MiB that they asked for`,
    async prepare(world) {
      const target = await addBad(world, '/good');
      const steps = [{ ...call(world, 'text'), unread: true }];
      return { workload: inSessions(world, { loops: UNREAD_ANSWERS, everyMs: RETRY_MS, steps }), instead: { target } };
    },
  },
  {
    name: 'notifications',
    what: 'a target sends 2,000 notifications a second that the user may not read; the same user, at another target, is the victim',
    async prepare(world) {
      const target = await addBad(world, '/flood');
      const steps = [listening(BAD, world.neighbour.token)];
      return { workload: inSessions(world, { loops: 1, steps }), instead: { target }, victim: callsOf(world.neighbour) };
    },
  },
  {
    name: 'hung target',
    what: 'one target of `/mcp` never answers, while others open sessions there, list and call; so does the victim',
    // The victim opens five sessions a second. Of a hundred, the p99 would be the longest.
    ms: 60_000,
    async prepare(world) {
      const { neighbour, victim, origin, discard } = world;
      await addBad(world, world.phase === 'neighbour' ? '/hung' : '/good');
      const list = inSession('/mcp', neighbour.token, 'tools/list', {});
      const workload = { loops: 4, everyMs: 100, first: [], steps: [...opening('/mcp', neighbour.token), list] };
      const plan = { ...callsOf(victim), url: `${origin}/mcp`, kind: 'session', tool: 'bench__echo', perSecond: 5 } as const;
      return { workload, instead: { discard }, victim: plan };
    },
  },
  {
    name: 'large lists',
    what: `${LISTING.users} users, each in ${LISTING.loops} loops, list the tools of ${LISTING.targets} targets with 500 tools each at \`/mcp\``,
    async prepare({ api, admin, bad, discard }) {
      for (let i = 0; i < LISTING.targets; i++) {
        await api.call('POST', '/api/targets', admin, { name: `long-${i}`, url: `${bad}/long/${i}` });
      }
      await api.call('POST', '/api/policies', admin, {
        name: 'users call all tools',
        resource_type: 'tool',
        effect: 'allow',
        priority: 50,
        target_id: null,
        subjects: [{ subject_type: 'role', subject_value: 'user' }],
      });
      const given: { token: string }[] = [];
      for (let i = 0; i < LISTING.users; i++) {
        const login = (await api.logIn(`listing-${i}@example.com`)).token;
        const { token } = await api.call<{ token: string }>('POST', '/api/auth/tokens', login, { name: 'bench' });
        given.push({ token });
      }
      const first = opening('/mcp', '{token}');
      const steps = [inSession('/mcp', '{token}', 'tools/list', {})];
      return { workload: { given, loops: LISTING.users * LISTING.loops, first, steps }, instead: { discard } };
    },
  },
  {
    name: 'endless process',
    what: 'a stdio target writes notifications without end, 20 MB a second',
    env: { STDIO_ALLOWED: process.execPath },
    async prepare(world) {
      await world.addTarget('bad', { transport: 'stdio', command: process.execPath, args: [ENDLESS] });
      const workload = inSessions(world, { loops: 1, steps: [call(world, 'endless')] });
      return { workload, instead: { shell: `'${process.execPath}' '${ENDLESS}' now | cat >/dev/null` } };
    },
  },
];
