/** An OpenID provider that the rivals trust: its metadata and key on loopback, and one token of it. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, exportSPKI, generateKeyPair, SignJWT } from 'jose';

export const AUDIENCE = 'bench';
/** Group and scope that the rivals' rules ask for. */
export const GROUP = 'callers';

export interface Issuer {
  readonly url: string;
  readonly jwks_uri: string;
  readonly jwks: string;
  /** The key as PEM. */
  readonly publicKey: string;
  readonly token: string;
}

export async function startIssuer(): Promise<Issuer> {
  const { publicKey, privateKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid: 'bench', alg: 'ES256', use: 'sig' }] });
  const server = createServer((req, res) => {
    const url = `http://${req.headers.host}`;
    const metadata = {
      issuer: url,
      jwks_uri: `${url}/jwks.json`,
      authorization_endpoint: `${url}/authorize`,
      token_endpoint: `${url}/token`,
      response_types_supported: ['code'],
      subject_types_supported: ['public'],
      id_token_signing_alg_values_supported: ['ES256'],
    };
    res.setHeader('content-type', 'application/json');
    if (req.url === '/jwks.json') res.end(jwks);
    else if (req.url?.startsWith('/.well-known/') === true) res.end(JSON.stringify(metadata));
    else res.writeHead(404).end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  server.unref();
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const token = await new SignJWT({ email: 'caller@example.com', groups: [GROUP], scope: GROUP, client_id: 'bench' })
    .setProtectedHeader({ alg: 'ES256', kid: 'bench', typ: 'JWT' })
    .setIssuer(url)
    .setAudience(AUDIENCE)
    .setSubject('caller')
    .setIssuedAt()
    .setExpirationTime('12h')
    .sign(privateKey);
  return { url, jwks_uri: `${url}/jwks.json`, jwks, publicKey: await exportSPKI(publicKey), token };
}
