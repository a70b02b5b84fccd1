/** Patches for `git apply`, with git itself. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { patchOf } from '../../src/console/policy-changes/patch.ts';
import { folder } from '../cli/cli.ts';

const lines = (...all: string[]): string => all.map((line) => `${line}\n`).join('');

test('git applies a patch to the file that it was made from', (t) => {
  const dir = folder(t);
  const path = 'policies/a.yaml';
  mkdirSync(join(dir, 'policies'));
  const ten = ['1', '2', '3', '4', '5', '6', '7', '8', '9', '10'];
  const pairs: readonly (readonly [string, string | null])[] = [
    [lines(...ten), lines(...ten.map((line) => (line === '5' ? 'five' : line)))],
    [lines(...ten), lines('0', ...ten)],
    [lines(...ten), lines(...ten, '11')],
    [lines(...ten), lines(...ten.slice(1, 9))],
    [lines(...ten), lines('1', '3', '3', '4', '9', '10')],
    [lines('a', 'a', 'a'), lines('a', 'a')],
    [lines('a'), lines('b')],
    [lines('name: -- @@', ' x', '-y'), lines('name: -- @@', '+x')],
    [lines(...ten), null],
  ];
  for (const [before, after] of pairs) {
    writeFileSync(join(dir, path), before);
    execFileSync('git', ['apply'], { cwd: dir, input: patchOf(path, before, after) ?? '', stdio: ['pipe', 'ignore', 'inherit'] });
    t.is(existsSync(join(dir, path)) ? readFileSync(join(dir, path), 'utf8') : null, after);
  }
  t.is(patchOf(path, 'a\n', 'a\n'), null);
});
