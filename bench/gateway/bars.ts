/** The goals of the gateway, and whether this run met them. */
import type { Bar } from '../bars.ts';

/** Numbers of sessions that call at once. */
export const LEVELS = [1, 16, 64, 256] as const;
export type Level = (typeof LEVELS)[number];

/** Medians over the rounds. Times are in milliseconds. */
export interface LevelFigures {
  /** Calls for each second of processor time of the process and its descendants. */
  readonly perCpuSecond: number;
  readonly cpuPerCallUs: number;
  /** The processor time of the database server per call, in microseconds; 0: there is no server. */
  readonly databaseCpuPerCallUs: number;
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
}

export interface SystemFigures {
  readonly name: string;
  readonly on: string;
  readonly at: ReadonlyMap<Level, LevelFigures>;
  readonly rss: number;
  readonly pss: number;
}

export interface IdleFigures {
  readonly streams: number;
  readonly rssBefore: number;
  readonly rssAfter: number;
}

export interface Ratios {
  /** Calls per CPU-second as a share of the bare proxy's; p50 as a multiple of its. */
  readonly ofBare: number;
  readonly p50OfBare: number;
  readonly ofSdk: number;
  /** Milliseconds over the target itself, at the same number of callers. */
  readonly addedP50: number;
}

export function ratiosOf(system: SystemFigures, all: readonly SystemFigures[], level: Level): Ratios | null {
  const of = (name: string) => all.find((one) => one.name === name)?.at.get(level);
  const [figures, direct, bare, sdk] = [system.at.get(level), of('direct'), of('bare proxy'), of('SDK server and client')];
  if (figures === undefined || direct === undefined || bare === undefined || sdk === undefined) return null;
  return {
    ofBare: figures.perCpuSecond / bare.perCpuSecond,
    p50OfBare: figures.p50 / bare.p50,
    ofSdk: figures.perCpuSecond / sdk.perCpuSecond,
    addedP50: figures.p50 - direct.p50,
  };
}

const ADDED_MS = 2;
const IDLE_MIB = 100;
/** The share of the bare proxy's calls per CPU-second, by the number of sessions. */
const OF_BARE = [
  { level: 16, bar: 0.3, aim: 0.35 },
  { level: 64, bar: 0.42, aim: 0.5 },
] as const;
const OF_SDK = 6;

export function bars(all: readonly SystemFigures[], idle: IdleFigures | null): Bar[] {
  const found: Bar[] = [];
  const atLeast = (what: string, bar: number, unit: string, figure: number): void =>
    void found.push({ what, bar: `at least ${bar}${unit}`, figure, reached: figure >= bar });
  const envoy = all.find(({ name }) => name.startsWith('Envoy'))?.at.get(64);
  for (const system of all.filter(({ name }) => name.startsWith('Portcullis'))) {
    const { name } = system;
    for (const { level, bar, aim } of OF_BARE) {
      const ratios = ratiosOf(system, all, level);
      const what = `${name}, ${level} sessions: calls per CPU-second, of the bare proxy's`;
      if (ratios !== null) atLeast(what, bar, '', ratios.ofBare);
      if (ratios !== null) atLeast(`${what} (aim)`, aim, '', ratios.ofBare);
    }
    const [at16, at64] = ([16, 64] as const).map((level) => ratiosOf(system, all, level));
    if (at64) atLeast(`${name}, 64 sessions: calls per CPU-second, of the SDK-terminated proxy's`, OF_SDK, 'x', at64.ofSdk);
    const own = system.at.get(64)?.perCpuSecond;
    if (envoy !== undefined && own !== undefined) {
      atLeast(`${name}, 64 sessions: calls per CPU-second, of Envoy's (aim)`, 1, 'x', own / envoy.perCpuSecond);
    }
    if (name.endsWith('MariaDB') && at16) {
      const { addedP50: figure } = at16;
      found.push({ what: `${name}, 16 sessions: added p50, ms`, bar: `under ${ADDED_MS}`, figure, reached: figure < ADDED_MS });
    }
  }
  if (idle !== null) {
    const grown = (idle.rssAfter - idle.rssBefore) / 2 ** 20;
    found.push({ what: `${idle.streams} idle streams, MiB`, bar: `under ${IDLE_MIB}`, figure: grown, reached: grown < IDLE_MIB });
  }
  return found;
}
