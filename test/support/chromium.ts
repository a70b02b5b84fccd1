/** A real browser for tests: the Chromium of this machine, driven by playwright-core, which downloads none. */
import { accessSync, constants } from 'node:fs';
import test, { type ExecutionContext } from 'ava';
import { type BrowserContext, type BrowserContextOptions, chromium } from 'playwright-core';

const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

/** The path of a browser; null: there is none that may run. */
function findChromium(): string | null {
  const isThere = (path: string): boolean => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  };
  return PLACES.find(isThere) ?? null;
}

/** Declares a test that needs a browser. Without one it is skipped, which the report of `npm test` lists; with `CI=true` it fails. */
export function browserTest(title: string, run: (t: ExecutionContext, open: Open) => Promise<void>): void {
  const executablePath = findChromium();
  if (executablePath === null && process.env['CI'] !== 'true') {
    test.skip(`${title} (needs Chromium: apt-get install chromium)`, () => undefined);
    return;
  }
  test.serial(title, async (t) => {
    if (executablePath === null) return t.fail(`CI needs Chromium: none of ${PLACES.join(', ')} is there`);
    t.timeout(120_000);
    // The sandbox of Chromium refuses to start for root.
    const args = process.getuid?.() === 0 ? ['--no-sandbox'] : [];
    const browser = await chromium.launch({ executablePath, args });
    t.teardown(() => browser.close());
    await run(t, (options = {}) => browser.newContext({ reducedMotion: 'reduce', ...options }));
  });
}

/** Opens a browser profile of its own, without cookies. */
export type Open = (options?: BrowserContextOptions) => Promise<BrowserContext>;
