/** Requests to servers that strangers name: where they go, and what a hostile server or name can do to them. */
import { execFileSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { RequestListener } from 'node:http';
import { createServer as createPlain } from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import test, { type ExecutionContext } from 'ava';
import { namesWith } from '../../../src/base/network/guarded-connect.ts';
import { createOutbound, OutboundFault, type OutboundParts, type OutboundRules } from '../../../src/base/network/outbound.ts';
import { deferred } from '../../../src/base/promises.ts';

const HERE = ['127.0.0.0/8', '::1'];
const secrets = mkdtempSync(join(tmpdir(), 'portcullis-tls-'));
const [key, cert] = [join(secrets, 'key.pem'), join(secrets, 'cert.pem')];
test.before(() => {
  const subject = ['-nodes', '-days', '2', '-subj', '/CN=localhost', '-addext'];
  const names = 'subjectAltName=DNS:localhost,DNS:as.example,IP:127.0.0.1,IP:::1';
  const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', ...subject, names];
  execFileSync('openssl', [...made, '-keyout', key, '-out', cert], { stdio: 'ignore' });
});
test.after.always(() => rmSync(secrets, { recursive: true, force: true }));

const ca = (): string => readFileSync(cert, 'utf8');

/** A server with TLS on this machine. Returns its port and the paths that were asked for. */
async function serve(t: ExecutionContext, handle: RequestListener = (_req, res) => void res.end('{}')) {
  const asked: (string | undefined)[] = [];
  const server = createServer({ key: readFileSync(key), cert: readFileSync(cert) }, (req, res) => {
    asked.push(req.url);
    handle(req, res);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return { asked, port: (server.address() as AddressInfo).port };
}

/** A DNS server that answers questions for A with these addresses, one after the other, and then the last again. null: it is silent. */
async function serveNames(t: ExecutionContext, answers: readonly (string | null)[]) {
  const asked: string[] = [];
  const socket = createSocket('udp4').bind(0, '127.0.0.1');
  await once(socket, 'listening');
  t.teardown(() => void socket.close());
  socket.on('message', (question, from) => {
    const end = question.indexOf(0, 12) + 5;
    const isIPv4 = question.readUInt16BE(end - 4) === 1;
    const address = isIPv4 ? answers[Math.min(asked.length, answers.length - 1)] : undefined;
    if (isIPv4) asked.push(question.subarray(12, end - 5).toString());
    if (address === null) return;
    const head = Buffer.from(question.subarray(0, end));
    head.writeUInt16BE(0x8180, 2);
    head.writeUInt16BE(address === undefined ? 0 : 1, 6);
    head.fill(0, 8, 12);
    const record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...(address ?? '').split('.').map(Number)];
    socket.send(address === undefined ? head : Buffer.concat([head, Buffer.from(record)]), from.port, from.address);
  });
  return { asked, dns: [`127.0.0.1:${socket.address().port}`] };
}

function ask(t: ExecutionContext, parts: Partial<OutboundParts>, rules: Partial<OutboundRules> = {}) {
  const outbound = createOutbound({ allowed: [], ca: ca(), ...parts });
  t.teardown(() => outbound.close());
  return outbound.fetchWith({ maxBytes: 1_000, withinMs: 3_000, ...rules });
}

const fault = (message: RegExp) => ({ instanceOf: OutboundFault, message });

test('a server inside is not asked, in whatever form its address is written', async (t) => {
  const { asked, port } = await serve(t);
  const fetch = ask(t, {});
  for (const host of [
    ...['localhost', '127.0.0.1', '127.1', '2130706433', '0x7f000001', '0x7f.1', '0177.0.0.1', '017700000001', '127.0.0.1.'],
    ...['[::1]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '0.0.0.0', '0', '%31%32%37.0.0.1', '１２７.0.0.1', 'LOCALHOST.'],
  ]) {
    await t.throwsAsync(fetch(`https://${host}:${port}/`), fault(/is refused: .*(public internet|metadata address)/), host);
  }
  t.deepEqual(asked, []);
  for (const host of ['localhost', '127.0.0.1', '0x7f.1']) {
    t.is((await ask(t, { allowed: HERE })(`https://${host}:${port}/`)).status, 200, 'the same is reached if it is allowed');
  }
  t.is((await ask(t, {}, { isChosen: () => true })(`https://localhost:${port}/`)).status, 200, 'an administrator has chosen it');
  await t.throwsAsync(ask(t, {}, { isChosen: () => true })('https://169.254.169.254/'), fault(/metadata address/));
});

test('a name that has a public address first and a private one afterwards is never reached inside (rebinding)', async (t) => {
  const { asked, port } = await serve(t);
  const names = await serveNames(t, ['203.0.114.1', '127.0.0.1']);
  const fetch = ask(t, { dns: names.dns });
  await t.throwsAsync(fetch(`https://rebinds.example:${port}/`), fault(/has not answered within|cannot be reached/));
  t.is(names.asked.length, 1, 'one lookup for the check and for the connection');
  await t.throwsAsync(fetch(`https://rebinds.example:${port}/`), fault(/is refused: .*127\.0\.0\.1 is not an address/));
  t.deepEqual(asked, []);
});

test('a name in DNS is looked up as it is written, and its allowed address is used', async (t) => {
  const { asked, port } = await serve(t);
  const names = await serveNames(t, ['127.0.0.1']);
  const fetch = ask(t, { dns: names.dns, allowed: HERE });
  t.is((await fetch(`https://as.example:${port}/x?y`)).status, 200);
  t.deepEqual(names.asked, ['\x02as\x07example']);
  t.deepEqual(asked, ['/x?y']);
  await t.throwsAsync(ask(t, { dns: names.dns })(`https://as.example:${port}/x`), fault(/public internet/));
});

test('a DNS server that never answers ends in time, and holds up neither other requests nor the process', async (t) => {
  const { port } = await serve(t);
  const names = await serveNames(t, [null]);
  const fetch = ask(t, { dns: names.dns, allowed: HERE });
  const slow = Array.from({ length: 40 }, (_, n) => fetch(`https://slow${n}.example:${port}/`));
  const ended = Promise.allSettled(slow);
  t.is((await fetch(`https://localhost:${port}/`)).status, 200, 'while the others wait');
  for (const end of await ended) {
    t.regex(end.status === 'rejected' ? end.reason.message : '', /has not answered within 3 s|ECANCELLED|timeout/i);
    t.false(end.status === 'rejected' && (end.reason as OutboundFault).sent);
  }
});

test('a slow answer, a slow body and an endless body end in time, and the connection with them', async (t) => {
  let closed = 0;
  const ended = deferred();
  const { port } = await serve(t, (req, res) => {
    res.on('close', () => ++closed === 3 && ended.resolve());
    if (req.url === '/silent') return;
    const drip = setInterval(() => res.write(req.url === '/endless' ? 'x'.repeat(10_000) : 'x'), 20);
    res.on('close', () => clearInterval(drip));
  });
  const fetch = ask(t, { allowed: HERE });
  const refused = async (path: string, message: RegExp): Promise<void> => {
    const error = await t.throwsAsync(fetch(`https://localhost:${port}/${path}`), fault(message), path);
    t.true((error as OutboundFault).sent, 'the server may have acted');
  };
  const late = /has not answered within 3 s/;
  await Promise.all([refused('silent', late), refused('slow', late), refused('endless', /answers with more than 1000 bytes/)]);
  await ended.promise;
});

test('the limit of size counts the last byte', async (t) => {
  const { port } = await serve(t, (req, res) => void res.end('x'.repeat(Number(req.url?.slice(1)))));
  const fetch = ask(t, { allowed: HERE });
  t.is((await (await fetch(`https://localhost:${port}/1000`)).text()).length, 1_000);
  await t.throwsAsync(fetch(`https://localhost:${port}/1001`), fault(/more than 1000 bytes/));
});

test('a redirect is answered as it is, and not followed', async (t) => {
  const { asked, port } = await serve(t, (_req, res) => void res.writeHead(302, { location: '/inside' }).end());
  const answer = await ask(t, { allowed: HERE })(`https://localhost:${port}/document`);
  t.deepEqual([answer.status, answer.headers.get('location')], [302, '/inside']);
  t.deepEqual(asked, ['/document']);
});

test('a compressed body is refused, and not unpacked', async (t) => {
  const bomb = gzipSync(Buffer.alloc(64 * 1024 * 1024));
  let accepted: string | string[] | undefined;
  const { port } = await serve(t, (req, res) => {
    accepted = req.headers['accept-encoding'];
    res.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb);
  });
  const fetch = ask(t, { allowed: HERE }, { maxBytes: 1024 * 1024 });
  await t.throwsAsync(fetch(`https://localhost:${port}/`), fault(/compressed body/));
  t.is(accepted, 'identity');
});

test('TLS is mandatory unless the rules say otherwise, and certificates are checked', async (t) => {
  const { port } = await serve(t);
  const plain = createPlain((_req, res) => void res.end('{}')).listen(0, '127.0.0.1');
  await once(plain, 'listening');
  t.teardown(() => void plain.close());
  const address = `http://localhost:${(plain.address() as AddressInfo).port}/`;
  await t.throwsAsync(ask(t, { allowed: HERE })(address), fault(/does not use HTTPS/));
  t.is((await ask(t, { allowed: HERE }, { mayBePlain: ({ hostname }) => hostname === 'localhost' })(address)).status, 200);
  await t.throwsAsync(ask(t, { allowed: HERE }, { mayBePlain: () => true })('ftp://localhost/'), fault(/does not use HTTPS/));
  const strict = createOutbound({ allowed: HERE });
  t.teardown(() => strict.close());
  const unknown = strict.fetchWith({ maxBytes: 1_000, withinMs: 2_000 })(`https://localhost:${port}/`);
  await t.throwsAsync(unknown, fault(/self-signed certificate/));
});

test('a request that was cancelled, or that no server took, says that it was not sent', async (t) => {
  const fetch = ask(t, { allowed: HERE });
  const refused = await t.throwsAsync(fetch('https://127.0.0.1:1/'), fault(/cannot be reached: .*ECONNREFUSED/));
  t.false((refused as OutboundFault).sent);
  const { asked, port } = await serve(t);
  const gone = await t.throwsAsync(
    fetch(`https://127.0.0.1:${port}/`, { signal: AbortSignal.abort() }),
    fault(/cannot be reached/),
  );
  t.false((gone as OutboundFault).sent);
  t.deepEqual(asked, []);
});

test('a request carries its method, headers and body', async (t) => {
  const got: string[] = [];
  const { port } = await serve(t, (req, res) => {
    void (async () => {
      let body = '';
      for await (const part of req) body += String(part);
      got.push(`${req.method} ${req.headers['content-type']} ${req.headers['user-agent']} ${body}`);
      res.writeHead(204, { 'set-cookie': ['a=1', 'b=2'] }).end();
    })();
  });
  const fetch = ask(t, { allowed: HERE });
  const url = `https://localhost:${port}/`;
  const answer = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'text/x' },
    body: new URLSearchParams({ a: 'b c' }),
  });
  await fetch(url, { method: 'POST', headers: { 'content-type': 'text/x' }, body: Buffer.from('bytes') });
  t.deepEqual(got, ['POST text/x portcullis a=b+c', 'POST text/x portcullis bytes']);
  t.deepEqual(answer.headers.getSetCookie(), ['a=1', 'b=2']);
});

test('names whose DNS servers do not answer take no thread from the lookups of others', async (t) => {
  const { asked, dns } = await serveNames(t, [null]);
  const fetch = ask(t, { dns }, { isChosen: () => true, withinMs: 10_000 });
  const waiting = Array.from({ length: 8 }, (_, i) =>
    t.throwsAsync(fetch(`https://dead-${i}.example/`), fault(/cannot be reached/)),
  );
  while (asked.length < 8) await new Promise(setImmediate);
  t.false(process.getActiveResourcesInfo().includes('GetAddrInfoReqWrap'));
  await Promise.all(waiting);
  t.false(process.getActiveResourcesInfo().includes('GetAddrInfoReqWrap'), 'not afterwards, either');
});

test('a name of the own network is asked for before the same name on the internet, as the settings of the system say', async (t) => {
  const settings = join(secrets, 'resolv.conf');
  const askedFor = async (name: string, text: string): Promise<string> => {
    writeFileSync(settings, text);
    const { asked, dns } = await serveNames(t, ['192.0.2.7']);
    t.deepEqual(await namesWith(dns, settings)(name), [{ address: '192.0.2.7', family: 4 }]);
    // A length precedes each label.
    return (asked[0] ?? '').replaceAll(/[^a-z]/g, '.').slice(1);
  };
  const cluster = 'nameserver 192.0.2.1\nsearch a.svc.cluster.local svc.cluster.local.\noptions timeout:1 ndots:5 # usual\n';
  t.is(await askedFor('mcp.dev', cluster), 'mcp.dev.a.svc.cluster.local');
  t.is(await askedFor('mcp.dev.', cluster), 'mcp.dev');
  t.is(await askedFor('a.b.c.d.e.example', cluster), 'a.b.c.d.e.example');
  t.is(await askedFor('mcp', 'domain corp.example\nsearch lab.example'), 'mcp.lab.example');
  t.is(await askedFor('mcp.example', 'search lab.example'), 'mcp.example');
  t.is(await askedFor('mcp', 'search .'), 'mcp');
});

test('if the servers of the own network do not answer, the same name on the internet does not count', async (t) => {
  const settings = join(secrets, 'silent.conf');
  writeFileSync(settings, 'search a.example\noptions ndots:5\n');
  // The first question is sent twice.
  const { asked, dns } = await serveNames(t, [null, null, '192.0.2.7']);
  await t.throwsAsync(namesWith(dns, settings)('mcp.dev'));
  t.deepEqual(
    asked.filter((name) => !name.includes('example')),
    [],
  );
});
