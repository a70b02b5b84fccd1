/** Faults of the compiler: patches of its source, tried on a copy. */
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { compile } from '../../../src/engine/compile/compile.ts';

const SOURCES = join(import.meta.dirname, '../../../src');

type Patch = readonly [file: string, find: string, put: string];

export const PATCHES: readonly Patch[] = [
  ['compile.ts', 'policy.enabled ? read(policy) : null', 'read(policy)'],
  ['compile.ts', 'yield* sortedInSteps(found, (a, b) => byReadingOrder(a, b) < 0)', 'found'],
  ['compile.ts', 'return b.priority - a.priority;', 'return a.priority - b.priority;'],
  ['compile.ts', 'return b.priority - a.priority;', 'return (b.priority - a.priority) | 0;'],
  ['compile.ts', 'return b.priority - a.priority;', 'return String(b.priority) < String(a.priority) ? -1 : 1;'],
  ['compile.ts', "return a.effect === 'deny' ? -1 : 1;", "return a.effect === 'deny' ? 1 : -1;"],
  ['compile.ts', 'if (a.effect !== b.effect)', 'if (false)'],
  ['compile.ts', 'return compareText(a.id, b.id)', 'return compareText(b.id, a.id)'],
  ['compile.ts', 'if (policy.target !== null) {', 'if (false) {'],
  ['compile.ts', 'insert(node, policy, rank);', 'insert(index.every, policy, rank);'],
  ['compile.ts', 'unmatched: read.length,', 'unmatched: read.length - 1,'],
  ['compile.ts', 'unmatched: read.length,', 'unmatched: 0,'],
  ['compile.ts', 'order: read.map(({ effect, id }) => [effect, id])', "order: read.map(({ id }) => ['allow', id])"],
  [
    'compile.ts',
    "const speaksOfTarget = policy.effect === 'allow' || (",
    "const speaksOfTarget = policy.effect === 'allow' && (",
  ],
  ['compile.ts', "(policy.type === 'all' && policy.pattern === null)", "(policy.type === 'all')"],
  ['compile.ts', "(policy.type === 'all' && policy.pattern === null)", '(policy.pattern === null)'],
  [
    'compile.ts',
    "const types = policy.type === 'all' ? RESOURCE_TYPES : [policy.type];",
    "const types = policy.type === 'all' ? ['tool'] : [policy.type];",
  ],
  ['compile.ts', "const types = policy.type === 'all' ? RESOURCE_TYPES : [policy.type];", 'const types = RESOURCE_TYPES;'],
  ['compile.ts', 'node.use[kind][value] ??= rank;', 'node.use[kind][value] = rank;'],
  ['compile.ts', 'if (speaksOfTarget) node.use', 'node.use'],
  ['compile.ts', 'bucket.exact[place.text] ??= rank;', 'bucket.exact[place.text] = rank;'],
  ['compile.ts', 'bucket.any ??= rank;', 'bucket.any = rank + 1;'],
  ['compile.ts', "if (kind === 'exact') return", "if (kind === 'exact' || kind === 'prefix') return"],
  ['compile.ts', "text === '' && !oneLine", "text === ''"],
  ['compile.ts', 'test: NameTest = [rank, oneLine ?', 'test: NameTest = [rank, false ?'],
  ['compile.ts', "kind === 'prefix' ? 'start' : 'end'", "'start'"],
  ['lower.ts', 'characters.slice(-size)', 'characters.slice(0, size)'],
  ['lower.ts', 'length < 4 ? length : length - (length % 4)', 'length < 4 ? length : length - (length % 4) + 1'],
  ['lower.ts', "const length = side === 'start' ? size : -size;", 'const length = size;'],
  ['lower.ts', 'const characters = [...text];', "const characters = text.split('');"],
  ['compile.ts', "test.slice(1).join('\\0')", 'test[1]'],
  ['compile.ts', 'guard.texts.map((text)', 'guard.texts.slice(0, 1).map((text)'],
  ['lower.ts', "if (anchor?.kind !== 'assert' ||", "if (anchor?.kind === 'chars' ||"],
  ['lower.ts', "return texts.includes('') ? null : texts;", 'return texts;'],
  ['lower.ts', "if (item.kind === 'assert') continue;", "if (item.kind === 'assert') { run += '^'; continue; }"],
  ['lower.ts', 'if (others.length === 0) run += text;', 'if (true) run += text;'],
  ['lower.ts', 'item.min > 0) consider', 'item.min >= 0) consider'],
  ['lower.ts', 'item.min > 0 ? outermost', 'item.min >= 0 ? outermost'],
  ['lower.ts', "return anchored ? filler : 'anything';", "return anchored ? 'nothing' : 'anything';"],
  ['lower.ts', "return anchored ? filler : 'anything';", 'return filler;'],
  ['lower.ts', "return anchored ? filler : 'anything';", "return 'anything';"],
  ['lower.ts', "if (sameRanges(item.ranges, ANY)) return 'anything';", "return 'anything';"],
  ['lower.ts', "return sameRanges(item.ranges, ANY_BUT_NEWLINE) ? 'one line' : 'nothing';", "return 'one line';"],
  ['lower.ts', 'next.min === 0 && next.max === null', 'next.max === null'],
  ['lower.ts', 'next.min === 0 && next.max === null', 'next.min === 0'],
  ['lower.ts', "const oneLine = left === 'one line' || right === 'one line';", 'const oneLine = false;'],
  ['lower.ts', "if (oneLine && (left === 'anything' || right === 'anything')) {", 'if (false) {'],
  ['lower.ts', "(right === 'nothing' ? 'exact' : 'prefix')", "'prefix'"],
  ['lower.ts', "(right === 'nothing' ? 'exact' : 'prefix')", "'exact'"],
  ['lower.ts', ": right === 'nothing' ? 'suffix' : 'contains'", ": 'contains'"],
  [
    'lower.ts',
    'few(heads.flatMap((head) => all.map((tail) => head + tail)))',
    'few(heads.flatMap((head) => all.slice(0, 1).map((tail) => head + tail)))',
  ],
  ['lower.ts', 'heads.map((head) => head + only)', 'heads.map((head) => only + head)'],
  ['lower.ts', "node.min === 0 ? [''] : []", '[]'],
  ['lower.ts', 'if (times >= node.min) all', 'all'],
  ['re2.ts', "at: flags.multiline ? 'line_start' : 'text_start'", "at: 'text_start'"],
  ['re2.ts', "at: flags.multiline ? 'line_end' : 'text_end'", "at: 'text_end'"],
  ['re2.ts', 'ranges: flags.dotAll ? ANY : ANY_BUT_NEWLINE', 'ranges: ANY'],
  ['re2.ts', 'ranges: flags.dotAll ? ANY : ANY_BUT_NEWLINE', 'ranges: ANY_BUT_NEWLINE'],
  ['re2.ts', 'flags.fold ? fold(ranges) : normalize(ranges)', 'normalize(ranges)'],
  ['re2.ts', 'negative ? negate(inCase(ranges)) : inCase(ranges)', 'inCase(ranges)'],
];

export interface Copy {
  readonly compile: typeof compile;
}

/** The patches whose text the sources no longer have. */
export function stalePatches(): readonly string[] {
  const stale = PATCHES.filter(([file, find]) => !readFileSync(join(SOURCES, 'engine/compile', file), 'utf8').includes(find));
  return stale.map(([file, find]) => `${file}: ${find}`);
}

/** Returns the compiler with the patch. `remove` deletes its files. */
export async function patched([file, find, put]: Patch): Promise<{ copy: Copy; remove: () => void }> {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-mutant-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true });
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  const compiler = join(folder, 'engine/compile');
  for (const part of ['engine/compile', 'base/turns']) mkdirSync(join(folder, part), { recursive: true });
  const parts = ['compile', 'lower', 'pattern', 're2', 'characters', 'policy', 'weight', 'automaton', 'texts'].map(
    (name) => `engine/compile/${name}`,
  );
  for (const part of [...parts, 'base/turns/slices', 'base/kept'])
    cpSync(join(SOURCES, `${part}.ts`), join(folder, `${part}.ts`));
  const source = readFileSync(join(compiler, file), 'utf8');
  writeFileSync(
    join(compiler, file),
    source.replace(find, () => put),
  );
  const copy = (await import(pathToFileURL(join(compiler, 'compile.ts')).href)) as Copy;
  return { copy, remove };
}
