/** A real browser for tests: the Chromium of this machine, driven by playwright-core, which downloads none. */
import test, { type ExecutionContext } from 'ava';
import type { BrowserContext, BrowserContextOptions } from 'playwright-core';
import { findChromium, launchChromium } from './launch-chromium.ts';

/** Declares a test that needs a browser. Without one it is skipped, which the report of `npm test` lists; with `CI=true` it fails. */
export function browserTest(title: string, run: (t: ExecutionContext, open: Open) => Promise<void>): void {
  if (findChromium() === null && process.env['CI'] !== 'true') {
    test.skip(`${title} (needs Chromium: apt-get install chromium)`, () => undefined);
    return;
  }
  test.serial(title, async (t) => {
    t.timeout(120_000);
    const browser = await launchChromium();
    t.teardown(() => browser.close());
    await run(t, (options = {}) => browser.newContext({ reducedMotion: 'reduce', ...options }));
  });
}

/** Opens a browser profile of its own, without cookies. */
export type Open = (options?: BrowserContextOptions) => Promise<BrowserContext>;
