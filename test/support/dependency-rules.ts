/** The rules on imports (docs/architecture.md, "Where things are"), checked on the sources. `npm run check` runs them. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';

/** Path from the root of the repository -> text. */
export type Sources = ReadonlyMap<string, string>;

interface Import {
  readonly name: string;
  /** Whether the import exists only for types, and is erased before the file runs. */
  readonly typeOnly: boolean;
}

const ROOMS: readonly { readonly name: RegExp; readonly room: RegExp; readonly rule: string }[] = [
  { name: /^knex(\/|$)/, room: /^src\/(db\/.*|(.*\/)?[a-z]+-store)\.ts$/, rule: 'knex belongs in *-store.ts and src/db' },
  {
    name: /^@open-policy-agent\/opa-wasm/,
    room: /^src\/engine\/engine\.ts$/,
    rule: 'opa-wasm belongs in src/engine/engine.ts',
  },
  // Only tests and benchmarks install it.
  { name: /^uuid$/, room: /^(test|bench)\//, rule: 'src/base/ids.ts makes ids' },
];

/**
 * Folders in the order in which they build on each other. A file imports from its own folder, from folders that stand before it,
 * and from nothing that stands after it; a folder that is not listed counts as the nearest one above it that is.
 */
const ORDER: readonly string[] = [
  'src/base', // errors, log, time slices, budgets, checks of values
  'src/base/turns', // who gets the thread next, and for how long
  'src/base/network', // addresses and servers that somebody else names
  'src/base/json', // strict reading of JSON, whole or in steps
  'src/base/work', // worker threads for long computations
  'src/config', // environment and files
  'src/clients', // what MCP clients need to know of the gateway
  'src/db', // connections, migrations, the counter of changes
  'src/engine/compile', // policies to Rego data
  'src/engine', // the WASM module and its one decision function
  'src/protocol', // MCP as the specification says it, without I/O
  'src/users',
  'src/auth', // tokens, keys, the vault, rights
  'src/auth/sign-in', // local sign-in: registration, passwords, logins
  'src/providers', // companies' OpenID providers, their tokens and users
  'src/targets',
  'src/sessions',
  'src/state', // the live snapshot and the admission to it
  'src/http', // what REST and MCP share of HTTP
  'src/browser', // browser sessions, markup, and the pages for people
  'src/oauth', // the authorization server for OAuth clients
  'src/scim', // users and groups from companies' directories
  'src/replicas',
  'src/audit/chain', // what a MAC covers, without I/O
  'src/audit/chain/tables', // the chains in the database
  'src/audit/records', // what is recorded, and its rows
  'src/audit/search', // pages, filters, recorded decisions
  'src/audit', // the writer, the index
  'src/audit/verify', // exports and their verification
  'src/audit/upkeep', // removal by age, erasure, copies of the heads
  'src/policies/analysis',
  'src/policies/limits', // what the policies of an owner may say
  'src/policies',
  'src/policies/files',
  'src/policies/invariants', // what no change of the policies may break
  'src/policies/sets',
  'src/policies/review', // reports for people who review policies in git
  'src/policies/replay',
  'src/policies/suggest',
  'src/policies/drafts',
  'src/policies/heavy',
  'src/mcp/upstream',
  'src/mcp/upstream/stdio',
  'src/mcp/upstream/bridge',
  'src/connections', // users' own accounts at targets: authorization servers, tokens
  'src/mcp/limits',
  'src/mcp/sessions',
  'src/mcp/filter', // what a caller sees of a result, without I/O
  'src/mcp/context', // what the steps of a request share
  'src/mcp/answers', // what a target sends back
  'src/mcp/requests', // the steps of a request, in their order
  'src/mcp/aggregate',
  'src/mcp',
  'src/rest/openapi',
  'src/rest/users',
  'src/rest/accounts',
  'src/rest/providers',
  'src/rest/rights',
  'src/rest/grants',
  'src/rest/policies',
  'src/rest/owners',
  'src/rest/invariants',
  'src/rest/policy-sets',
  'src/rest/policy-questions',
  'src/rest/policy-drafts',
  'src/rest/audit',
  'src/rest/targets',
  'src/rest/sessions',
  'src/rest/connections',
  'src/rest/gateway',
  'src/rest',
  'src/console', // pages over the operations of REST
  'src',
  'src/cli', // its `start` runs the gateway
];

function rankOf(file: string): number {
  let folder = dirname(file);
  for (;;) {
    const rank = ORDER.indexOf(folder);
    if (rank !== -1 || folder === '.') return rank;
    folder = dirname(folder);
  }
}

/** Pure files. They and everything that they import use no server, database, engine or file. */
const PURE = [
  'src/engine/compile/compile.ts',
  'src/policies/sets/offline.ts',
  'src/policies/review/lint-folder.ts',
  'src/policies/review/sarif.ts',
  'src/policies/files/test-file.ts',
  'src/policies/files/file.ts',
  'src/policies/sets/plan.ts',
  'src/policies/files/yaml.ts',
  'src/policies/analysis/analyse.ts',
  'src/policies/analysis/compare.ts',
  'src/protocol/operation.ts',
  'src/mcp/filter/filter.ts',
  'src/mcp/work.ts',
  'src/engine/decision.ts',
  'src/engine/explain.ts',
  'src/engine/input.ts',
  'src/audit/records/records.ts',
  'src/auth/principal.ts',
];
const IMPURE =
  /^(express|knex|mysql2|libsql|undici|@open-policy-agent\/opa-wasm|node:(fs|http|https|http2|net|child_process|worker_threads))(\/|$)/;

const OUTSIDE_SRC = /^(test|bench)\//;
const CONFIG = 'src/config/config.ts';
const READS_ENVIRONMENT =
  /\bprocess\s*(\.|\?\.)\s*env\b|\bprocess\s*\[\s*['"`]env['"`]|import\s*(type\s*)?\{[^}]*\benv\b[^}]*\}\s*from\s*['"](node:)?process['"]/;

export function readSources(root: string): Sources {
  const files = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'));
  return new Map(files.map((name) => [`src/${name.replaceAll('\\', '/')}`, readFileSync(join(root, 'src', name), 'utf8')]));
}

/** Finds the imports of formatted code. A comment line that begins with a whole import statement would count as one. */
function importsOf(text: string): Import[] {
  const statements = text.matchAll(/^(?:import|export)\s+(type\s)?(?:[^'";]*?\sfrom\s*)?['"]([^'"]+)['"]/gm);
  const calls = text.matchAll(/\b(?:import|require)\(\s*['"]([^'"]+)['"]/g);
  return [
    ...[...statements].map(([, type, name = '']) => ({ name, typeOnly: type !== undefined })),
    ...[...calls].map(([, name = '']) => ({ name, typeOnly: false })),
  ];
}

function resolve(from: string, name: string): string | undefined {
  return name.startsWith('.') ? normalize(join(dirname(from), name)).replaceAll('\\', '/') : undefined;
}

/** The chains of imports by which a pure module reaches something that is not. */
function impureChains(sources: Sources, file: string): string[] {
  const found: string[] = [];
  const seen = new Set<string>();
  const visit = (path: string, chain: readonly string[]) => {
    if (seen.has(path)) return;
    seen.add(path);
    for (const { name, typeOnly } of importsOf(sources.get(path) ?? '')) {
      // In the module itself even a type is a sign of mixed concerns; further away types are harmless.
      if (IMPURE.test(name) && (path === file || !typeOnly)) found.push([...chain, name].join(' -> '));
      const next = resolve(path, name);
      if (next !== undefined && !typeOnly) visit(next, [...chain, next]);
    }
  };
  visit(file, [file]);
  return found;
}

/** `res.send` makes a page of a text. Only pages that come from `page.ts` have the headers that protect them, and escape what they show. */
const SENDS_HTML = /(?<!orMediaType: ')text\/html|\.type\(\s*['"]html['"]\s*\)|\bres\.send\(/;
const PAGE = 'src/browser/page.ts';

/** Returns one line for each violation. */
export function violations(sources: Sources): string[] {
  const found: string[] = [];
  for (const [file, text] of sources) {
    for (const { name } of importsOf(text)) {
      for (const { name: guarded, room, rule } of ROOMS) {
        if (guarded.test(name) && !room.test(file)) found.push(`${file} imports ${name}: ${rule}`);
      }
      const target = resolve(file, name);
      if (target !== undefined && OUTSIDE_SRC.test(target))
        found.push(`${file} imports ${target}: src depends on nothing outside`);
      else if (target !== undefined && rankOf(target) > rankOf(file))
        found.push(`${file} imports ${target}: ${dirname(target)} stands after ${dirname(file)} in the order of folders`);
    }
    if (file !== PAGE && SENDS_HTML.test(text)) found.push(`${file} sends HTML: only ${PAGE} does`);
    if (file !== CONFIG && READS_ENVIRONMENT.test(text)) found.push(`${file} reads the environment: only ${CONFIG} does`);
  }
  for (const file of PURE) {
    for (const chain of impureChains(sources, file)) found.push(`${chain}: ${file} is pure`);
  }
  return found;
}
