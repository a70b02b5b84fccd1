/** A sign-in in a real browser, which enforces the policies of the pages. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { browserTest } from '../support/chromium.ts';
import { world } from '../support/world.ts';
import { begin, initialize, redeem, register } from './support.ts';

for (const javaScriptEnabled of [true, false]) {
  browserTest(
    `a person signs in and allows a program on the same computer ${javaScriptEnabled ? 'with' : 'without'} JavaScript`,
    async (t, open) => {
      const w = await world(t);
      await w.allow({ name: 'all' });
      const { url } = w.gateway;
      const program = createServer((_req, res) => res.setHeader('Content-Type', 'text/html').end('<h1>Back at the program</h1>'));
      await new Promise<void>((resolve) => program.listen(0, '127.0.0.1', resolve));
      t.teardown(() => {
        program.closeAllConnections();
        program.close();
      });
      const redirectUri = `http://127.0.0.1:${(program.address() as AddressInfo).port}/callback`;
      // A program does not know its port when it registers.
      const { body: client } = await register(url, { redirect_uris: ['http://127.0.0.1/callback'], client_name: 'A program' });
      const flow = begin(url, client.client_id, { redirectUri });
      const page = await (await open({ javaScriptEnabled })).newPage();
      page.on('console', (message) => {
        if (message.type() === 'error' && !/favicon|status of 404/.test(message.text())) t.fail(message.text());
      });

      await page.goto(flow.authorizeUrl);
      await page.getByLabel('E-mail').fill(w.user.email);
      await page.getByLabel('Password').fill(w.user.password);
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Allow A program to act for you?' }).waitFor();
      t.true(await page.getByText('a program on this computer', { exact: true }).isVisible());
      await page.getByRole('button', { name: 'Allow' }).click();
      await page.getByRole('heading', { name: 'Back at the program' }).waitFor();
      const back = new URL(page.url());
      t.is(back.searchParams.get('state'), flow.state);
      const { body } = await redeem(url, flow, back.searchParams.get('code') ?? '');
      t.is((await initialize(w.mcp, body.access_token)).status, 200);

      await page.goto(`${url}/account`);
      await page.getByRole('button', { name: 'End the access of A program' }).click();
      await page.getByText('The access of the application is ended.').waitFor();
      t.is((await initialize(w.mcp, body.access_token)).status, 401);
    },
  );
}

browserTest('a web application that opens the sign-in in a pop-up is told how it ended', async (t, open) => {
  const w = await world(t);
  await w.allow({ name: 'all' });
  const { url } = w.gateway;
  const application = createServer((req, res) => {
    const isCallback = req.url?.startsWith('/callback') === true;
    res.setHeader('Content-Type', 'text/html');
    res.end(
      isCallback
        ? '<script>opener.postMessage(location.search, location.origin)</script>'
        : '<h1>waiting</h1><script>onmessage = ({ data }) => { document.querySelector("h1").textContent = data }</script>',
    );
  });
  await new Promise<void>((resolve) => application.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    application.closeAllConnections();
    application.close();
  });
  const origin = `http://127.0.0.1:${(application.address() as AddressInfo).port}`;
  const redirectUri = `${origin}/callback`;
  const { body: client } = await register(url, { redirect_uris: [redirectUri], client_name: 'A web application' });
  const flow = begin(url, client.client_id, { redirectUri });
  const page = await (await open()).newPage();
  await page.goto(origin);
  const [popUp] = await Promise.all([
    page.waitForEvent('popup'),
    page.evaluate(`void window.open(${JSON.stringify(flow.authorizeUrl)})`),
  ]);
  await popUp.getByLabel('E-mail').fill(w.user.email);
  await popUp.getByLabel('Password').fill(w.user.password);
  await popUp.getByRole('button', { name: 'Sign in' }).click();
  await popUp.getByRole('button', { name: 'Allow' }).click();
  await page.getByText('code=').waitFor();
  t.regex((await page.textContent('h1')) ?? '', new RegExp(flow.state));
});
