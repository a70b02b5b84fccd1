/** A company's OpenID provider for tests: it publishes keys and signs whatever a test wants, also what no provider may sign. */
import { generateKeyPairSync, type KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import { CompactSign, exportJWK } from 'jose';

export type Claims = Record<string, unknown>;

export interface TokenOptions {
  readonly kid?: string;
  readonly header?: Claims;
  /** Signs with this key instead of the one with the key id. */
  readonly key?: KeyObject | Uint8Array;
}

export interface TestProvider {
  readonly issuer: string;
  /** Paths that were requested. */
  readonly requests: string[];
  /** Answers a path instead of the provider. */
  readonly overrides: Map<string, (req: IncomingMessage, res: ServerResponse) => void>;
  /** Makes a key and publishes it. */
  addKey(kid: string, alg?: 'RS256' | 'ES256'): Promise<void>;
  /** The gateway may have read the key: it is published no more. */
  removeKey(kid: string): void;
  publicKey(kid: string): KeyObject;
  /** Returns an access token for the audience `portcullis`, valid for an hour. A claim that is undefined is left out. */
  token(claims?: Claims, options?: TokenOptions): Promise<string>;
  stop(): Promise<void>;
  start(): Promise<void>;
}

interface Held {
  readonly alg: 'RS256' | 'ES256';
  readonly publicKey: KeyObject;
  readonly privateKey: KeyObject;
}

export const AUDIENCE = 'api://portcullis';
export const seconds = (): number => Math.floor(Date.now() / 1_000);

export async function startProvider(t: ExecutionContext): Promise<TestProvider> {
  const held = new Map<string, Held>();
  const published = new Map<string, object>();
  const requests: string[] = [];
  const overrides: TestProvider['overrides'] = new Map();
  const server = createServer((req, res) => {
    const path = req.url ?? '';
    requests.push(path);
    const override = overrides.get(path);
    if (override) return override(req, res);
    const document = documents(path);
    res.statusCode = document === null ? 404 : 200;
    res.setHeader('content-type', 'application/json');
    res.end(JSON.stringify(document));
  });
  let port = 0;
  const provider: TestProvider = {
    issuer: '',
    requests,
    overrides,
    async addKey(kid, alg = 'RS256') {
      const pair =
        alg === 'RS256'
          ? generateKeyPairSync('rsa', { modulusLength: 2048 })
          : generateKeyPairSync('ec', { namedCurve: 'P-256' });
      held.set(kid, { alg, ...pair });
      published.set(kid, { ...(await exportJWK(pair.publicKey)), kid, alg, use: 'sig' });
    },
    removeKey: (kid) => void published.delete(kid),
    publicKey: (kid) => (held.get(kid) as Held).publicKey,
    token(claims = {}, { kid = 'one', header = {}, key } = {}) {
      const now = seconds();
      const payload = { iss: provider.issuer, aud: AUDIENCE, sub: 'alice', iat: now, exp: now + 3_600, ...claims };
      const signing = held.get(kid);
      return new CompactSign(Buffer.from(JSON.stringify(payload)))
        .setProtectedHeader({ alg: signing?.alg ?? 'RS256', typ: 'at+jwt', kid, ...header })
        .sign(key ?? (signing as Held).privateKey);
    },
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
    async start() {
      server.listen(port, '127.0.0.1');
      await once(server, 'listening');
      port = (server.address() as AddressInfo).port;
    },
  };
  const documents = (path: string): object | null => {
    const { issuer } = provider;
    if (path === '/.well-known/openid-configuration')
      return {
        issuer,
        jwks_uri: `${issuer}/jwks`,
        authorization_endpoint: `${issuer}/authorize`,
        token_endpoint: `${issuer}/token`,
      };
    return path === '/jwks' ? { keys: [...published.values()] } : null;
  };
  await provider.start();
  Object.assign(provider, { issuer: `http://127.0.0.1:${port}` });
  await provider.addKey('one');
  t.teardown(async () => {
    if (server.listening) await provider.stop();
  });
  return provider;
}

/** The body with which a test registers the provider. */
export const registration = (provider: TestProvider, more: Claims = {}): Claims => ({
  name: 'company',
  preset: 'openid',
  issuer: provider.issuer,
  client_id: 'the-gateway',
  tokens: { audiences: [AUDIENCE] },
  groups_claim: ['groups'],
  role_required: false,
  groups_required: false,
  ...more,
});
