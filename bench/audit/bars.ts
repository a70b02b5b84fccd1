/** What audit and freshness are held to, and whether this run reached it. */
import type { Engine } from '../../test/support/databases/engines.ts';
import type { Bar } from '../bars.ts';
import { TITLES } from '../gateway/own.ts';
import { type CommitFigures, POOL, type Way } from './commits.ts';
import type { PathFigures, RoundTripFigures } from './path.ts';
import type { RebuildFigures } from './rebuild.ts';
import type { SizeFigures } from './size.ts';

export interface AuditFigures {
  readonly path: readonly PathFigures[];
  readonly commits: readonly CommitFigures[];
  readonly sizes: readonly SizeFigures[];
  readonly roundTrips: readonly RoundTripFigures[];
  readonly rebuilds: readonly RebuildFigures[];
}

/** The number of callers for which the goals apply. */
const CALLERS = 64;
const GROUP_TO_ROW = 5;
const GROUP_TO_ROWS = 2.5;
const SHARE = 0.6;
const BYTES = 300;

export function bars({ path, commits, sizes, roundTrips, rebuilds }: AuditFigures): Bar[] {
  const found: Bar[] = [];
  const atLeast = (what: string, limit: number, unit: string, figure: number | undefined): void => {
    if (figure !== undefined) found.push({ what, bar: `at least ${limit}${unit}`, figure, reached: figure >= limit });
  };
  const atMost = (what: string, limit: number, figure: number): void => {
    found.push({ what, bar: `at most ${limit}`, figure, reached: figure <= limit });
  };
  const groupTo = (way: Way, name: Engine['name']): number | undefined =>
    commits.find((one) => one.engine === name && one.way === way && one.callers === CALLERS)?.groupTo;
  for (const name of new Set(path.map(({ engine }) => engine))) {
    const title = TITLES[name];
    const at = `${title}, ${CALLERS} callers:`;
    atLeast(`${at} group commit to a commit per record, one connection`, GROUP_TO_ROW, 'x', groupTo('row', name));
    atLeast(`${at} group commit to a commit per record, ${POOL} connections`, GROUP_TO_ROWS, 'x', groupTo('rows', name));
    const trips = roundTrips.find(({ engine }) => engine === name);
    if (trips !== undefined) {
      atMost(`${title}, ${trips.callers} callers: reads per round trip to the database`, 1, trips.selects / trips.roundTrips);
    }
    const both = path.find(({ engine, laws, callers }) => engine === name && laws === 'both' && callers === CALLERS);
    atLeast(`${at} calls per second with both laws, of those with neither`, SHARE, '', both?.share);
  }
  for (const { engine, calls, replicas, bytesPerCall } of sizes) {
    atMost(`${TITLES[engine]}, ${calls} calls, ${replicas} processes: bytes of database per call`, BYTES, bytesPerCall);
  }
  const stale = rebuilds.reduce((sum, one) => sum + one.stale, 0);
  if (rebuilds.length > 0) atMost('calls decided with an older state after an answered change', 0, stale);
  return found;
}
