/**
 * What `ts-blank-space/register` does, with the result kept on disk. Every script and every test file is a process of its own, and loading
 * the TypeScript compiler in each of them takes longer than many tests. A kept file is named by the hash of its source, so it never has to
 * be removed for being out of date.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const require = createRequire(import.meta.url);
const { version } = require('ts-blank-space/package.json');
const folder = join(root, 'node_modules/.cache/typescript-erased');
mkdirSync(folder, { recursive: true });

function erased(source) {
  const path = join(folder, `${createHash('sha256').update(version).update(source).digest('hex')}.js`);
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
  }
  const { default: erase } = require('ts-blank-space');
  const text = erase(source);
  // Other processes and threads may read and write at the same time: they see the whole file or none.
  const draft = `${path}.${randomUUID()}`;
  writeFileSync(draft, text);
  renameSync(draft, path);
  return text;
}

/** For `register` and for `registerHooks`: `nextLoad` returns a promise for the former. */
export function load(url, context, nextLoad) {
  if (!url.startsWith('file:') || !new URL(url).pathname.endsWith('.ts')) return nextLoad(url, context);
  const source = erased(readFileSync(fileURLToPath(url), 'utf8'));
  return { format: 'module', shortCircuit: true, source: `${source}\n//# sourceURL=${url}` };
}
