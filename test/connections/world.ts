/** A gateway with a target of users' own accounts, a real provider behind it, and people who use it. */
import test, { type ExecutionContext } from 'ava';
import { type Browser, browse, signIn } from '../browser/browser.ts';
import { apiToken, type Person, person, startGateway, type TestGateway } from '../support/gateway.ts';
import { post } from '../support/mcp.ts';
import {
  type AccountProvider,
  type AccountTargetServer,
  linkIn,
  OWN,
  type ProviderOptions,
  signInAt,
  startAccountTarget,
  startProvider,
} from '../support/upstreams/account-target.ts';

export interface User extends Person {
  /** API token. */
  readonly api: string;
  readonly browser: Browser;
}

export interface World {
  readonly gateway: TestGateway;
  readonly provider: AccountProvider;
  readonly server: AccountTargetServer;
  readonly admin: Person;
  readonly ann: User;
  readonly ben: User;
  readonly targetId: string;
}

type People = Pick<World, 'gateway' | 'admin' | 'ann' | 'ben'>;
type Teardowns = Pick<ExecutionContext, 'teardown'>;

async function people(t: Teardowns, databaseUrl: string | null): Promise<People> {
  const gateway = await startGateway(t as ExecutionContext, databaseUrl);
  const admin = await person(gateway, 'admin@example.com');
  const user = async (email: string): Promise<User> => {
    const one = await person(gateway, email);
    const browser = browse(gateway);
    await signIn(browser, one);
    return { ...one, api: (await apiToken(gateway, one)).token, browser };
  };
  const [ann, ben] = [await user('ann@example.com'), await user('ben@example.com')];
  await gateway.rest(201, 'POST', '/api/policies', {
    token: admin.token,
    body: { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] },
  });
  return { gateway, admin, ann, ben };
}

/** The gateway of the tests of one file that need nothing special. It lasts until the last test of the file. */
let shared: Promise<People> | null = null;
const afterwards: (() => unknown)[] = [];
test.after.always(async () => {
  for (const end of afterwards.reverse()) await end();
});

/** Each world has a provider and a target of its own. Those without `databaseUrl` share a gateway and its users, so they run serially. */
export async function world(
  t: ExecutionContext,
  options: ProviderOptions & { readonly modern?: boolean; readonly databaseUrl?: string } = {},
): Promise<World> {
  const provider = await startProvider(options);
  const server = await startAccountTarget(provider, options.modern !== true);
  t.teardown(async () => {
    await server.stop();
    await provider.stop().catch(() => undefined);
  });
  const { databaseUrl } = options;
  const isShared = databaseUrl === undefined;
  if (isShared) shared ??= people({ teardown: (end) => void afterwards.push(end) }, null);
  const { gateway, admin, ...users } = await (isShared && shared ? shared : people(t, databaseUrl ?? null));
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token: admin.token,
    body: { name: 'git', url: server.url, own_accounts: OWN },
  });
  if (isShared) {
    t.teardown(async () => {
      const { body: targets } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/targets', { token: admin.token });
      for (const { id } of targets) await gateway.rest(204, 'DELETE', `/api/targets/${id}`, { token: admin.token });
    });
  }
  return { gateway, provider, server, admin, ...users, targetId: body.id };
}

/** The user connects the account `who` on the page. Returns the page after the callback. */
export async function connect({ gateway, targetId }: World, { browser }: User, who: string) {
  const page = await browser.post(`/account/connections/${targetId}/connect`);
  const returned = await signInAt(linkIn(page.text), who, gateway.url);
  return browser.get(returned.pathname + returned.search);
}

let count = 0;
export const call = async (url: string, token: string, session: string | null, name = 'whoami') => {
  const message = { jsonrpc: '2.0', id: ++count, method: 'tools/call', params: { name, arguments: {} } };
  return (await post(url, token, message, session === null ? {} : { 'mcp-session-id': session })).message;
};
export const open = async (url: string, token: string, capabilities: object = {}) => {
  const params = { protocolVersion: '2025-11-25', capabilities, clientInfo: { name: 'test', version: '1' } };
  const answer = await post(url, token, { jsonrpc: '2.0', id: 'open', method: 'initialize', params });
  return { answer, session: answer.headers.get('mcp-session-id') };
};
export const textOf = (message: Awaited<ReturnType<typeof call>>): unknown =>
  (message?.result?.['content'] as { text: string }[] | undefined)?.[0]?.text ?? message?.error;
