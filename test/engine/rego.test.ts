/** The Rego as OPA itself sees it. Where the pinned OPA is not installed, this file says so and tests nothing. */
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import fc from 'fast-check';
import { compile } from '../../src/engine/compile/compile.ts';
import { loadPolicyModule } from '../../src/engine/engine.ts';
import { findOpa, OPA_HINT } from '../support/opa.ts';
import { matcher, world } from './arbitraries.ts';
import { decide, decideTarget } from './oracle.ts';
import { inputOf, type Verdict, verdictAnswer } from './support.ts';

const ROOT = join(import.meta.dirname, '../..');
const found = findOpa();
const opa = 'path' in found ? found.path : null;
const withOpa = opa === null ? test.skip : test;
if ('missing' in found) test(`not compared with stock OPA: ${found.missing} (${OPA_HINT})`, (t) => t.pass());

const run = (...args: string[]): string => execFileSync(opa ?? '', args, { cwd: ROOT, encoding: 'utf8', maxBuffer: 2 ** 28 });

withOpa('the Rego is formatted, strict, and passes its own tests', (t) => {
  t.is(run('fmt', '--list', 'rego'), '');
  t.notThrows(() => run('check', '--strict', 'rego'));
  t.regex(run('test', 'rego'), /^PASS: \d+\/\d+\s*$/);
});

withOpa('gateway.wasm is what OPA builds from the Rego', (t) => {
  const { status, stdout } = spawnSync(
    process.execPath,
    ['--import', './scripts/loader/register.js', 'rego/build.ts', '--check'],
    {
      cwd: ROOT,
      encoding: 'utf8',
    },
  );
  t.is(status, 0, stdout);
});

test.serial('gateway.wasm was built from the Rego files of this tree', (t) => {
  const { sources } = JSON.parse(readFileSync(join(ROOT, 'rego/gateway.wasm.json'), 'utf8')) as {
    sources: Record<string, string>;
  };
  t.deepEqual(Object.keys(sources), ['gateway.rego', 'reference.rego']);
  for (const [source, hash] of Object.entries(sources)) {
    t.is(
      createHash('sha256')
        .update(readFileSync(join(ROOT, 'rego', source)))
        .digest('hex'),
      hash,
      source,
    );
  }
});

const WORLDS = 100;
const REQUESTS = 40;
const RULES = ['gateway.decision', 'reference.decision', 'gateway.target', 'reference.target'];
const QUERY = `[[${RULES.map((_, i) => `a${i}`).join(', ')}] | some asked in input; ${RULES.map((rule, i) => `a${i} := data.portcullis.${rule} with input as asked`).join('; ')}]`;

withOpa('stock OPA gives the same answers on the exported documents', async (t) => {
  const { checkStoredPattern: checkPattern } = await loadPolicyModule();
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-stock-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const [data, input] = [join(folder, 'data.json'), join(folder, 'input.json')];
  for (const { policies, requests, patterns } of fc.sample(world({ maxPolicies: 10, requests: REQUESTS }), WORLDS)) {
    writeFileSync(data, compile(policies, { checkPattern }).json);
    writeFileSync(input, JSON.stringify(requests.map(({ principal, target, object }) => inputOf(principal, target, object))));
    const output = JSON.parse(
      run('eval', '-d', 'rego/gateway.rego', '-d', 'rego/reference.rego', '-d', data, '-i', input, QUERY),
    ) as {
      result: [{ expressions: [{ value: Verdict[][] }] }];
    };
    const answers = output.result[0].expressions[0].value;
    t.is(answers.length, requests.length);
    for (const [i, { principal, target, object }] of requests.entries()) {
      const call = decide(policies, principal, target, object, matcher(patterns));
      const use = decideTarget(policies, principal, target);
      t.deepEqual(answers[i]?.map(verdictAnswer), [call, call, use, use], JSON.stringify({ policies, request: requests[i] }));
    }
  }
});
