/** Declares tests on the databases of this run. */
import { createHash } from 'node:crypto';
import test, { type ExecutionContext } from 'ava';
import { type Engine, type EngineName, engines, type TestDatabase } from './engines.ts';
import { ONE_SERVER } from './start.ts';

/** The files whose tests run on each server: contract suites of what stores, and what differs between the servers. */
const ON_EACH_SERVER = /\/test\/(?:audit|db|engine|replicas|support)\/|-store\.test\.ts$/;

/** SQLite, and the one of the servers that the title chooses. */
export function withOneServer<E extends Pick<Engine, 'name'>>(all: readonly E[], title: string): E[] {
  const servers = all.filter(({ name }) => name !== 'sqlite');
  const chosen = servers[(createHash('sha256').update(title).digest()[0] ?? 0) % servers.length];
  return all.filter((engine) => engine.name === 'sqlite' || engine === chosen);
}

/**
 * The engines for the test with this title. In a run of all files, only the files above run on each server. All other tests run on one of
 * them, so that each area has tests on both. `npm run test:long` runs all on both.
 */
export function enginesFor(title: string): Engine[] {
  const all = engines();
  return process.env[ONE_SERVER] !== 'true' || ON_EACH_SERVER.test(test.meta.file) ? all : withOneServer(all, title);
}

type DeclareTest = (title: string, run: (t: ExecutionContext) => Promise<void>) => void;
type Declare = DeclareTest & { readonly skip: DeclareTest };

type Run = (t: ExecutionContext, database: TestDatabase, engine: EngineName) => Promise<void>;

function declareEach(on: readonly Engine[], declare: Declare, title: string, run: Run): void {
  for (const engine of on) {
    declare(`${title} [${engine.name}]`, async (t) => {
      const database = await engine.create();
      // Registered first, so that it runs after the test's own teardowns have closed their connections.
      t.teardown(database.drop);
      await run(t, database, engine.name);
    });
  }
}

/** Declares the test once for each engine (`enginesFor`), with a new database: `eachEngine(test, 'keeps order', async (t, database) => ...)`. */
export function eachEngine(declare: Declare, title: string, run: Run): void {
  declareEach(enginesFor(title), declare, title, run);
}

/**
 * `eachEngine` for what takes a server: several replicas, a connection that breaks. Without a server the test is declared as skipped:
 * the report names it, and a file that holds only such tests is not an empty file, which ava counts as a failure.
 */
export function eachServer(declare: Declare, title: string, run: Run): void {
  const servers = enginesFor(title).filter((engine) => engine.name !== 'sqlite');
  if (servers.length === 0) declare.skip(`${title} [needs MariaDB or MySQL]`, async () => {});
  declareEach(servers, declare, title, run);
}
