/** ContextForge: one worker over SQLite; JWT, a role that may execute tools, its three audits; sessions are kept. */
import { randomBytes, randomUUID } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { SignJWT } from 'jose';
import { startServer } from '../gateway/processes.ts';
import type { Candidate } from '../gateway/system.ts';
import { fromPypi, install } from './install.ts';

const RECIPE = fromPypi('mcp-contextforge-gateway==1.0.7', true);

const ADMIN = 'admin@example.com';
const CALLER = 'caller@example.com';

/** Without neighbours in the alphabet and repetitions, which it refuses. */
function newPassword(): string {
  const letters = [...randomBytes(24)].map((byte, i) => (i % 2 === 0 ? 'bfkpv' : 'dhmsz')[byte % 5]);
  return `K7!${letters.join('')}`;
}

/** Returns a token like those of its own `create_jwt_token`. */
const tokenOf = (email: string, secret: string, admin: boolean): Promise<string> =>
  new SignJWT({ username: email, ...(admin ? { user: { email, is_admin: true, auth_provider: 'cli' }, teams: null } : {}) })
    .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
    .setIssuer('mcpgateway')
    .setAudience('mcpgateway-api')
    .setSubject(email)
    .setJti(randomUUID())
    .setIssuedAt()
    .setExpirationTime('12h')
    .sign(Buffer.from(secret));

export const contextforge: Candidate = {
  name: 'ContextForge 1.0.7',
  on: 'JWT, RBAC, three audits; one worker, SQLite, stateful sessions',
  async start(surroundings) {
    const { guardian, upstream } = surroundings;
    const folder = await install(surroundings, RECIPE);
    const cwd = join(guardian.folder, 'contextforge');
    mkdirSync(cwd, { recursive: true });
    const secret = randomBytes(32).toString('hex');
    const { pid, origin } = await startServer(guardian, {
      name: 'ContextForge',
      command: join(folder, 'bin/python'),
      args: (port) => ['-m', 'uvicorn', 'mcpgateway.main:app', '--host', '127.0.0.1', '--port', String(port)],
      env: (port) => ({
        HOST: '127.0.0.1',
        PORT: String(port),
        DATABASE_URL: `sqlite:///${join(cwd, 'contextforge.db')}`,
        CACHE_TYPE: 'memory',
        JWT_SECRET_KEY: secret,
        AUTH_ENCRYPTION_SECRET: randomBytes(32).toString('hex'),
        BASIC_AUTH_PASSWORD: newPassword(),
        PLATFORM_ADMIN_EMAIL: ADMIN,
        PLATFORM_ADMIN_PASSWORD: newPassword(),
        RATE_LIMITING_ENABLED: 'false',
        SSRF_ALLOW_LOCALHOST: 'true',
        SSRF_ALLOW_PRIVATE_NETWORKS: 'true',
        USE_STATEFUL_SESSIONS: 'true',
        AUDIT_TRAIL_ENABLED: 'true',
        PERMISSION_AUDIT_ENABLED: 'true',
        SECURITY_LOGGING_ENABLED: 'true',
      }),
      cwd,
      probe: '/health',
    });
    const authorization = `Bearer ${await tokenOf(ADMIN, secret, true)}`;
    async function api<T>(path: string, body?: object): Promise<T> {
      const method = body === undefined ? 'GET' : 'POST';
      const headers = { authorization, 'content-type': 'application/json' };
      const answer = await fetch(origin + path, {
        method,
        headers,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const text = await answer.text();
      if (!answer.ok) throw new Error(`ContextForge, ${path}: ${answer.status} ${text}`);
      return JSON.parse(text) as T;
    }
    interface Made {
      readonly id: string;
      readonly name: string;
    }
    await api('/gateways', { name: 'bench', url: upstream, transport: 'STREAMABLEHTTP' });
    const [tool] = await api<Made[]>('/tools');
    if (tool === undefined) throw new Error('ContextForge does not know the tool');
    const server = { name: 'bench', associated_tools: [tool.id] };
    const { id } = await api<Made>('/servers', { server, visibility: 'public' });
    await api('/auth/email/admin/users', { email: CALLER, password: newPassword(), full_name: 'Caller' });
    const permissions = ['tools.read', 'tools.execute', 'servers.read', 'servers.use'];
    const role = await api<Made>('/rbac/roles', { name: 'caller', description: 'may call', scope: 'global', permissions });
    await api(`/rbac/users/${CALLER}/roles`, { role_id: role.id, scope: 'global' });
    const headers = { authorization: `Bearer ${await tokenOf(CALLER, secret, false)}` };
    return { url: `${origin}/servers/${id}/mcp/`, headers, tool: tool.name, pid, guarded: true };
  },
};
