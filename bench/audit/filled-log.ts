/** Databases that benchmarks start, and logs of any size in them. */
import { mkdtempSync } from 'node:fs';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { readConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { type Engine, engines } from '../../test/support/databases/engines.ts';
import type { Guardian } from '../../test/support/databases/guardian.ts';
import { startDatabases } from '../../test/support/databases/start.ts';
import { TITLES } from '../gateway/own.ts';
import type { Databases } from '../guarded.ts';
import { type Adapt, fillLog } from './log-rows.ts';

/** In the folder that is removed with all else, however the run ends. */
export const sqliteIn = (guardian: Guardian): Engine => ({
  name: 'sqlite',
  create: async () => ({
    url: `sqlite:${mkdtempSync(join(guardian.folder, 'sqlite-'))}/portcullis.db`,
    drop: async () => undefined,
  }),
});

export interface Machine {
  readonly cpus: number;
  readonly model: string | undefined;
  readonly node: string;
  readonly load: readonly number[];
}

/** Says which it is. */
export function machineOf(say: (line: string) => void): Machine {
  const machine = { cpus: cpus().length, model: cpus()[0]?.model, node: process.version, load: loadavg() };
  say(`${machine.cpus} cores (${machine.model}), node ${machine.node}, load ${machine.load[0]?.toFixed(2)}`);
  return machine;
}

/** Of the command line. What is said meanwhile must not get into the JSON. */
export function readOptions() {
  const { values: options } = parseArgs({
    options: {
      json: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
      only: { type: 'string', default: 'sqlite,mariadb,mysql' },
      suggestions: { type: 'boolean', default: false },
    },
  });
  return { options, say: (line: string): void => (options.json ? console.error(line) : console.log(line)) };
}

export interface LogParts {
  readonly guardian: Guardian;
  readonly databases: Databases;
  /** Databases, separated by commas. */
  readonly only: string;
  readonly rows: number;
  readonly say: (line: string) => void;
  readonly adapt?: Adapt;
}

/** Starts the databases that are wanted, and has `measure` look at a log in each. */
export async function eachFilledLog<T>(
  { guardian, databases, only, rows, say, adapt }: LogParts,
  measure: (database: Database, engine: Engine['name']) => Promise<T>,
): Promise<T[]> {
  const wanted = new Set(only.split(','));
  const started = await startDatabases(guardian, wanted, say);
  databases.stop = started.stop;
  Object.assign(process.env, started.urls);
  const measured: T[] = [];
  for (const engine of engines().filter(({ name }) => wanted.has(name))) {
    const at = await (engine.name === 'sqlite' ? sqliteIn(guardian) : engine).create();
    const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => undefined);
    try {
      const began = performance.now();
      await fill(database, rows, adapt);
      const seconds = ((performance.now() - began) / 1_000).toFixed(0);
      say(`${TITLES[engine.name]}: ${rows.toLocaleString('en')} decisions, made in ${seconds} s`);
      measured.push(await measure(database, engine.name));
    } finally {
      await database.close();
      await at.drop();
    }
  }
  return measured;
}

async function fill(database: Database, rows: number, adapt: Adapt | undefined): Promise<void> {
  if (database.kind === 'sqlite') await database.knex.raw('pragma synchronous = off');
  await fillLog(database, rows, adapt);
  if (database.kind === 'sqlite') await database.knex.raw('pragma synchronous = full');
}
