/** A real Keycloak on loopback, from Maven, with a realm of a company. */
import type { ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { createGuardian, killGroup } from '../support/databases/guardian.ts';
import { freePort } from '../support/port.ts';
import type { Teardown } from './programs.ts';

const VERSION = '26.4.0';
const ARTIFACT = `org.keycloak:keycloak-quarkus-dist:${VERSION}:zip`;
const SHA256 = '1b6a11a2726ac8a8dc9c91d5fafe989a75ce4f1622d7f7b45c21d5bc16629c0a';
const CACHE = join(homedir(), '.cache/portcullis-test');
const ADMIN = 'admin';
const DOWNLOAD_MS = 600_000;
const START_MS = 300_000;

/** The clients of the realm `company`, and their secret. */
export const SECRET = 'a secret that only tests know';
export const AUDIENCE = 'portcullis-api';
export const ALICE = { username: 'alice', email: 'alice@example.com', password: 'a long passphrase of alice' };

export interface Keycloak {
  readonly issuer: string;
  /** Asks the admin API of the realm `company`. Throws what it refuses. */
  admin<T>(method: string, path: string, body?: object): Promise<T>;
  /** Asks the token endpoint of the realm, as a client with the secret. */
  token(clientId: string, fields: Record<string, string>): Promise<{ readonly status: number; readonly access_token: string }>;
  stop(): Promise<void>;
}

type Guardian = ReturnType<typeof createGuardian>;

/** Returns the folder of Keycloak, and downloads it once. */
async function install(guardian: Guardian): Promise<string> {
  const installed = join(CACHE, `keycloak-${VERSION}`);
  if (existsSync(join(installed, 'bin/kc.sh'))) return installed;
  mkdirSync(CACHE, { recursive: true });
  const folder = mkdtempSync(join(CACHE, 'new-'));
  guardian.removeLater(folder);
  const copy = ['-q', 'dependency:copy', `-Dartifact=${ARTIFACT}`, `-DoutputDirectory=${folder}`];
  await guardian.run('mvn', copy, { cwd: folder, timeoutMs: DOWNLOAD_MS });
  const zip = join(folder, `keycloak-quarkus-dist-${VERSION}.zip`);
  const found = createHash('sha256').update(readFileSync(zip)).digest('hex');
  if (found !== SHA256) throw new Error(`Keycloak ${VERSION} from Maven has the SHA-256 ${found}, not ${SHA256}`);
  await guardian.run('unzip', ['-q', zip, '-d', folder], { timeoutMs: DOWNLOAD_MS });
  rmSync(installed, { recursive: true, force: true });
  renameSync(join(folder, `keycloak-${VERSION}`), installed);
  rmSync(folder, { recursive: true });
  return installed;
}

/** Starts Keycloak with the realm `company`. `redirectUri`: that of the gateway. Maven, Java 17 and unzip must be installed. */
export async function startKeycloak(t: Teardown, redirectUri: string): Promise<Keycloak> {
  const guardian = createGuardian();
  t.teardown(() => guardian.close());
  const [port, management] = [await freePort(), await freePort()];
  const words = ['start-dev', '--db=dev-mem', '--http-host=127.0.0.1', `--http-port=${port}`];
  const kc = join(await install(guardian), 'bin/kc.sh');
  const child = guardian.start('bash', [kc, ...words, `--http-management-port=${management}`], {
    env: {
      ...process.env,
      KC_BOOTSTRAP_ADMIN_USERNAME: ADMIN,
      KC_BOOTSTRAP_ADMIN_PASSWORD: ADMIN,
      JAVA_OPTS_KC_HEAP: '-Xms64m -Xmx512m',
      JAVA_OPTS_APPEND: '-XX:TieredStopAtLevel=1 -XX:ActiveProcessorCount=2',
    },
  });
  const url = `http://127.0.0.1:${port}`;
  await untilReady(`${url}/realms/master/.well-known/openid-configuration`, child);

  async function adminToken(): Promise<string> {
    const fields = { grant_type: 'password', client_id: 'admin-cli', username: ADMIN, password: ADMIN };
    const answer = await fetch(`${url}/realms/master/protocol/openid-connect/token`, {
      method: 'POST',
      body: new URLSearchParams(fields),
    });
    return ((await answer.json()) as { access_token: string }).access_token;
  }
  async function admin<T>(method: string, path: string, body?: object): Promise<T> {
    const answer = await fetch(`${url}/admin/realms${path}`, {
      method,
      headers: { authorization: `Bearer ${await adminToken()}`, 'content-type': 'application/json' },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`Keycloak answered ${method} ${path} with ${answer.status}: ${text}`);
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }
  await admin('POST', '', realm(redirectUri));
  const issuer = `${url}/realms/company`;
  return {
    issuer,
    admin: (method, path, body) => admin(method, `/company${path}`, body),
    async token(clientId, fields) {
      const answer = await fetch(`${issuer}/protocol/openid-connect/token`, {
        method: 'POST',
        body: new URLSearchParams({ client_id: clientId, client_secret: SECRET, ...fields }),
      });
      const body = (await answer.json()) as { access_token?: string };
      return { status: answer.status, access_token: body.access_token ?? '' };
    },
    async stop() {
      const ended = new Promise((resolve) => child.once('close', resolve));
      killGroup(child.pid ?? 0, 'SIGKILL');
      await ended;
    },
  };
}

async function untilReady(address: string, child: ChildProcess): Promise<void> {
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-4_000);
    });
  let isOver = false;
  child.once('close', () => {
    isOver = true;
  });
  for (const deadline = performance.now() + START_MS; performance.now() < deadline && !isOver; await sleep(500)) {
    const answer = await fetch(address).catch(() => null);
    await answer?.arrayBuffer();
    if (answer?.status === 200) return;
  }
  throw new Error(`Keycloak did not start: ${output}`);
}

const GROUPS = {
  ...{ name: 'groups', protocol: 'openid-connect', protocolMapper: 'oidc-group-membership-mapper' },
  config: { 'claim.name': 'groups', 'full.path': 'true', 'id.token.claim': 'true', 'access.token.claim': 'true' },
};
const OF_PORTCULLIS = {
  ...{ name: 'audience', protocol: 'openid-connect', protocolMapper: 'oidc-audience-mapper' },
  config: { 'included.custom.audience': AUDIENCE, 'access.token.claim': 'true', 'id.token.claim': 'false' },
};

/**
 * The realm that docs/providers.md describes: `portcullis` for the sign-in of people, `robot` for programs, and `elsewhere` whose tokens
 * are for a different service.
 */
const realm = (redirectUri: string): object => ({
  realm: 'company',
  enabled: true,
  groups: [{ name: 'platform' }, { name: 'staff' }],
  clients: [
    { clientId: 'portcullis', secret: SECRET, redirectUris: [redirectUri], protocolMappers: [GROUPS] },
    ...[
      { clientId: 'robot', protocolMappers: [GROUPS, OF_PORTCULLIS] },
      { clientId: 'elsewhere', protocolMappers: [GROUPS] },
    ].map((client) => ({
      ...{ ...client, secret: SECRET, standardFlowEnabled: false },
      ...{ serviceAccountsEnabled: true, directAccessGrantsEnabled: true },
    })),
  ],
  users: [
    {
      ...{ username: ALICE.username, email: ALICE.email, emailVerified: true, enabled: true, groups: ['/platform'] },
      ...{ firstName: 'Alice', lastName: 'Example' },
      credentials: [{ type: 'password', value: ALICE.password, temporary: false }],
    },
    { username: 'service-account-robot', enabled: true, serviceAccountClientId: 'robot', groups: ['/platform'] },
  ],
});
