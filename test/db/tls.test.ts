/** What the gateway sends to a server that has not proved to be the one in DATABASE_URL. */
import { writeFileSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { createSecureContext, TLSSocket } from 'node:tls';
import test, { type ExecutionContext } from 'ava';
import { dataDir, spawnGateway } from '../support/process.ts';

/** Certificates that sign themselves, for `localhost` and `other.example`, valid for a hundred years. */
const OWN = {
  key: `-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIONRX8rBLCoObPY2wnSSse/mSpWTvmFxjI3mJycQLPFUoAoGCCqGSM49
AwEHoUQDQgAENOKki/TYtT3FL5GNerjqfv8l27phZ/kkqsgqQ+bV6GPwK+C7wJJO
lNwuL9NR60OgfIIMgjusguTfzXmxTz0IPA==
-----END EC PRIVATE KEY-----`,
  cert: `-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUdk92sYX9tjO04TdlQVZfMDY1dQUwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjA5NDMzNVoYDzIxMjYxMDI5
MDk0MzM1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQ04qSL9Ni1PcUvkY16uOp+/yXbumFn+SSqyCpD5tXoY/Ar4LvAkk6U
3C4v01HrQ6B8ggyCO6yC5N/NebFPPQg8o2kwZzAdBgNVHQ4EFgQUrE2qFdyD81fm
PHDeBUm/oa3xEdMwHwYDVR0jBBgwFoAUrE2qFdyD81fmPHDeBUm/oa3xEdMwFAYD
VR0RBA0wC4IJbG9jYWxob3N0MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwID
SAAwRQIhAIj8Qrq7ST9yS80XsRWNcMpwqDcVFzeSJlBd5/kwfi8QAiB3nnBuEZ/5
/f6sM48uCljixfm0yEUYq2w5uXXqMhm8Bg==
-----END CERTIFICATE-----`,
};
const OTHER = {
  key: `-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIMigMKaRFivDpBBFtpDBsZgUL1A5K5YLws5DdesXn2afoAoGCCqGSM49
AwEHoUQDQgAEJswAJK9fQqmqDiv97VND1vexiHRvjilDxAItpkF96fMuO/ZxfQW7
yyjNx/BpwY76z4KMitwzOc2spInsOn+5Yg==
-----END EC PRIVATE KEY-----`,
  cert: `-----BEGIN CERTIFICATE-----
MIIBoDCCAUegAwIBAgIUHlkOb4AHMvC1wTl4hrijb8hcn/owCgYIKoZIzj0EAwIw
GDEWMBQGA1UEAwwNb3RoZXIuZXhhbXBsZTAgFw0yNjExMjIwOTQzMzVaGA8yMTI2
MTAyOTA5NDMzNVowGDEWMBQGA1UEAwwNb3RoZXIuZXhhbXBsZTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABCbMACSvX0Kpqg4r/e1TQ9b3sYh0b44pQ8QCLaZBfenz
Ljv2cX0Fu8sozcfwacGO+s+CjIrcMznNrKSJ7Dp/uWKjbTBrMB0GA1UdDgQWBBSo
ml0y3Y5rg785amVjfYhEWeDQMzAfBgNVHSMEGDAWgBSoml0y3Y5rg785amVjfYhE
WeDQMzAYBgNVHREEETAPgg1vdGhlci5leGFtcGxlMA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDRwAwRAIgfje/mPCdiLfK2V8DCfIgokeq6XZot6Q2fwVuX6ie
ifwCIHAfd9wzvfPV2FKln1wGXbQr/rMByk3ZT/RzmtD6jIYf
-----END CERTIFICATE-----`,
};

const CLIENT_SSL = 0x800;
const CAPABILITIES = 0x1 | 0x8 | 0x200 | 0x8000 | CLIENT_SSL | 0x80000;

/** The first packet of a MySQL server. */
function greeting(): Buffer {
  const two = (value: number) => [value & 0xff, (value >> 8) & 0xff];
  const body = Buffer.concat([
    Buffer.from([10, ...Buffer.from('8.4.0\0'), 1, 0, 0, 0, ...Buffer.alloc(8, 0x61), 0]),
    Buffer.from([...two(CAPABILITIES), 45, 2, 0, ...two(CAPABILITIES >> 16), 21, ...Buffer.alloc(10)]),
    Buffer.from(`${'b'.repeat(12)}\0mysql_clear_password\0`),
  ]);
  return Buffer.concat([Buffer.from([body.length, 0, 0, 0]), body]);
}

/** A server that asks for TLS, and tells what comes through it. */
async function tlsServer(t: ExecutionContext, identity: typeof OWN): Promise<{ readonly port: number; read(): string }> {
  let read = '';
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket.on('error', () => undefined));
    socket.write(greeting());
    socket.once('data', (chunk: Buffer) => {
      // The request for TLS may come with the first bytes of TLS.
      socket.pause().unshift(chunk.subarray(36));
      const secure = new TLSSocket(socket, { isServer: true, secureContext: createSecureContext(identity) });
      secure.on('error', () => undefined);
      secure.on('data', (chunk) => {
        read += chunk.toString('latin1');
        secure.destroy();
      });
    });
  });
  await new Promise<void>((resolve) => server.listen(0, 'localhost', resolve));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  return { port: address.port, read: () => read };
}

test('with ?tls=true a server gets the login only if its certificate names the host of the URL', async (t) => {
  const folder = dataDir(t);
  const authorities = join(folder, 'authorities.pem');
  writeFileSync(authorities, `${OWN.cert}\n${OTHER.cert}\n`);
  const [own, other] = await Promise.all([tlsServer(t, OWN), tlsServer(t, OTHER)]);
  const [toOwn, toOther] = await Promise.all(
    [own, other].map(({ port }) =>
      spawnGateway(t, {
        DATA_DIR: folder,
        DATABASE_URL: `mysql://somebody:hunter2@localhost:${port}/x?tls=true`,
        NODE_EXTRA_CA_CERTS: authorities,
      }),
    ),
  );
  t.is(await toOwn?.ended, 1);
  t.regex(own.read(), /somebody/, 'the server that shows its name gets the login');
  t.is(await toOther?.ended, 1);
  t.is(other.read(), '');
  t.regex(toOther?.output() ?? '', /^portcullis: The database at localhost:[0-9]+\/x cannot be used: .*other\.example/);
  t.notRegex(`${toOwn?.output()}${toOther?.output()}`, /hunter2/);
});
