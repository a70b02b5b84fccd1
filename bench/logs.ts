/**
 * `npm run bench:logs`: how long a page of `GET /api/logs` takes in a log of ten million decisions, for every filter, on each database.
 * `--json` prints every figure as JSON, `--quick` asks a log of a million. `--only=sqlite,mariadb,mysql` leaves out the others.
 */

import { type AuditStore, auditStore } from '../src/audit/audit-store.ts';
import type { AuditPage } from '../src/audit/search/entries.ts';
import type { LogFilter } from '../src/audit/search/filter.ts';
import type { Database } from '../src/db/database.ts';
import type { Engine } from '../test/support/databases/engines.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { eachFilledLog, machineOf, readOptions } from './audit/filled-log.ts';
import { logFilters, nearTheEnd } from './audit/log-rows.ts';
import { type Databases, guarded } from './guarded.ts';
import { median } from './measure.ts';
import { columns, number } from './print.ts';

const { options, say } = readOptions();
const ROWS = options.quick ? 1_000_000 : 10_000_000;
const LIMIT = 100;
const PAGES = 20;
const REPEATED = 5;

/** Milliseconds of one page. */
interface LogFigures {
  readonly engine: Engine['name'];
  readonly filter: string;
  /** The first time that it is asked for, and the median of the next times. */
  readonly first: number;
  readonly again: number;
  /** The slowest of the pages that follow, and the one furthest away. */
  readonly following: number;
  readonly furthest: number;
  /** What is on the first page, and how many pages have 100 entries together, or all that there are; 0: more than were read. */
  readonly entries: number;
  readonly pages: number;
}

async function timed(work: () => Promise<AuditPage>): Promise<{ readonly page: AuditPage; readonly ms: number }> {
  const before = performance.now();
  const page = await work();
  return { page, ms: performance.now() - before };
}

async function measureFilter(store: AuditStore, engine: Engine['name'], filter: string, what: LogFilter): Promise<LogFigures> {
  const { page, ms: first } = await timed(() => store.page(what, LIMIT, null));
  const again: number[] = [];
  for (let i = 0; i < REPEATED; i++) again.push((await timed(() => store.page(what, LIMIT, null))).ms);
  let { next } = page;
  let read = 1;
  let entries = page.entries.length;
  let pages = entries >= LIMIT || next === null ? 1 : 0;
  let following = 0;
  for (; read < PAGES && next !== null; read++) {
    const cursor: string = next;
    const after = await timed(() => store.page(what, LIMIT, cursor));
    following = Math.max(following, after.ms);
    next = after.page.next;
    entries += after.page.entries.length;
    if (pages === 0 && (entries >= LIMIT || next === null)) pages = read + 1;
  }
  const furthest = (await timed(() => store.page(what, LIMIT, nearTheEnd(ROWS)))).ms;
  return { engine, filter, first, again: median(again), following, furthest, entries: page.entries.length, pages };
}

async function measureLog(database: Database, engine: Engine['name']): Promise<LogFigures[]> {
  const figures: LogFigures[] = [];
  for (const [name, filter] of logFilters(ROWS)) {
    figures.push(await measureFilter(auditStore(database.knex), engine, name, filter));
  }
  say('');
  for (const line of table(figures)) say(line);
  say('');
  return figures;
}

function table(figures: readonly LogFigures[]): string[] {
  return columns([
    ['', 'first ms', 'again', 'following', 'furthest', 'entries', 'pages for 100'],
    ...figures.map(({ filter, first, again, following, furthest, entries, pages }) => [
      filter,
      ...[first, again, following, furthest].map(number),
      String(entries),
      pages === 0 ? `> ${PAGES}` : String(pages),
    ]),
  ]);
}

async function run(databases: Databases): Promise<void> {
  const machine = machineOf(say);
  const figures = await eachFilledLog({ guardian, databases, only: options.only, rows: ROWS, say }, measureLog);
  if (options.json) console.log(JSON.stringify({ machine, rows: ROWS, figures: figures.flat() }, null, 2));
}

const guardian = createGuardian();
await guarded(guardian, run);
