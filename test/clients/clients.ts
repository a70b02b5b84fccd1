/**
 * `npm run test:clients`: clients for TypeScript and Python, generated from the contract that a gateway serves, are used against that
 * gateway. The generators are in this folder and in a virtual environment of Python, apart from what the product depends on. What cannot
 * be had (Python, a registry) is said and left out; in CI it is a failure.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readConfig } from '../../src/config/config.ts';
import { createGateway } from '../../src/gateway.ts';
import { freePort } from '../support/port.ts';

const here = import.meta.dirname;
const root = join(here, '../..');
const email = 'clients@example.com';
const password = 'a long passphrase';

/** Runs a command and shows its output. Resolves with whether it ended with 0. */
async function run(command: string, args: readonly string[], env: Record<string, string> = {}, cwd = here): Promise<boolean> {
  const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'inherit', 'inherit'] });
  // Rejects where the command is not there.
  return once(child, 'close').then(
    ([code]) => code === 0,
    () => false,
  );
}

const folder = mkdtempSync(join(tmpdir(), 'portcullis-clients-'));
const generated = join(here, 'typescript/generated.ts');
const port = await freePort();
const gateway = await createGateway(readConfig({ PORT: String(port), DATA_DIR: join(folder, 'data'), LOG_LEVEL: 'error' }));
await gateway.listen();
const origin = `http://127.0.0.1:${port}`;

interface Contract {
  readonly servers: readonly { readonly url: string }[];
  readonly paths: Readonly<Record<string, Readonly<Record<string, object>>>>;
}

let failed = 0;
let missing = 0;
const judge = (what: string, ok: boolean): void => {
  if (!ok) failed++;
  console.log(`${ok ? 'passed' : 'FAILED'}: ${what}`);
};
const cannot = (what: string, why: string): void => {
  missing++;
  console.log(`NOT RUN: ${what}: ${why}`);
};

async function typescript(contract: string, given: readonly string[]): Promise<void> {
  if (!existsSync(join(here, 'node_modules')) && !(await run('npm', ['ci', '--silent', '--no-audit', '--no-fund'])))
    return cannot('the TypeScript client', 'npm could not install openapi-typescript; is the registry reached?');
  const generator = join(here, 'node_modules/.bin/openapi-typescript');
  judge('a TypeScript client is generated', await run(generator, [contract, '--output', generated]));
  const tsc = join(root, 'node_modules/.bin/tsc');
  judge('a program that uses it has the types of the contract', await run(tsc, ['-p', 'typescript']));
  const words = ['--import', './scripts/loader/register.js', 'test/clients/typescript/use.ts', ...given];
  judge('the program works against the gateway', await run(process.execPath, words, {}, root));
}

async function python(contract: string, given: readonly string[], operations: number): Promise<void> {
  const environment = join(folder, 'venv');
  const bin = join(environment, 'bin');
  if (!(await run('python3', ['-m', 'venv', environment])))
    return cannot('the Python client', 'no Python 3.10 or later with venv is here (Debian: apt-get install python3-venv)');
  if (!(await run(join(bin, 'pip'), ['install', '--quiet', '--disable-pip-version-check', '-r', 'requirements.txt'])))
    return cannot('the Python client', 'pip could not install openapi-python-client; is the registry reached?');
  const settings = join(folder, 'settings.yaml');
  writeFileSync(settings, 'post_hooks: []\nliteral_enums: true\n');
  const output = join(folder, 'portcullis_client');
  const words = ['generate', '--path', contract, '--meta', 'none', '--output-path', output, '--config', settings];
  judge('a Python client is generated', await run(join(bin, 'openapi-python-client'), words));
  const modules = readdirSync(join(output, 'api'), { recursive: true, encoding: 'utf8' }).filter(
    (file) => file.endsWith('.py') && !file.endsWith('__init__.py'),
  );
  judge(`it has all ${operations} operations (${modules.length})`, modules.length === operations);
  judge(
    'a program that uses it works against the gateway',
    await run(join(bin, 'python'), ['use.py', ...given], { PYTHONPATH: folder }),
  );
}

try {
  const registered = await fetch(`${origin}/api/auth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ email, password }),
  });
  if (registered.status !== 201) throw new Error(`the gateway answered ${registered.status}: ${await registered.text()}`);
  const contract = join(folder, 'openapi.json');
  const document = (await (await fetch(`${origin}/api/openapi.json`)).json()) as Contract;
  writeFileSync(contract, JSON.stringify(document));
  const given = [document.servers[0]?.url ?? '', email, password];
  const operations = Object.values(document.paths).flatMap((path) => Object.keys(path)).length;
  await typescript(contract, given);
  // The programs write the same policies.
  await python(contract, given, operations);
} finally {
  await gateway.close();
  rmSync(folder, { recursive: true, force: true });
  rmSync(generated, { force: true });
}
if (missing > 0 && process.env['CI'] === 'true') console.log('FAILED: in CI both clients must run');
process.exit(failed > 0 || (missing > 0 && process.env['CI'] === 'true') ? 1 : 0);
