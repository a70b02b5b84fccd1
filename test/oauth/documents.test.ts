/** Metadata documents of clients: what a sign-in with one shows. `test/base/network/outbound.test.ts` has the addresses that are read. */

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { createSqlite } from '../support/databases/sqlite.ts';
import { person, rest, type TestGateway } from '../support/gateway.ts';
import { freePort } from '../support/port.ts';
import { dataDir, runGateway } from '../support/process.ts';
import { begin, codeOf, openTab, payloadOf, redeem, refresh, register } from './support.ts';

const secrets = mkdtempSync(join(tmpdir(), 'portcullis-tls-'));
const [key, cert] = [join(secrets, 'key.pem'), join(secrets, 'cert.pem')];
test.before(() => {
  execFileSync('openssl', [
    ...[
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:prime256v1',
      '-nodes',
      '-days',
      '2',
      '-subj',
      '/CN=localhost',
    ],
    ...['-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1', '-keyout', key, '-out', cert],
  ]);
});
test.after.always(() => rmSync(secrets, { recursive: true, force: true }));

async function serve(t: ExecutionContext, handle: RequestListener): Promise<string> {
  const server: Server = createServer({ key: readFileSync(key), cert: readFileSync(cert) }, handle);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `https://localhost:${(server.address() as AddressInfo).port}`;
}

test.serial(
  'a client with a metadata document signs in without registration, and the page names the host of the document',
  async (t) => {
    let change: object = {};
    let size = 0;
    let status = 200;
    let reads = 0;
    const url = await serve(t, (req, res) => {
      reads++;
      const document = {
        client_id: `${url}${req.url}`,
        client_name: 'A client with a document',
        redirect_uris: ['https://client.example/callback'],
        grant_types: ['authorization_code', 'refresh_token', 'something-else'],
        response_types: ['code'],
        token_endpoint_auth_method: 'none',
        scope: 'openid mcp whatever',
        ...change,
        filler: 'x'.repeat(size),
      };
      res.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' }).end(JSON.stringify(document));
    });
    const { url: database, drop } = await createSqlite();
    t.teardown(drop);
    const { url: origin } = await runGateway(t, {
      DATABASE_URL: database,
      DATA_DIR: dataDir(t),
      LOG_LEVEL: 'error',
      NODE_EXTRA_CA_CERTS: cert,
      OAUTH_DOCUMENT_ADDRESSES: '127.0.0.0/8,::1',
      CLIENT_REGISTRATION: 'closed',
      CLIENT_REGISTRATION_RATE_LIMIT: '30',
    });
    const gateway = {
      url: origin,
      rest: async (_expected: number, method: string, path: string, options?: object) => rest(origin, method, path, options),
    } as unknown as TestGateway;
    const user = await person(gateway, 'user@example.com');
    const tab = openTab(origin);
    await tab.signIn(user);
    const clientId = `${url}/client.json`;
    const flow = begin(origin, clientId);
    const page = await tab.follow(flow.authorizeUrl);
    t.true(page.text.includes(`published by <strong>${new URL(url).host}</strong>`), page.text);
    t.true(page.text.includes('client.example'));
    const { body } = await redeem(origin, flow, codeOf(await tab.answer(page)));
    t.is(payloadOf(body.access_token)['client_id'], clientId);
    const { body: clients } = await rest<{ kind: string; client_id: string }[]>(origin, 'GET', '/api/clients', {
      token: user.token,
    });
    t.like(clients[0], { kind: 'document', client_id: clientId });

    const refused: Record<string, () => void> = {
      'an id of a different address': () => {
        change = { client_id: `${url}/other.json` };
      },
      'a shared secret': () => {
        change = { client_secret: 'x' };
      },
      'a dangerous redirect': () => {
        change = { redirect_uris: ['javascript:alert(1)'] };
      },
      'a different redirect': () => {
        change = { redirect_uris: ['https://client.example/elsewhere'] };
      },
      'more than 5 KB': () => {
        change = {};
        size = 6_000;
      },
      'an error': () => {
        size = 0;
        status = 404;
      },
    };
    let at = 0;
    for (const [what, prepare] of Object.entries(refused)) {
      prepare();
      const visit = await tab.follow(begin(origin, `${url}/${at++}.json`).authorizeUrl);
      t.is(visit.status, 400, what);
      t.is(visit.to, null, what);
      // Ids and hashes may contain these digits by chance.
      const text = visit.text.replaceAll(/[0-9a-f-]{16,}/g, '');
      t.false(text.includes('404'), `the page shows the answer of the document's host: ${text}`);
    }

    // A stranger must not make the gateway read one document after the other.
    [status, reads] = [200, 0];
    const statuses = [];
    for (let n = 0; n < 40; n++) statuses.push((await tab.follow(begin(origin, `${url}/flood/${n}.json`).authorizeUrl)).status);
    t.true(reads > 0 && reads < 30, `${reads} documents were read`);
    t.is(statuses.at(-1), 400);
    t.is((await tab.follow(begin(origin, clientId).authorizeUrl)).to?.split('?')[0], 'https://client.example/callback');
  },
);

test.serial(
  'registrations and documents of strangers do not keep a client that its user has approved from renewing its tokens',
  async (t) => {
    const url = await serve(t, (req, res) => {
      const document = { client_id: `${url}${req.url}`, client_name: 'C', redirect_uris: ['https://client.example/callback'] };
      res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(document));
    });
    const { url: database, drop } = await createSqlite();
    t.teardown(drop);
    const environment = {
      ...{ DATABASE_URL: database, DATA_DIR: dataDir(t), LOG_LEVEL: 'error', NODE_EXTRA_CA_CERTS: cert },
      ...{ OAUTH_DOCUMENT_ADDRESSES: '127.0.0.0/8,::1', CLIENT_REGISTRATION_RATE_LIMIT: '4', PORT: String(await freePort()) },
    };
    const first = await runGateway(t, environment);
    const origin = first.url;
    const gateway = {
      url: origin,
      rest: async (_expected: number, method: string, path: string, options?: object) => rest(origin, method, path, options),
    } as unknown as TestGateway;
    const tab = openTab(origin);
    await tab.signIn(await person(gateway, 'user@example.com'));
    const clientId = `${url}/client.json`;
    const flow = begin(origin, clientId);
    const { body } = await redeem(origin, flow, codeOf(await tab.answer(await tab.follow(flow.authorizeUrl))));
    // A gateway that has just started has read no document.
    first.child.kill('SIGTERM');
    await first.ended;
    await runGateway(t, environment);
    for (let n = 0; n < 6; n++) await register(origin);
    for (let n = 0; n < 6; n++) await tab.follow(begin(origin, `${url}/flood/${n}.json`).authorizeUrl);
    const renewed = await refresh(origin, clientId, body.refresh_token ?? '');
    t.is(renewed.status, 200, JSON.stringify(renewed.body));
  },
);
