/** What axe-core finds on a page, and whether the page fits the window, at three widths and in both colour schemes. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type { ExecutionContext } from 'ava';
import type { Page } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const WIDTHS = [1440, 768, 320];

interface Violation {
  readonly id: string;
  readonly nodes: readonly { readonly html: string }[];
}

const OPTIONS = {
  light: { resultTypes: ['violations'] },
  // The style sheets have `light-dark()` for colours, and no other difference between the schemes.
  dark: { resultTypes: ['violations'], runOnly: ['color-contrast', 'link-in-text-block'] },
} as const;

/** Fails the test for each violation. The page is loaded once: only CSS depends on widths and schemes. `name` stands for the page. */
export async function assertAccessible(t: ExecutionContext, page: Page, name: string): Promise<void> {
  await page.evaluate(AXE);
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: 900 });
      const place = `${name}, ${colorScheme}, ${width} px`;
      t.true((await page.evaluate<number>('document.documentElement.scrollWidth')) <= width, place);
      const violations = await page.evaluate<readonly Violation[]>(
        `axe.run(${JSON.stringify(OPTIONS[colorScheme])}).then(({ violations }) => violations)`,
      );
      t.deepEqual(
        violations.map(({ id, nodes }) => `${place}: ${id} ${nodes[0]?.html}`),
        [],
      );
    }
  }
}
