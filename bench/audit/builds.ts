/** The gateway as it is, and a copy of it that records nothing: built from `src/` for this run, into its own folder. */
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import tsBlankSpace from 'ts-blank-space';
import type { Guardian } from '../../test/support/databases/guardian.ts';

const ROOT = join(import.meta.dirname, '../..');

export interface Builds {
  /** What node runs. */
  readonly whole: string;
  readonly unrecorded: string;
}

/** What `dist/` finds beside it. */
function place(folder: string): string {
  mkdirSync(folder);
  for (const name of ['node_modules', 'rego', 'fonts', 'elements']) symlinkSync(join(ROOT, name), join(folder, name));
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  return join(folder, 'dist');
}

export async function build(guardian: Guardian): Promise<Builds> {
  const whole = place(join(guardian.folder, 'whole'));
  const unrecorded = place(join(guardian.folder, 'unrecorded'));
  await guardian.run('npm', ['run', '--silent', 'build'], { timeoutMs: 300_000 });
  for (const folder of [whole, unrecorded]) cpSync(join(ROOT, 'dist'), folder, { recursive: true });
  const instead = readFileSync(join(import.meta.dirname, 'unrecorded.ts'), 'utf8');
  writeFileSync(join(unrecorded, 'audit/writer.js'), tsBlankSpace(instead));
  return { whole: join(whole, 'main.js'), unrecorded: join(unrecorded, 'main.js') };
}
