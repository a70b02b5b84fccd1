import { join } from 'node:path';
import test from 'ava';
import { readSources, violations } from './dependency-rules.ts';

const root = join(import.meta.dirname, '../..');

test.serial('the imports of this repository follow the rules', (t) => {
  t.deepEqual(violations(readSources(root)), []);
});

const BROKEN: readonly (readonly [string, Readonly<Record<string, string>>, RegExp])[] = [
  ['knex outside its room', { 'src/rest/users/routes.ts': `import type { Knex } from 'knex';` }, /knex belongs/],
  ['knex in a dynamic import', { 'src/rest/users/routes.ts': `const k = await import('knex');` }, /knex belongs/],
  ['a name that only ends like a store', { 'src/users/bookstore.ts': `import { knex } from 'knex';` }, /knex belongs/],
  ['the engine outside its room', { 'src/state/live-state.ts': `import opa from '@open-policy-agent/opa-wasm';` }, /engine\.ts/],
  ['the environment', { 'src/main.ts': 'const port = process.env.PORT;' }, /environment/],
  ['the environment by another name', { 'src/main.ts': `import { argv, env } from 'node:process';` }, /environment/],
  ['a page outside of the frame', { 'src/rest/home.ts': `res.type('html').end(text);` }, /sends HTML/],
  ['a text that express makes a page of', { 'src/rest/home.ts': `res.send(text);` }, /sends HTML/],
  ['tests from src', { 'src/main.ts': `import { gateway } from '../test/support/gateway.ts';` }, /nothing outside/],
  ['a file in a pure module', { 'src/mcp/filter/filter.ts': `import { readFileSync } from 'node:fs';` }, /is pure/],
  ['a promise of files', { 'src/mcp/filter/filter.ts': `import { readFile } from 'node:fs/promises';` }, /is pure/],
  [
    'a server behind a pure module',
    {
      'src/protocol/operation.ts': `import {\n  a,\n} from './helper.ts';`,
      'src/protocol/helper.ts': `export { x } from 'express';`,
    },
    /operation\.ts -> src\/protocol\/helper\.ts -> express/,
  ],
  [
    'an import that runs back',
    { 'src/engine/engine.ts': `import type { Snapshot } from '../state/admission.ts';` },
    /engine\.ts imports src\/state\/admission\.ts: src\/state stands after src\/engine/,
  ],
  [
    'an import from a folder within that runs back',
    { 'src/mcp/upstream/stdio/stdio.ts': `import { handle } from '../../requests/handle-request.ts';` },
    /src\/mcp\/requests stands after src\/mcp\/upstream\/stdio/,
  ],
];

for (const [title, files, expected] of BROKEN) {
  test.serial(`the rules find ${title}`, (t) => {
    const found = violations(new Map(Object.entries(files)));
    t.is(found.length, 1, found.join('\n'));
    t.regex(found[0] ?? '', expected);
  });
}

test.serial('an import that the order of folders allows passes', (t) => {
  const sources = {
    'src/users/user-store.ts': `import type { Knex } from 'knex';\nimport { open } from '../db/knex.ts';`,
    'src/db/knex.ts': `import knex from 'knex';`,
    'src/engine/engine.ts': `import opa from '@open-policy-agent/opa-wasm';`,
    'src/config/config.ts': 'export const env = process.env;',
    'src/engine/compile/compile.ts': `import type { Row } from '../../db/knex.ts';\nimport { createHash } from 'node:crypto';`,
  };
  t.deepEqual(violations(new Map(Object.entries(sources))), []);
});
