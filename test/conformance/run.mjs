// Runs the official conformance suite and compares it, scenario by scenario,
// with a recorded baseline. Works on Node 20 and later, loopback only.
//
//   node run.mjs --record baseline.json            # straight at the fixture
//   TOKEN=... node run.mjs --url http://127.0.0.1:8080/mcp/fixture
//        # through a gateway that forwards to http://127.0.0.1:4110/mcp and
//        # whose policy lets TOKEN's user do everything on that target
//   VIA=register-target.mjs node run.mjs --client  # the gateway's upstream half
//        # (client-probe.mjs explains VIA; without it the probe goes straight)
// conformance.ts does the last two against a gateway that it starts.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = dirname(fileURLToPath(import.meta.url));
const { values: opt } = parseArgs({
  options: {
    record: { type: 'string' },
    url: { type: 'string' },
    baseline: { type: 'string', default: join(here, 'baseline.json') },
    'fixture-port': { type: 'string', default: '4110' },
    'fixture-only': { type: 'boolean' },
    'no-fixture': { type: 'boolean' },
    'proxy-port': { type: 'string', default: '4111' },
    client: { type: 'boolean' },
  },
});

const LEGS = [
  // the revision sets first: they are the frozen requirements
  ['0.2', '--requirements', '2026-07-28'],
  ['0.2', '--requirements', '2025-11-25'],
  ['0.2', '--suite', 'all', '--spec-version', '2025-06-18'],
  ['0.2', '--suite', 'all', '--spec-version', '2025-03-26'],
  ['0.1', '--suite', 'all'],
];

const CLIENT_LEGS = [
  // scenario, wire version, checks that pass without a gateway
  ['initialize', '2025-11-25', 1],
  ['tools_call', '2025-11-25', 2],
  ['sse-retry', '2025-11-25', 3],
  ['elicitation-sep1034-client-defaults', '2025-11-25', 5],
  ['tools_call', '2026-07-28', 2],
  ['request-metadata', '2026-07-28', 8],
  ['http-standard-headers', '2026-07-28', 9],
  ['http-custom-headers', '2026-07-28', 18],
  ['http-invalid-tool-headers', '2026-07-28', 12],
  ['sep-2322-client-request-state', '2026-07-28', 5],
  ['json-schema-ref-no-deref', '2026-07-28', 1],
];

const children = [];
function start(file, args, env = {}) {
  const child = spawn(process.execPath, [join(here, file), ...args], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'inherit', 'pipe'],
  });
  children.push(child);
  return new Promise((resolve, reject) => {
    child.stderr.on('data', (d) => {
      process.stderr.write(d);
      resolve(child);
    }); // each prints one line once it listens
    child.on('exit', (code) => reject(new Error(`${file} exited with ${code}`)));
  });
}
const stopAll = () =>
  children.forEach((c) => {
    c.removeAllListeners('exit');
    c.kill();
  });
process.on('SIGINT', () => {
  stopAll();
  process.exit(130);
});
process.on('SIGTERM', () => {
  stopAll();
  process.exit(143);
});

async function cli(version, args) {
  const out = mkdtempSync(join(tmpdir(), 'conformance-'));
  const entry = join(here, 'node_modules', `conformance-${version}`, 'dist', 'index.js');
  const child = spawn(process.execPath, ['--import', join(here, 'node20-globsync.mjs'), entry, ...args, '-o', out], {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: here,
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (d) => {
      text += d;
    });
  const [code] = await once(child, 'close');
  rmSync(out, { recursive: true, force: true });
  return { code, text };
}

async function leg([version, ...args], url) {
  const { code, text } = await cli(version, ['server', '--url', url, ...args]);
  const scenarios = {};
  for (const [, name, passed, failed] of text.matchAll(/^[✓✗] (\S+): (\d+) passed, (\d+) failed$/gm))
    scenarios[name] = [Number(passed), Number(failed)];
  const sum = (i) => Object.values(scenarios).reduce((n, s) => n + s[i], 0);
  return { exit: code, passed: sum(0), failed: sum(1), scenarios };
}

// What the suite does not test: an endpoint that asks for a token.
async function challengeProblems(url) {
  const problems = [];
  const ask = (headers) =>
    fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...headers },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
    });
  for (const [what, headers] of [
    ['no token', {}],
    ['a wrong token', { authorization: 'Bearer wrong' }],
  ]) {
    const res = await ask(headers);
    const challenge = res.headers.get('www-authenticate') ?? '';
    if (res.status !== 401) problems.push(`${what}: expected 401, got ${res.status}`);
    const meta = /resource_metadata="([^"]+)"/.exec(challenge)?.[1];
    if (!/^Bearer /i.test(challenge) || !meta) {
      problems.push(`${what}: challenge lacks Bearer resource_metadata: ${challenge}`);
      continue;
    }
    // only the path is used: the advertised origin may be a public name
    const prm = URL.canParse(meta)
      ? await fetch(new URL(new URL(meta).pathname, url))
          .then((r) => r.json())
          .catch(() => null)
      : null;
    if (!prm?.resource || !prm?.authorization_servers?.length)
      problems.push(`${what}: ${meta} is no protected-resource metadata`);
  }
  return problems;
}

async function clientLegs() {
  let bad = 0;
  for (const [scenario, wire, want] of CLIENT_LEGS) {
    const { text } = await cli('0.2', [
      'client',
      '--command',
      'node client-probe.mjs',
      '--scenario',
      scenario,
      '--spec-version',
      wire,
    ]);
    const [, passed, total] = /Passed: (\d+)\/(\d+)/.exec(text) ?? [];
    const ok = Number(passed) === want && Number(total) === want;
    if (!ok) bad++;
    console.log(`${ok ? 'ok  ' : 'DIFF'} client ${scenario} ${wire}: ${passed ?? '?'}/${total ?? '?'} (want ${want})`);
  }
  return bad;
}

let bad = 0;
try {
  if (opt.client) {
    bad = await clientLegs();
    process.exit(bad ? 1 : 0);
  }
  if (!opt['no-fixture']) await start('fixture-server.mjs', [], { PORT: opt['fixture-port'] });
  if (opt['fixture-only']) await once(children[0], 'close');
  let target = `http://127.0.0.1:${opt['fixture-port']}/mcp`;
  if (opt.url) {
    for (const p of await challengeProblems(opt.url)) {
      bad++;
      console.log(`DIFF challenge  ${p}`);
    }
    const { origin, pathname } = new URL(opt.url);
    await start('bearer-proxy.mjs', [opt['proxy-port'], origin]);
    target = `http://127.0.0.1:${opt['proxy-port']}${pathname}`;
  }
  const results = {};
  const baseline = existsSync(opt.baseline) && !opt.record ? JSON.parse(readFileSync(opt.baseline, 'utf8')) : null;
  for (const l of LEGS) {
    const name = l.join(' ');
    const r = await leg(l, target);
    results[name] = r;
    console.log(`${name}: exit ${r.exit}, ${Object.keys(r.scenarios).length} scenarios, ${r.passed} passed, ${r.failed} failed`);
    const want = baseline?.[name];
    if (!want) {
      if (!opt.record) {
        bad++;
        console.log('DIFF no baseline for this leg');
      }
      continue;
    }
    if (want.exit !== r.exit) {
      bad++;
      console.log(`DIFF exit code ${want.exit} -> ${r.exit}`);
    }
    for (const s of new Set([...Object.keys(want.scenarios), ...Object.keys(r.scenarios)])) {
      const [a, b] = [want.scenarios[s], r.scenarios[s]].map(String);
      if (a !== b) {
        bad++;
        console.log(`DIFF ${s}: passed,failed ${a} -> ${b}`);
      }
    }
  }
  if (opt.record) writeFileSync(opt.record, `${JSON.stringify(results, null, 1)}\n`);
} finally {
  stopAll();
}
console.log(bad ? `${bad} difference(s) from the baseline` : 'same as the baseline');
process.exit(bad ? 1 : 0);
