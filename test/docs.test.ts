/** The lists in `docs/` are complete, and contain nothing that the code does not have. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import test from 'ava';
import type { Need } from '../src/auth/rights.ts';
import { ERRORS } from '../src/base/errors.ts';
import { SETTINGS } from '../src/config/config.ts';
import { readPolicy } from '../src/policies/schema.ts';
import { OPERATIONS } from '../src/rest/contract.ts';

const ROOT = join(import.meta.dirname, '..');
const read = (path: string): string => readFileSync(join(ROOT, path), 'utf8');

/** Returns the rows of the table with this head. */
function table(text: string, head: string): string[][] {
  const [, after = ''] = text.split(`\n${head}\n`);
  const rows = /^(?:\|.*\n?)+/.exec(after)?.[0].trim().split('\n').slice(1) ?? [];
  return rows.map((row) =>
    row
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
}

const codes = (cell: string): string[] => [...cell.matchAll(/`([^`]+)`/g)].map(([, code = '']) => code);

/** Returns the default of each variable. null: there is none, or it is not a plain value. */
function variables(): Map<string, string | null> {
  return new Map(
    Object.entries(SETTINGS).map(([name, setting]) => {
      const { default: value } = (setting(name).schema.describe().flags ?? {}) as { readonly default?: unknown };
      return [name, value === undefined || Array.isArray(value) ? null : String(value)];
    }),
  );
}

test('docs/configuration.md lists every variable, and its default', (t) => {
  const rows = table(read('docs/configuration.md'), '| Variable | Default | Meaning |');
  const known = variables();
  t.true(known.size > 10);
  t.deepEqual(rows.map(([name = '']) => codes(name)[0]).sort(), [...known.keys()].sort());
  for (const [name = '', written = ''] of rows) {
    const value = known.get(codes(name)[0] ?? '') ?? null;
    if (value !== null) t.is(written, `\`${value}\``, name);
    else t.notRegex(written, /^`[\w.]+`$/, `${name} has no plain default`);
  }
});

test('docs/api.md lists every operation of the contract', (t) => {
  const rows = table(read('docs/api.md'), '| Method and path | Who | What |');
  const listed = rows.flatMap(([cell = '']) => {
    const [, methods = '', path] = /^`([A-Z, ]+) (\/\S*)`$/.exec(cell) ?? [];
    return methods.split(', ').map((method) => `${method} ${path}`);
  });
  t.deepEqual(listed.sort(), Object.keys(OPERATIONS).sort());
});

test('docs/api.md says what each operation needs', (t) => {
  const words = (need: Need): string => {
    if (typeof need === 'string') return need;
    return 'all' in need
      ? need.all.map((right) => `\`${right}\``).join(' and ')
      : need.map((right) => `\`${right}\``).join(' or ');
  };
  for (const [cell = '', who = ''] of table(read('docs/api.md'), '| Method and path | Who | What |').slice(1)) {
    const [, methods = '', path = ''] = /^`([A-Z, ]+) (\/\S*)`$/.exec(cell) ?? [];
    const needs = methods
      .split(', ')
      .map((method) => OPERATIONS[`${method} ${path}` as keyof typeof OPERATIONS]?.access ?? 'admin');
    // It also has a token of its own.
    if (path !== '/metrics') t.is(who, [...new Set(needs.map(words))].join('; '), cell);
  }
});

test('docs/api.md lists every code of an error with its status', (t) => {
  const rows = table(read('docs/api.md'), '| Status | `code` |');
  const listed = rows.flatMap(([status, cell = '']) => codes(cell).map((code) => `${status} ${code}`));
  t.deepEqual(
    listed.sort(),
    Object.entries(ERRORS)
      .map(([code, { status }]) => `${status} ${code}`)
      .sort(),
  );
});

test('the API accepts the policies that the documents show', (t) => {
  const blocks = ['README.md', 'docs/policies.md'].flatMap((file) =>
    [...read(file).matchAll(/^```json\n(.*?)^```$/gms)].map(([, text = '']) => JSON.parse(text) as Record<string, unknown>),
  );
  const policies = blocks.filter((block) => 'effect' in block);
  t.true(policies.length >= 4);
  for (const policy of policies) t.notThrows(() => readPolicy(policy), JSON.stringify(policy));
});

/** Returns the Markdown files that people read, as paths from the root of the repository. */
function documents(): string[] {
  const inside = ['docs', 'docs/decisions', 'rego'].flatMap((folder) =>
    readdirSync(join(ROOT, folder)).map((name) => `${folder}/${name}`),
  );
  return [...readdirSync(ROOT), ...inside].filter((name) => name.endsWith('.md'));
}

test('every link of the documents has a target', (t) => {
  for (const file of documents()) {
    for (const [, to = ''] of read(file).matchAll(/\]\((?!https?:)([^)#]+)[^)]*\)/g)) {
      t.true(existsSync(join(ROOT, dirname(file), to)), `${file}: ${to}`);
    }
  }
});

test('every source file that the documents name exists', (t) => {
  for (const file of documents()) {
    for (const [path] of read(file).matchAll(/\b(?:src|test|bench|rego)\/[\w./-]+\.(?:ts|mjs|rego)\b/g)) {
      t.true(existsSync(join(ROOT, path)), `${file}: ${path}`);
    }
  }
});

test('docs/architecture.md names tests for each attack on the sign-in, and they exist', (t) => {
  const rows = table(read('docs/architecture.md'), '| Attack | Tests |');
  t.true(rows.length > 15);
  for (const [attack = '', tests = ''] of rows) {
    const files = tests.split(/; (?=`)/);
    for (const part of files) {
      const text = read(codes(part)[0] ?? '');
      const titles = [...part.matchAll(/“([^”]+)”/g)].map(([, title = '']) => title);
      t.true(titles.length > 0, attack);
      for (const title of titles) t.true(text.includes(`'${title}'`), title);
    }
  }
});

const UNITS: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1_000,
  min: 60_000,
  h: 3_600_000,
  d: 86_400_000,
  day: 86_400_000,
  days: 86_400_000,
  year: 31_536_000_000,
};

/** Returns the times that a cell of the table names, in milliseconds. */
const timesIn = (cell: string): number[] =>
  [...cell.matchAll(/(\d+) (ms|s|min|h|days?|d|year)\b/g)].map(
    ([, count, unit = '']) => Number(count) * (UNITS[unit] ?? Number.NaN),
  );

/** Returns what a constant is in milliseconds, by the unit in its name; null: it is no product of numbers, or the file does not have it. */
function constantIn(text: string, name: string): number | null {
  const [, expression = ''] = new RegExp(`const ${name} = ([\\d_* ]+);`).exec(text) ?? [];
  if (expression === '') return null;
  const product = expression.split('*').reduce((all, factor) => all * Number(factor.replaceAll('_', '')), 1);
  return product * ({ SECONDS: 1_000, S: 1_000, DAYS: 86_400_000 }[name.split('_').at(-1) ?? ''] ?? 1);
}

test('docs/architecture.md names the times that the constants of the source have', (t) => {
  let compared = 0;
  for (const [names = '', value = '', where = ''] of table(
    read('docs/architecture.md'),
    '| Name | Value | Where | What happens when it runs out |',
  )) {
    const files = codes(where).filter((code) => code.endsWith('.ts'));
    const text = files.map(read).join('\n');
    for (const name of files.length === 0 ? [] : codes(names).filter((code) => /^[A-Z_]+$/.test(code)))
      t.regex(text, new RegExp(`\\b${name}\\b`), `${name}: ${where}`);
    for (const file of files) {
      for (const name of codes(names)) {
        const ms = constantIn(read(file), name);
        if (ms === null) continue;
        compared += 1;
        t.true(timesIn(value).includes(ms), `${name} in ${file} is ${ms} ms, and the table says ${value}`);
      }
    }
  }
  t.true(compared > 110);
});

test('docs/architecture.md names functions and constants that are in the files of their row', (t) => {
  const rows = table(read('docs/architecture.md'), '| If you look for | Open | Then |');
  t.true(rows.length > 50);
  for (const [question = '', ...places] of rows) {
    const named = codes(places.join(' '));
    const files = named.filter((code) => code.startsWith('src/') && code.endsWith('.ts'));
    const text = files.map(read).join('\n');
    const symbols = named.filter((code) => /^[A-Za-z_]\w*$/.test(code) && !(code in SETTINGS));
    for (const symbol of symbols) t.regex(text, new RegExp(`\\b${symbol}\\b`), `${question}: ${symbol}`);
  }
});
