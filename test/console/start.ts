/** The console in a real browser. */
import type { ExecutionContext } from 'ava';
import type { BrowserContext, Page } from 'playwright-core';
import type { Person } from '../support/gateway.ts';

/** Fails the test at the end if the browser has complained, for example about a blocked style. */
export async function start(t: ExecutionContext, context: BrowserContext, url: string, who: Person): Promise<Page> {
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of 40[034]/.test(message.text())) t.fail(`${page.url()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => t.fail(String(error)));
  await page.goto(`${url}/console`);
  await page.getByLabel('E-mail').fill(who.email);
  await page.getByLabel('Password').fill(who.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(`${url}/console/overview`);
  return page;
}

/** What a person does with the keyboard alone. */
export const keyboard = (page: Page) => ({
  async press(role: 'link' | 'button', name: string | RegExp): Promise<void> {
    await page.getByRole(role, { name }).first().focus();
    await page.keyboard.press('Enter');
  },
  async enter(label: string, text: string): Promise<void> {
    await page.getByLabel(label, { exact: true }).focus();
    await page.keyboard.press('ControlOrMeta+a');
    await page.keyboard.type(text);
  },
});
