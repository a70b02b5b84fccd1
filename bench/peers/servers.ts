/** Engines that run as servers of their own: Cerbos (npm) and OPA (`opa`, where it is found). One connection, kept alive. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { Client } from 'undici';
import { compile } from '../../src/engine/compile/compile.ts';
import type { Policy } from '../../src/engine/compile/policy.ts';
import type { PolicyModule } from '../../src/engine/engine.ts';
import { findOpa, OPA_HINT } from '../../test/support/opa.ts';
import { freePort } from '../../test/support/port.ts';
import type { Question } from '../workload.ts';
import { inputOf } from './embedded.ts';
import { installedFile, isInstalled } from './installed.ts';
import type { Answer, Peer, Running } from './peer.ts';

const START_MS = 60_000;
const REGO = join(import.meta.dirname, '../../rego');

interface Server {
  readonly post: (path: string, body: object) => Promise<unknown>;
  readonly memory: () => number;
  readonly close: () => Promise<void>;
}

async function serve(
  command: string,
  args: (port: number, another: number) => string[],
  health: string,
  folder: string,
): Promise<Server> {
  const [port, another] = await Promise.all([freePort(), freePort()]);
  const child: ChildProcess = spawn(command, args(port, another), { cwd: folder, stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said = (said + chunk.toString()).slice(-2_000);
  });
  const end = (): boolean => child.kill('SIGKILL');
  process.once('exit', end);
  const client = new Client(`http://127.0.0.1:${port}`);
  const close = async (): Promise<void> => {
    await client.destroy();
    if (child.exitCode === null && child.signalCode === null) {
      end();
      await once(child, 'exit');
    }
    process.off('exit', end);
    rmSync(folder, { recursive: true, force: true });
  };
  const latest = performance.now() + START_MS;
  for (;;) {
    const status = await client.request({ method: 'GET', path: health }).then(
      async ({ statusCode, body }) => {
        await body.dump();
        return statusCode;
      },
      () => 0,
    );
    if (status === 200) break;
    if (performance.now() > latest || child.exitCode !== null) {
      await close();
      throw new Error(`${command} did not start: ${said}`);
    }
    await setTimeout(50);
  }
  return {
    async post(path, asked) {
      const headers = { 'content-type': 'application/json' };
      const { body, statusCode } = await client.request({ method: 'POST', path, headers, body: JSON.stringify(asked) });
      const answer: unknown = await body.json();
      if (statusCode !== 200) throw new Error(`${path}: ${statusCode} ${JSON.stringify(answer)}`);
      return answer;
    },
    memory: () => 1024 * Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1] ?? 0),
    close,
  };
}

const newFolder = (): string => mkdtempSync(join(tmpdir(), 'portcullis-bench-'));

function cerbosCondition(pattern: string): string {
  const [, text, end] = /^\^([a-z0-9_]+)(\$?)$/.exec(pattern) ?? [];
  if (text === undefined) return `R.attr.name.matches(${JSON.stringify(pattern)})`;
  return end === '$' ? `R.attr.name == ${JSON.stringify(text)}` : `R.attr.name.startsWith(${JSON.stringify(text)})`;
}

/** Targets that no policy names. */
const OTHER_TARGETS = 'other';

/** The widest scope is asked last, so it holds the lowest priority: first match over scopes, deny first within one. */
function writeCerbosPolicies(policies: readonly Policy[], targets: ReadonlySet<string>, folder: string): string {
  const levels = [...new Set(policies.map(({ priority }) => priority))].sort((a, b) => a - b);
  const scopes = levels.map((_, depth) => Array.from({ length: depth }, (_, i) => `p${i}`).join('.'));
  for (const target of targets) {
    levels.forEach((level, depth) => {
      const rules = policies
        .filter(({ priority, target_id }) => priority === level && (target_id === null || target_id === target))
        .map(({ id, effect, resource_pattern, resource_type, subjects }) => ({
          name: `r${id}`,
          actions: [resource_type],
          effect: effect === 'allow' ? 'EFFECT_ALLOW' : 'EFFECT_DENY',
          roles: [subjects[0]?.subject_value ?? '*'],
          condition: { match: { expr: cerbosCondition(resource_pattern ?? '') } },
        }));
      const resourcePolicy = { resource: `target:${target}`, version: 'default', scope: scopes[depth], rules };
      writeFileSync(join(folder, `${target}_${depth}.json`), JSON.stringify({ apiVersion: 'api.cerbos.dev/v1', resourcePolicy }));
    });
  }
  return scopes.at(-1) ?? '';
}

/** npm's `cerbos` is a package with the binary for each platform. The one for this is pinned, the others are not needed. */
const PINNED_CERBOS = '@cerbos/cerbos-linux-x64';
const CERBOS = `@cerbos/cerbos-${process.platform}-${process.arch}`;

export const cerbos: Peer = {
  name: 'Cerbos',
  kind: 'network',
  upTo: 1_000,
  missing: () =>
    isInstalled(CERBOS) &&
    (CERBOS === PINNED_CERBOS ? 'npm ci --prefix bench' : 'npm install --prefix bench --no-save cerbos@0.51.0'),
  start: async (policies) => {
    const folder = newFolder();
    const store = join(folder, 'policies');
    mkdirSync(store);
    const targets = new Set([...policies.flatMap(({ target_id }) => target_id ?? []), OTHER_TARGETS]);
    const scope = writeCerbosPolicies(policies, targets, store);
    const set = (port: number, another: number): string[] => [
      `server.httpListenAddr=127.0.0.1:${port}`,
      `server.grpcListenAddr=127.0.0.1:${another}`,
      'storage.driver=disk',
      `storage.disk.directory=${store}`,
      'storage.disk.watchForChanges=false',
      'telemetry.disabled=true',
    ];
    const args = (port: number, another: number): string[] => [
      ...['server', '--log-level=error'],
      ...set(port, another).map((value) => `--set=${value}`),
    ];
    const server = await serve(installedFile(CERBOS, basename(CERBOS)), args, '/_cerbos/health', folder);
    return {
      ...server,
      async ask({ principal, target, object }) {
        const action = object.resource_type;
        const kind = `target:${targets.has(target) ? target : OTHER_TARGETS}`;
        const resource = { kind, id: 'object', scope, attr: { name: object.resource_name } };
        const { results } = (await server.post('/api/check/resources', {
          principal: { id: principal.sub, roles: [principal.role], attr: { groups: principal.groups } },
          resources: [{ resource, actions: [action] }],
        })) as { results: [{ actions: Record<string, string> }] };
        return { effect: results[0].actions[action] === 'EFFECT_ALLOW' ? 'allow' : 'deny' };
      },
    };
  },
};

const opa = findOpa();

async function startOpa(module: PolicyModule, policies: readonly Policy[], rule: 'reference' | 'gateway'): Promise<Running> {
  if ('missing' in opa) throw new Error(opa.missing);
  const folder = newFolder();
  writeFileSync(join(folder, 'data.json'), compile(policies, { checkPattern: module.checkStoredPattern }).json);
  const args = (port: number): string[] => [
    ...['run', '--server', '--addr', `127.0.0.1:${port}`, '--log-level', 'error', '--disable-telemetry'],
    ...[join(REGO, `${rule}.rego`), 'data.json'],
  ];
  const server = await serve(opa.path, args, '/health', folder);
  return {
    ...server,
    async ask(question): Promise<Answer> {
      const asked = { input: inputOf(question) };
      const answer = await server.post(`/v1/data/portcullis/${rule}/decision`, asked);
      const { effect, policy } = (answer as { result: { effect: Answer['effect']; policy: string | null } }).result;
      return { effect, policyId: policy };
    },
  };
}

const opaPeer = (module: PolicyModule, rule: 'reference' | 'gateway', name: string): Peer => ({
  name,
  kind: 'network',
  upTo: 10_000,
  missing: () => ('missing' in opa ? OPA_HINT : null),
  start: (policies) => startOpa(module, policies, rule),
});

export const opaServers = (module: PolicyModule): Peer[] => [
  opaPeer(module, 'reference', 'OPA server, naive rule'),
  opaPeer(module, 'gateway', 'OPA server, our rule'),
];

/** Microseconds for one evaluation by `opa bench`, without HTTP: a median over one question at a time. Null without OPA. */
export function opaBench(module: PolicyModule, policies: readonly Policy[], questions: readonly Question[]): number | null {
  if ('missing' in opa) return null;
  const folder = newFolder();
  try {
    writeFileSync(join(folder, 'data.json'), compile(policies, { checkPattern: module.checkStoredPattern }).json);
    const medians = questions.map((question) => {
      writeFileSync(join(folder, 'input.json'), JSON.stringify(inputOf(question)));
      const files = ['-d', join(REGO, 'reference.rego'), '-d', 'data.json', '-i', 'input.json'];
      const args = ['bench', '--format', 'json', '--benchmem=false', ...files, 'data.portcullis.reference.decision'];
      const { stdout, stderr } = spawnSync(opa.path, args, { cwd: folder, encoding: 'utf8' });
      const result = /\{.*\}/s.exec(stdout)?.[0];
      if (result === undefined) throw new Error(`opa bench: ${stderr}`);
      const { N, T } = JSON.parse(result) as { N: number; T: number };
      return T / N / 1_000;
    });
    return medians.sort((a, b) => a - b)[medians.length >> 1] ?? null;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
