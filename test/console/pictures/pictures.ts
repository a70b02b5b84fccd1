/**
 * `npm run pictures`: makes a picture of every page of the console, in light and dark, with the data of an invented company. It writes them
 * to the folder `pictures`, or to the one that it is given. `--docs` makes only those that the documents show, in `docs/images`.
 * `--width=320` makes them as a phone shows them. `--only=log` makes those whose path contains this text.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { BrowserContext, Page } from 'playwright-core';
import { type Run, startGateway } from '../../support/gateway.ts';
import { launchChromium } from '../../support/launch-chromium.ts';
import { startEverything } from '../../support/upstreams/everything.ts';
import { type Company, startCompany } from './company.ts';

const { values: options, positionals } = parseArgs({
  options: {
    docs: { type: 'boolean', default: false },
    width: { type: 'string', default: '1280' },
    only: { type: 'string', default: '' },
  },
  allowPositionals: true,
});
const folder = options.docs ? 'docs/images' : (positionals[0] ?? 'pictures');
mkdirSync(folder, { recursive: true });
const viewport = { width: Number(options.width), height: 800 };

const ends: (() => unknown)[] = [];
const run: Run = {
  teardown: (end) => void ends.push(end),
  fail: (message = 'failed') => {
    throw new Error(message);
  },
};

const sizeOf = (page: Page): Promise<number> => page.evaluate<number>('document.documentElement.scrollHeight');

/** `whole`: the picture is as high as the page, up to three windows. */
async function shoot(page: Page, name: string, whole = true): Promise<void> {
  await page.evaluate('document.fonts.ready');
  const height = whole ? Math.min(Math.max(await sizeOf(page), viewport.height), 3 * viewport.height) : viewport.height;
  await page.setViewportSize({ ...viewport, height });
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await page.setViewportSize(viewport);
}

async function signIn(page: Page, url: string, who: { readonly email: string; readonly password: string }): Promise<void> {
  await page.goto(`${url}/console`);
  await page.getByLabel('E-mail').fill(who.email);
  await page.getByLabel('Password').fill(who.password);
  await page.getByRole('button', { name: /^Sign in$|^Make the administrator$/ }).click();
  await page.waitForURL(/\/console\/overview/);
}

interface Item {
  readonly id: string;
  readonly name: string;
}

/** The paths of all pages of the console, with ids where they have one. */
async function pathsOf({ gateway, admin, targets }: Company): Promise<string[]> {
  const all = async <T>(path: string): Promise<T> =>
    (await gateway.rest<T>(200, 'GET', `/api/${path}`, { token: admin.token })).body;
  const idOf = (items: readonly Item[], name: string): string | undefined => items.find((item) => item.name === name)?.id;
  const policies = await all<Item[]>('policies');
  // Pages show the analysis once it is made.
  await all('policies/lint?kept=yes');
  const users = await all<{ id: string; email: string }[]>('users');
  const user = users.find(({ email }) => email.startsWith('kofi'))?.id;
  const decision = async (query: string) => (await all<Item[]>(`logs?limit=1&${query}`))[0]?.id;
  const issues = idOf(policies, 'Developers work on issues');
  const file =
    'name: Analysts delete tables\nresource_type: tool\nresource_pattern: ^drop_table$\neffect: allow\npriority: 50\nsubjects:\n  - group: analysts\n';
  const body = { files: { 'drop.yaml': file } };
  await gateway.rest(201, 'PUT', '/api/policies/drafts/analysts', { token: admin.token, body });
  const github = targets.get('github');
  return [
    ...[
      'overview',
      'overview?range=month',
      'findings',
      'search?q=issue',
      'policies',
      'policies?effect=deny',
      'policies?text=nothing',
    ],
    ...[`policies/${issues}`, `policies/${issues}/edit`, `policies/${issues}/delete`, 'policies/new', 'policies/new?as=yaml'],
    ...[
      'drafts',
      'drafts/analysts',
      `policies/${issues}/move?position=1`,
      'history/compare?from=1',
      'history/2/rollback',
      'sessions',
    ],
    ...[
      'access/why?who=group%3Adevelopers&target=github&resource_type=tool&resource_name=push_files',
      `targets/${github}/settings`,
    ],
    ...['history', 'history/2', 'targets', 'targets/new', `targets/${github}`, `targets/${targets.get('crm')}`],
    ...['edit', 'allow', 'credentials', 'delete'].map((page) => `targets/${github}/${page}`),
    ...['users', 'users/new', `users/${user}`, `users/${user}/edit`, `users/${user}/tokens`],
    ...['access', 'access?rows=users', 'access?target=github&compare=1', 'access?who=group%3Adevelopers', 'rights', 'clients'],
    ...['log', 'log?effect=deny&target_name=github', `log/${await decision('effect=deny&reason=default')}`],
    `log/${await decision('effect=deny&reason=matched')}?again=yes`,
    ...[`log/${await decision('effect=deny&reason=matched')}`, `log/${await decision('effect=allow')}`, 'changes', 'replicas'],
    ...['demand', 'keys'],
    ...['mine', 'mine/github', 'connect', 'tokens', 'denied', 'policies/none'],
  ];
}

const nameOf = (path: string): string =>
  path
    .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, 'one')
    .replaceAll(/[^a-z0-9]+/g, '-')
    .replaceAll(/^-|-$/g, '');

async function everyPage(open: (colorScheme: 'light' | 'dark') => Promise<BrowserContext>): Promise<void> {
  const company = await startCompany(run);
  const paths = (await pathsOf(company)).filter((path) => path.includes(options.only));
  for (const scheme of ['light', 'dark'] as const) {
    const page = await (await open(scheme)).newPage();
    await page.goto(`${company.gateway.url}/signin`);
    await shoot(page, `signin-${scheme}`);
    await signIn(page, company.gateway.url, company.admin);
    const seen = new Set<string>();
    for (const path of ['../account', '../account/connections', ...paths]) {
      await page.goto(new URL(path, `${company.gateway.url}/console/`).href);
      const name = nameOf(path);
      await shoot(page, `${seen.has(name) ? `${name}-${seen.size}` : name}-${scheme}`);
      seen.add(name);
    }
  }
}

/** The pictures of the documents: the way from an empty gateway to its log. */
async function forDocuments(open: (colorScheme: 'light' | 'dark') => Promise<BrowserContext>): Promise<void> {
  const everything = await startEverything();
  run.teardown(() => everything.stop());
  const gateway = await startGateway(run);
  const page = await (await open('light')).newPage();
  await signIn(page, gateway.url, { email: 'first@example.com', password: 'a long passphrase' });
  await page.goto(`${gateway.url}/console/targets/new`);
  await page.getByLabel(/^Name/).fill('everything');
  await page.getByLabel(/^URL/).fill(everything.url);
  await page.getByRole('button', { name: 'Add the target' }).click();
  await page.getByRole('button', { name: 'Try the target' }).click();
  await page.getByText('The target works').waitFor();
  await shoot(page, 'allow-tools', false);
  const company = await startCompany(run, false);
  await signIn(page, company.gateway.url, company.admin);
  await page.goto(`${company.gateway.url}/console/log`);
  await shoot(page, 'audit-log', false);
  const [row] = (
    await company.gateway.rest<Item[]>(200, 'GET', '/api/logs?limit=1&effect=deny&reason=matched&target_name=kubernetes-prod', {
      token: company.admin.token,
    })
  ).body;
  await page.goto(`${company.gateway.url}/console/log/${row?.id}`);
  await shoot(page, 'why-denied', false);
}

const browser = await launchChromium();
try {
  const open = (colorScheme: 'light' | 'dark') =>
    browser.newContext({ colorScheme, viewport, reducedMotion: 'reduce', locale: 'en-GB', timezoneId: 'UTC' });
  await (options.docs ? forDocuments : everyPage)(open);
  console.log(`The pictures are in ${folder}.`);
} finally {
  await browser.close();
  for (const end of ends.reverse()) await end();
}
