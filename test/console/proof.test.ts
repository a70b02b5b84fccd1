/** Sensitive changes, for a user who signed in more than 10 minutes ago. */
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import express from 'express';
import type { Ask } from '../../src/console/ask.ts';
import { consoleRoutes } from '../../src/console/routes.ts';
import { openContext } from '../../src/http/context.ts';
import { FORM } from '../browser/browser.ts';

const ID = '0190163d-8694-739b-aea5-966c26f8ad90';

/** The console for one user, whose operations all give `body`. `asked`: the operations that it carried out. */
async function startConsole(t: ExecutionContext, body: object) {
  const asked: string[] = [];
  const ask: Ask = async (_page, method, path) => {
    asked.push(`${method} ${path}`);
    return { body: body as never, next: null, etag: undefined };
  };
  let isRecent = false;
  const principal = { role: 'admin', granted: { role: 'admin', groups: [] }, groups: [], limits: null, token_kind: 'browser' };
  const user = { id: ID, email: 'a@example.com', role: 'admin' };
  const sessions = {
    currentUser: async () =>
      ({ user, session: { id: ID }, isRecent, admission: { principal, snapshot: { rights: [] } } }) as never,
  };
  const publicUrl = 'http://gateway.example';
  const app = express();
  app.use((_req, res, next) => {
    openContext(res, { requestId: 'r' });
    next();
  });
  app.use('/console', consoleRoutes({ ask, pass: async () => undefined, publicUrl, sessions }));
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => void server.close());
  const send = async (path: string, form: Record<string, string>) => {
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, {
      ...{ method: 'POST', redirect: 'manual', body: new URLSearchParams(form) },
      headers: { 'content-type': FORM, origin: publicUrl, 'sec-fetch-site': 'same-origin' },
    });
    return { text: await answer.text(), to: answer.headers.get('location') ?? String(answer.status) };
  };
  const post = async (path: string, form: Record<string, string>): Promise<string> => (await send(path, form)).to;
  const signInAgain = (): void => {
    isRecent = true;
  };
  return { asked, post, send, signInAgain };
}

test('a sensitive change leads to the sign-in page first, and back to its own page', async (t) => {
  const { asked, post, signInAgain } = await startConsole(t, { name: 'mine' });
  const target = `/console/targets/${ID}`;
  const sensitive: readonly (readonly [string, Record<string, string>])[] = [
    [`${target}/delete`, { typed: 'mine' }],
    [`${target}/credentials`, { do: 'set', subject_type: 'default', type: 'bearer', value: 'x' }],
    [`${target}/credentials`, { do: 'delete', subject_type: 'default', key: 'Authorization', sure: 'yes' }],
    ['/console/users/new', { email: 'b@example.com', password: 'a long passphrase', role: 'admin', groups: '' }],
    [`/console/users/${ID}`, { do: 'disable', sure: 'yes' }],
    [`/console/users/${ID}/edit`, { role: 'admin', groups: '' }],
    [`/console/users/${ID}/tokens`, { do: 'token', id: ID, sure: 'yes' }],
    ['/console/tokens', { do: 'make', name: 'x', days: '' }],
    ['/console/rights', { do: 'give', right: 'read', subject_type: 'role', subject_value: 'x' }],
    ['/console/clients', { do: 'delete', id: ID, sure: 'yes' }],
  ];
  for (const [path, form] of sensitive)
    t.is(await post(path, form), `/signin?${new URLSearchParams({ return: path, again: 'yes' })}`);
  t.deepEqual(asked, []);
  signInAgain();
  for (const [path, form] of sensitive) t.notRegex(await post(path, form), /signin/);
  t.is(asked.filter((one) => !one.startsWith('GET')).length, sensitive.length);
});

test('what sends the calls of users to a server needs a recent sign-in, and the form is kept', async (t) => {
  const target = {
    name: 'mine',
    transport: 'streamable-http',
    url: 'https://one.example/mcp',
    description: 'x',
    environment: [],
  };
  const { asked, send, signInAgain } = await startConsole(t, { ...target, id: ID });
  const address = { transport: 'streamable-http', url: 'https://two.example/mcp' };
  const changes = (): string[] => asked.filter((one) => !one.startsWith('GET'));
  const sensitive: readonly (readonly [string, Record<string, string>])[] = [
    ['/console/targets/new', { name: 'other', ...address }],
    [`/console/targets/${ID}/edit`, { ...address, description: 'y' }],
    [`/console/targets/${ID}`, { do: 'enable' }],
    [`/console/targets/${ID}/settings`, { timeout: '5' }],
  ];
  for (const [path, form] of sensitive) {
    const { to, text } = await send(path, form);
    t.is(to, '403', path);
    for (const [name, value] of Object.entries(form))
      t.true(text.includes(`name="${name}" value="${value}"`), `${path}: ${name}`);
  }
  t.deepEqual(changes(), []);
  const { transport, url } = target;
  t.regex((await send(`/console/targets/${ID}/edit`, { transport, url, description: 'y' })).to, /\?done=saved/);
  t.regex((await send(`/console/targets/${ID}`, { do: 'disable' })).to, /\?done=disabled/);
  t.is(changes().length, 2);
  signInAgain();
  for (const [path, form] of sensitive) t.regex((await send(path, form)).to, /\?done=/);
});

for (const [verdict, isSensitive] of [
  ['looser', true],
  ['incomparable', true],
  ['unknown', true],
  ['stricter', false],
  ['equal', false],
] as const) {
  test(`a change of a policy that is judged ${verdict} ${isSensitive ? 'needs' : 'does not need'} a recent sign-in`, async (t) => {
    const policy = { id: ID, name: 'mine', managed_as: null, subjects: [] };
    // The list of targets is one of the operations.
    const { asked, post, send, signInAgain } = await startConsole(t, Object.assign([], { ...policy, verdict }));
    const form = { name: `"><b>x`, effect: 'allow', resource_type: 'tool', priority: '1', subjects: 'everyone', do: 'save' };
    const changes = (): string[] => asked.filter((one) => !/^GET|plan$/.test(one));
    const paths = [
      ...['new', `${ID}/edit`, `${ID}/delete`].map((path) => `/console/policies/${path}`),
      '/console/history/3/rollback',
      `/console/policies/${ID}/move`,
    ];
    for (const path of paths) {
      const { to, text } = await send(path, form);
      if (isSensitive) {
        t.is(to, '403');
        t.regex(
          text,
          /action="[^"]*".*name="name" value="&#34;&#62;&#60;b&#62;x".*name="do" value="save"/s,
          'the page keeps what was entered',
        );
        t.true(text.includes(`action="${path}"`) && /href="\/signin\?return=%2Fconsole%2Fproved&#38;again=yes"/.test(text));
      } else t.regex(to, /\?done=/);
    }
    t.is(changes().length, isSensitive ? 0 : paths.length);
    signInAgain();
    for (const path of paths) t.regex(await post(path, form), /\?done=/);
  });
}

test('tools of a target are allowed only after a recent sign-in, and the choice is kept', async (t) => {
  const tools = [{ name: 'x', description: null, read_only: true }];
  const { asked, send, signInAgain } = await startConsole(t, { name: 'mine', fault: null, tools, more: false, server: null });
  const path = `/console/targets/${ID}/allow`;
  const digest = createHash('sha256').update(JSON.stringify(tools)).digest('base64url').slice(0, 22);
  const form = { do: 'allow', choice: 'all', subject_type: 'everyone', digest };
  const { to, text } = await send(path, form);
  t.is(to, '403');
  t.regex(text, new RegExp(`name="digest" value="${digest}"`));
  t.false(asked.includes('POST /policies'));
  signInAgain();
  t.regex((await send(path, form)).to, /\?done=allowed$/);
  t.true(asked.includes('POST /policies'));
});

test('the page names every tool that its choice allows', async (t) => {
  const tools = Array.from({ length: 1_000 }, (_, index) => ({ name: `tool-${index}`, description: null, read_only: true }));
  const { send } = await startConsole(t, { name: 'mine', fault: null, tools, more: true, server: null });
  const { text } = await send(`/console/targets/${ID}/allow`, { do: 'try' });
  for (const { name } of tools) t.true(text.includes(`<code>${name}</code>`), name);
  t.regex(text, /The target has more tools than these 1000\. They stay closed\./);
});
