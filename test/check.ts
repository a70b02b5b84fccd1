/** `npm run check`: every check of the sources that does not run them. With `CI=true` no check may be left out. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { readSources, violations } from './support/dependency-rules.ts';
import { findOpa, OPA_HINT } from './support/opa.ts';

const root = join(import.meta.dirname, '..');
const inCi = process.env.CI === 'true';
const tool = (name: string) => join(root, 'node_modules/.bin', name);

interface Outcome {
  readonly ok: boolean;
  readonly output: string;
}

interface Step {
  readonly name: string;
  run(): Promise<Outcome>;
}

async function execute(command: string, args: readonly string[]): Promise<Outcome> {
  const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk.toString();
    });
  }
  try {
    const [code] = await once(child, 'close');
    return { ok: code === 0, output };
  } catch (error) {
    return { ok: false, output: String(error) };
  }
}

const command = (name: string, path: string, args: readonly string[]): Step => ({ name, run: () => execute(path, args) });

function steps(): Step[] {
  return [
    command('types', tool('tsc'), ['-p', 'tsconfig.json']),
    command('types of the scripts of pages', tool('tsc'), ['-p', 'elements']),
    command('types of the build', tool('tsc'), ['-p', 'tsconfig.build.json', '--noEmit']),
    command('lint and format (biome)', tool('biome'), ['ci', '--error-on-warnings', '--colors=off', '.']),
    {
      name: 'dependency rules',
      async run() {
        const found = violations(readSources(root));
        return { ok: found.length === 0, output: found.join('\n') };
      },
    },
  ];
}

function regoSteps(opa: string): Step[] {
  const files = readdirSync(join(root, 'rego'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.rego'));
  const paths = files.map((name) => join('rego', name));
  // `opa test` is content with no test at all.
  if (!paths.some((path) => path.endsWith('_test.rego'))) {
    return [{ name: 'rego', run: async () => ({ ok: false, output: 'rego/ holds no _test.rego' }) }];
  }
  return [
    command('opa check --strict', opa, ['check', '--strict', ...paths]),
    command('opa fmt', opa, ['fmt', '--diff', '--fail', ...paths]),
    command('opa test', opa, ['test', ...paths]),
    command('gateway.wasm is what opa builds', process.execPath, [
      '--import',
      './scripts/loader/register.js',
      'rego/build.ts',
      '--check',
    ]),
  ];
}

const opa = findOpa();
const all = [...steps(), ...('path' in opa ? regoSteps(opa.path) : [])];
const failed: string[] = [];
for (const step of all) {
  const began = performance.now();
  const { ok, output } = await step.run();
  console.log(`${ok ? '✔' : '✘'} ${step.name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  if (ok) continue;
  failed.push(step.name);
  console.log(output.trimEnd().replaceAll(/^/gm, '    '));
}
if ('missing' in opa) {
  const line = `everything about rego/ (${opa.missing}). To have it: ${OPA_HINT}`;
  if (inCi) failed.push('opa');
  console.log(inCi ? `✘ CI needs ${line}` : `- left out: ${line}`);
}
const outcome = failed.length === 0 ? 'clean' : `failed: ${failed.join(', ')}`;
console.log(`check: ${outcome}${'missing' in opa && !inCi ? ' (without rego)' : ''}`);
process.exitCode = failed.length === 0 ? 0 : 1;
