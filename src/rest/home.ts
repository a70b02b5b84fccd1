/** The page at the gateway's root address: what this is, and where to go. */
import { Router } from 'express';

const ABOUT = 'Portcullis is a policy-as-code gateway in front of MCP servers.';

const escaped = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => `&#${character.codePointAt(0)};`);

/** Returns the page, without scripts and styles. */
export function homePage(publicUrl: string): string {
  const mcp = escaped(`${publicUrl}/mcp`);
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Portcullis</title>
</head>
<body>
<main>
<h1>Portcullis</h1>
<p>${escaped(ABOUT)}</p>
<h2>Use it</h2>
<p>Give your MCP client the address <code>${mcp}</code>, or <code>${mcp}/&lt;target&gt;</code> for one server, and your API token.
Ask an administrator if you have no account.</p>
<h2>Operate it</h2>
<ul>
<li><a href="/api/openapi.json">REST API description (OpenAPI)</a></li>
<li><a href="/health/ready">Readiness of this replica</a></li>
<li><a href="/.well-known/jwks.json">Public keys that verify its tokens</a></li>
</ul>
</main>
</body>
</html>
`;
}

/** Serves the page to browsers and the same content as JSON to programs. */
export function homeRoutes(publicUrl: string): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const page = homePage(publicUrl);
  const document = { about: ABOUT, mcp: `${publicUrl}/mcp`, openapi: `${publicUrl}/api/openapi.json` };
  router.get('/', (req, res) => {
    res.vary('Accept');
    if (req.accepts(['json', 'html']) !== 'html') return void res.json(document);
    res.set('Content-Security-Policy', "default-src 'none'; frame-ancestors 'none'").type('html').send(page);
  });
  return router;
}
