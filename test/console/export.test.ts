/** The audit log as a file, from its page. */
import { readFileSync } from 'node:fs';
import test from 'ava';
import { browserTest } from '../support/chromium.ts';
import { rest } from '../support/gateway.ts';
import { scene } from './scene.ts';
import { start } from './start.ts';

test.serial('the page of the log gives the same file as the operation, for its filter', async (t) => {
  const w = await scene(t);
  const [all, none] = [await w.browser(w.admin), await w.browser(w.user)];
  const exported = async (query: string): Promise<string> => {
    const asked = await fetch(`${w.gateway.url}/api/logs/export?${query}`, {
      headers: { authorization: `Bearer ${w.admin.token}` },
    });
    return asked.text();
  };
  for (const query of ['format=csv', 'format=ndjson&effect=deny', 'format=csv&resource_name=get-env']) {
    // Outcomes are written after their answers, so the log may still grow.
    let [before, file, after] = ['', await all.get(`/console/log/export?${query}`), await exported(query)];
    while (before !== after)
      [before, file, after] = [after, await all.get(`/console/log/export?${query}`), await exported(query)];
    t.is(file.status, 200, query);
    t.regex(file.headers['content-disposition'] ?? '', /^attachment; filename="audit-.*\.(csv|ndjson)"$/);
    t.is(file.headers['x-content-type-options'], 'nosniff');
    t.is(file.headers['cross-origin-resource-policy'], 'same-origin');
    t.regex(file.text, /get-env/);
    t.is(file.text, after, query);
  }
  t.is((await none.get('/console/log/export?format=csv')).status, 403);
  const wrong = await all.get('/console/log/export?format=xml');
  t.is(wrong.status, 400);
  t.regex(wrong.text, /<h1>This does not work<\/h1>.*must be ndjson or csv/s);
  t.is(wrong.headers['content-disposition'], undefined);
  t.regex((await all.get('/console/log?effect=deny')).text, /href="\/console\/log\/export\?format=csv&#38;effect=deny"/);
  t.is((await rest(w.gateway.url, 'GET', '/console/log/export?format=csv')).status, 303, 'a stranger gets the sign-in page');
});

browserTest('a browser saves the export of what the filter finds', async (t, open) => {
  const w = await scene(t);
  const page = await start(t, await open({ javaScriptEnabled: false }), w.gateway.url, w.admin);
  await page.goto(`${w.gateway.url}/console/log?resource_name=echo`);
  const link = page.getByRole('link', { name: 'Download CSV' });
  await link.focus();
  const [file] = await Promise.all([page.waitForEvent('download'), page.keyboard.press('Enter')]);
  t.regex(file.suggestedFilename(), /^audit-.*\.csv$/);
  const text = readFileSync(await file.path(), 'utf8');
  t.regex(text, /echo/);
  t.notRegex(text, /get-env/);
});
