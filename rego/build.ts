/**
 * Builds `gateway.wasm` from the Rego beside it. The same sources give the same bytes: OPA writes the paths of the sources into the
 * module, so it gets copies in a temporary folder, by name only. `--check` only compares the result with the files here.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';

const SOURCES = ['gateway.rego', 'reference.rego'];
const ENTRYPOINTS = [
  ...['decision', 'decisions', 'target', 'survey', 'matching', 'verdicts', 'valid_pattern'].map(
    (rule) => `portcullis/gateway/${rule}`,
  ),
  ...['decision', 'target'].map((rule) => `portcullis/reference/${rule}`),
];
const FOLDER = import.meta.dirname;

interface Recorded {
  readonly sha256: string;
  readonly opa_version: string;
  readonly sources: Readonly<Record<string, string>>;
}

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

function findOpa(): string {
  const { PATH = '', GOPATH = join(homedir(), 'go') } = process.env;
  const folders = [...PATH.split(delimiter), ...GOPATH.split(delimiter).map((path) => join(path, 'bin'))];
  const found = folders.map((folder) => join(folder, 'opa')).find((path) => existsSync(path));
  if (found === undefined) throw new Error('opa is neither on PATH nor in $(go env GOPATH)/bin');
  return found;
}

function build(opa: string): { wasm: Buffer; recorded: Recorded } {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-rego-'));
  try {
    for (const source of SOURCES) copyFileSync(join(FOLDER, source), join(folder, source));
    const entrypoints = ENTRYPOINTS.flatMap((name) => ['-e', name]);
    execFileSync(opa, ['build', '-t', 'wasm', ...entrypoints, '-o', 'bundle.tar.gz', ...SOURCES], { cwd: folder });
    execFileSync('tar', ['-xzf', 'bundle.tar.gz', '/policy.wasm'], { cwd: folder, stdio: ['ignore', 'ignore', 'ignore'] });
    const wasm = readFileSync(join(folder, 'policy.wasm'));
    const version = /^Version: (\S+)$/m.exec(execFileSync(opa, ['version'], { encoding: 'utf8' }))?.[1];
    if (version === undefined) throw new Error('the output of opa version has no version');
    const sources = Object.fromEntries(SOURCES.map((source) => [source, sha256(readFileSync(join(FOLDER, source)))]));
    return { wasm, recorded: { sha256: sha256(wasm), opa_version: version, sources } };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const { wasm, recorded } = build(findOpa());
const record = `${JSON.stringify(recorded, null, 2)}\n`;
const wasmFile = join(FOLDER, 'gateway.wasm');
const recordFile = `${wasmFile}.json`;
if (process.argv.includes('--check')) {
  const same = wasm.equals(readFileSync(wasmFile)) && record === readFileSync(recordFile, 'utf8');
  process.stdout.write(
    same
      ? 'gateway.wasm is what OPA builds from the Rego\n'
      : 'gateway.wasm is not what OPA builds from the Rego: run npm run rego:build\n',
  );
  process.exitCode = same ? 0 : 1;
} else {
  writeFileSync(wasmFile, wasm);
  writeFileSync(recordFile, record);
  process.stdout.write(`gateway.wasm: ${wasm.length} bytes, opa ${recorded.opa_version}\n`);
}
