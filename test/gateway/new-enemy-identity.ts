/**
 * The rights of the new-enemy test that hang on a sign-in: grants of OAuth clients, accounts of a company's provider and its
 * directory, browser sessions, and users' own accounts at targets. All replicas have the address of the first one as `PUBLIC_URL`.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import { COOKIE } from '../../src/browser/sessions.ts';
import { browse, signIn } from '../browser/browser.ts';
import { begin, codeOf, openTab, redeem, register } from '../oauth/support.ts';
import { GROUP, PATCH, USER } from '../scim/support.ts';
import { rest } from '../support/gateway.ts';
import { startProvider as startCompany } from '../support/provider.ts';
import { send } from '../support/rest.ts';
import { linkIn, OWN, signInAt, startAccountTarget, startProvider } from '../support/upstreams/account-target.ts';
import type { Answer, Enemy, Right } from './new-enemy.ts';

export const IDENTITY_KINDS = [
  'grant ended',
  'client disabled',
  'user with grants disabled',
  'user of a provider disabled',
  'provider disabled',
  'browser session ended',
  'own account disconnected',
  'SCIM user inactive',
  'SCIM group changed',
] as const;
export type IdentityKind = (typeof IDENTITY_KINDS)[number];

export interface Scene {
  readonly urls: readonly string[];
  /** Registers what ends with the run. */
  readonly teardown: (end: () => unknown) => void;
  /** Requests of the administrator, repeated until they succeed. */
  asAdmin<T>(at: string, method: string, path: string, body?: object): Promise<T>;
  /** Makes a policy that allows the user, or the group, every tool. */
  allow(value: string, type?: 'user' | 'group'): Promise<unknown>;
  /** The path of the target that a round calls. */
  pathOf(modern: boolean): string;
  callOnce(url: string, token: string, session: string | null, tool: string, ticket: string): Promise<Answer>;
}

/** Repeats a sign-in of several steps: one of them may meet an outage. */
async function untilDone<T>(work: () => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await work();
    } catch (error) {
      if (tried === 20) throw error;
      await sleep(100);
    }
  }
}

/** A user's access tokens (at+jwt) of one client, one grant for each of the two targets. */
async function grants(scene: Scene, who: Enemy) {
  const [publicUrl = ''] = scene.urls;
  const ports = scene.urls.map((url) => Number(new URL(url).port));
  let turn = 0;
  const tab = openTab(publicUrl, () => ports[turn++ % ports.length] ?? 0);
  const { body: client } = await untilDone(() => register(publicUrl, { client_name: `of ${who.id}` }));
  const held = new Map<boolean, { readonly token: string; readonly id: string }>();
  const list = () => rest<{ id: string; resources: string[] }[]>(publicUrl, 'GET', '/api/auth/grants', { token: who.login });
  const approve = (at: string, modern: boolean): Promise<void> =>
    untilDone(async () => {
      const resource = publicUrl + scene.pathOf(modern);
      const flow = begin(publicUrl, client.client_id, { resource });
      const code = codeOf(await tab.answer(await tab.follow(flow.authorizeUrl)));
      const { body } = await redeem(at, flow, code);
      const { body: all } = await list();
      const id = all.find(({ resources }) => resources.includes(resource))?.id;
      if (id === undefined || body.access_token === undefined) throw new Error(`no grant: ${JSON.stringify([body, all])}`);
      held.set(modern, { token: body.access_token, id });
    });
  const both = (at: string) => Promise.all([approve(at, false), approve(at, true)]);
  const signInAgain = () => untilDone(() => tab.signIn(who));
  await signInAgain();
  await both(publicUrl);
  const of = (modern: boolean) => held.get(modern) ?? { token: '', id: '' };
  return { client, approve, both, signInAgain, of };
}

/** A company's provider, and access tokens of one of its users. */
async function company(scene: Scene, sub: string, more: object = {}) {
  const provider = await startCompany({ teardown: scene.teardown } as ExecutionContext);
  const [at = ''] = scene.urls;
  const name = `p-${randomUUID().slice(0, 8)}`;
  const { id } = await scene.asAdmin<{ id: string }>(at, 'POST', '/api/providers', {
    ...{ name, preset: 'openid', issuer: provider.issuer, client_id: 'the-gateway', groups_claim: null, clock_skew_seconds: 0 },
    tokens: { audiences: ['api://portcullis'] },
    ...more,
  });
  let token = await provider.token({ sub });
  return {
    ...{ id, name },
    token: () => token,
    renew: async () => {
      token = await provider.token({ sub });
    },
  };
}

/** A user of a company's provider, who presents access tokens of that provider. */
async function employee(scene: Scene) {
  const own = await company(scene, 'alice');
  const { body: user } = await rest<{ id: string }>(scene.urls[0] ?? '', 'GET', '/api/auth/me', { token: own.token() });
  await scene.allow(user.id);
  return { ...own, user };
}

/** A user whom the company's directory has sent, with a group. */
async function directoryUser(scene: Scene, kind: 'SCIM user inactive' | 'SCIM group changed'): Promise<Right> {
  const subject = 'id-alice';
  const own = await company(scene, subject, { groups_from: 'directory' });
  const [first = ''] = scene.urls;
  const { token } = await scene.asAdmin<{ token: string }>(first, 'POST', `/api/providers/${own.id}/scim/token`);
  const send = (at: string, method: string, path: string, body: object): Promise<{ id: string }> =>
    untilDone(async () => {
      const answer = await fetch(`${at}/scim/v2/${own.name}${path}`, {
        method,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/scim+json' },
        body: JSON.stringify(body),
      });
      const text = await answer.text();
      if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
      return (text === '' ? {} : JSON.parse(text)) as { id: string };
    });
  const patch = (at: string, path: string, operation: object) =>
    send(at, 'PATCH', path, { schemas: [PATCH], Operations: [operation] });
  const userName = 'alice@example.com';
  const { id } = await send(first, 'POST', '/Users', { schemas: [USER], externalId: subject, userName, active: true });
  const displayName = `staff of ${own.name}`;
  const group = await send(first, 'POST', '/Groups', { schemas: [GROUP], displayName, members: [{ value: id }] });
  await scene.allow(displayName, 'group');
  const active = (value: boolean) => (at: string) => patch(at, `/Users/${id}`, { op: 'replace', path: 'active', value });
  const members = (operation: object) => (at: string) => patch(at, `/Groups/${group.id}`, operation);
  const [revoke, grant] =
    kind === 'SCIM user inactive'
      ? [active(false), active(true)]
      : [
          members({ op: 'remove', path: `members[value eq "${id}"]` }),
          members({ op: 'add', path: 'members', value: [{ value: id }] }),
        ];
  return {
    token: own.token,
    revoke,
    async restore(at) {
      await grant(at);
      await own.renew();
    },
  };
}

async function browserSession(scene: Scene, who: Enemy): Promise<Right> {
  const [publicUrl = ''] = scene.urls;
  const { host } = new URL(publicUrl);
  const signedIn = async (at: string): Promise<string> => {
    const browser = browse({ url: at }, publicUrl);
    await untilDone(() => signIn(browser, who));
    return browser.cookie() ?? '';
  };
  let cookie = await signedIn(publicUrl);
  await scene.allow(who.id);
  return {
    async revoke(at) {
      const { body } = await rest<{ id: string }[]>(publicUrl, 'GET', '/api/auth/browser-sessions', { token: who.login });
      await scene.asAdmin(at, 'DELETE', `/api/auth/browser-sessions/${body[0]?.id}`);
    },
    async restore(at) {
      cookie = await signedIn(at);
    },
    async attempt(url) {
      const headers = { host, cookie: `${COOKIE}=${cookie}`, accept: 'text/html', 'sec-fetch-site': 'none' };
      const page = await send(Number(new URL(url).port), 'GET', '/account', { headers }).catch(() => null);
      if (page?.status === 200) return 'allowed';
      return page !== null && /\/signin\b/.test(String(page.headers['location'])) ? 'denied' : 'error';
    },
  };
}

async function ownAccount(scene: Scene, who: Enemy): Promise<Right> {
  const provider = await startProvider();
  const server = await startAccountTarget(provider);
  scene.teardown(async () => {
    await server.stop();
    await provider.stop();
  });
  const [publicUrl = ''] = scene.urls;
  const name = `own-${randomUUID().slice(0, 8)}`;
  const target = await scene.asAdmin<{ id: string }>(publicUrl, 'POST', '/api/targets', {
    ...{ name, transport: 'streamable-http', url: server.url, own_accounts: OWN },
  });
  const browser = browse({ url: publicUrl }, publicUrl);
  await untilDone(() => signIn(browser, who));
  const connect = (): Promise<void> =>
    untilDone(async () => {
      const page = await browser.post(`/account/connections/${target.id}/connect`);
      const returned = await signInAt(linkIn(page.text), 'ann', publicUrl);
      const done = await browser.get(returned.pathname + returned.search);
      if (done.status >= 400) throw new Error(`not connected: ${done.status} ${done.text}`);
    });
  const path = `/mcp/${name}`;
  await scene.allow(who.id);
  await connect();
  return {
    path: () => path,
    async revoke(at) {
      const own = await scene.asAdmin<{ id: string }[]>(publicUrl, 'GET', `/api/targets/${target.id}/connections`);
      await scene.asAdmin(at, 'DELETE', `/api/targets/${target.id}/connections/${own[0]?.id}`);
    },
    restore: connect,
    attempt: (url, session, ticket) => scene.callOnce(url + path, who.token, session, 'whoami', ticket),
    hasReached: (ticket) => server.tickets.delete(ticket),
  };
}

export async function identityRight(kind: IdentityKind, who: Enemy, scene: Scene): Promise<Right> {
  const enable = (path: string, enabled: boolean) => (at: string) => scene.asAdmin(at, 'PUT', path, { enabled });
  switch (kind) {
    case 'grant ended': {
      await scene.allow(who.id);
      const own = await grants(scene, who);
      return {
        token: (modern) => own.of(modern).token,
        revoke: (at, modern) => scene.asAdmin(at, 'DELETE', `/api/auth/grants/${own.of(modern).id}`),
        restore: (at, modern) => own.approve(at, modern),
      };
    }
    case 'client disabled': {
      await scene.allow(who.id);
      const own = await grants(scene, who);
      const [at = ''] = scene.urls;
      const clients = await scene.asAdmin<{ id: string; client_id: string }[]>(at, 'GET', '/api/clients?limit=1000');
      const path = `/api/clients/${clients.find(({ client_id }) => client_id === own.client.client_id)?.id}`;
      return {
        token: (modern) => own.of(modern).token,
        revoke: enable(path, false),
        async restore(there) {
          await enable(path, true)(there);
          await own.both(there);
        },
      };
    }
    case 'user with grants disabled': {
      await scene.allow(who.id);
      const own = await grants(scene, who);
      const path = `/api/users/${who.id}`;
      return {
        token: (modern) => own.of(modern).token,
        revoke: enable(path, false),
        async restore(at) {
          await enable(path, true)(at);
          await own.signInAgain();
          await own.both(at);
        },
      };
    }
    case 'user of a provider disabled':
    case 'provider disabled': {
      const own = await employee(scene);
      const path = kind === 'provider disabled' ? `/api/providers/${own.id}` : `/api/users/${own.user.id}`;
      return {
        token: own.token,
        revoke: enable(path, false),
        async restore(at) {
          await enable(path, true)(at);
          await own.renew();
        },
      };
    }
    case 'SCIM user inactive':
    case 'SCIM group changed':
      return directoryUser(scene, kind);
    case 'browser session ended':
      return browserSession(scene, who);
    case 'own account disconnected':
      return ownAccount(scene, who);
  }
}
