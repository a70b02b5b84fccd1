/** The page at the gateway's root address: what this is, and where to go. */
import { Router } from 'express';
import { html } from '../browser/html.ts';
import { type Page, sendPage } from '../browser/page.ts';

const ABOUT = 'Portcullis is a policy-as-code gateway in front of MCP servers.';

/** Returns the page. It is the same for everybody. */
export function homePage(publicUrl: string): Page {
  const mcp = `${publicUrl}/mcp`;
  return {
    title: 'Welcome',
    body: html`<h1>Portcullis</h1>
<p>${ABOUT}</p>
<section class="stack tight"><h2>Use it</h2>
<p>Give your MCP client the address <code>${mcp}</code>, or <code>${mcp}/&lt;target&gt;</code> for one server. The client opens a browser, where
you sign in and allow the client to act for you. Ask an administrator if you have no account.</p>
<p>On <a href="/account">your account page</a> you see which applications may act for you. For programs that cannot open a browser, make
<a href="/console/tokens">API tokens</a>.</p></section>
<section class="stack tight"><h2>Operate it</h2>
<ul>
<li><a href="/console">Console</a>: policies, decisions, targets and users</li>
<li><a href="/api/openapi.json">REST API description (OpenAPI)</a></li>
<li><a href="/health/ready">Readiness of this replica</a></li>
<li><a href="/.well-known/jwks.json">Public keys that verify its tokens</a></li>
</ul></section>`,
  };
}

/** Serves the page to browsers and the same content as JSON to programs. */
export function homeRoutes(publicUrl: string): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const page = homePage(publicUrl);
  const document = { about: ABOUT, mcp: `${publicUrl}/mcp`, openapi: `${publicUrl}/api/openapi.json` };
  router.get('/', (req, res) => {
    res.vary('Accept');
    if (req.accepts(['json', 'html']) !== 'html') return void res.json(document);
    sendPage(res, 200, page);
  });
  return router;
}
