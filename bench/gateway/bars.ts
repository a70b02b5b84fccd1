/** The goals of the gateway, and whether this run met them. */
import type { Bar } from '../bars.ts';

/** Figures of one system; medians over the rounds. Times are in milliseconds. */
export interface SystemFigures {
  readonly name: string;
  readonly on: string;
  /** Calls for each second of processor time of the process and its descendants. */
  readonly perCpuSecond: number;
  readonly cpuPerCallUs: number;
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  /** One call at a time. */
  readonly aloneP50: number;
  readonly aloneP99: number;
  readonly rss: number;
  readonly pss: number;
  /** The processor time of the database server per call, in microseconds. */
  readonly database?: { readonly name: string; readonly cpuPerCallUs: number; readonly pss: number };
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
  readonly aloneAddedP50: number;
}

export function ratiosOf(figures: SystemFigures, all: readonly SystemFigures[]): Ratios | null {
  const of = (name: string): SystemFigures | undefined => all.find((one) => one.name === name);
  const [direct, bare, sdk] = [of('direct'), of('bare proxy'), of('SDK server and client')];
  if (direct === undefined || bare === undefined || sdk === undefined) return null;
  return {
    ofBare: figures.perCpuSecond / bare.perCpuSecond,
    p50OfBare: figures.p50 / bare.p50,
    ofSdk: figures.perCpuSecond / sdk.perCpuSecond,
    addedP50: figures.p50 - direct.p50,
    aloneAddedP50: figures.aloneP50 - direct.aloneP50,
  };
}

const ADDED_MS = 2;
const IDLE_MIB = 100;
const OF_BARE = { bar: 0.5, aim: 0.6 };
const OF_SDK = 6;

export function bars(all: readonly SystemFigures[], idle: IdleFigures | null): Bar[] {
  const found: Bar[] = [];
  for (const figures of all.filter(({ name }) => name.startsWith('Portcullis'))) {
    const { name } = figures;
    const ratios = ratiosOf(figures, all);
    if (ratios === null) continue;
    const { ofBare, ofSdk, addedP50 } = ratios;
    const share = `${name}: calls per CPU-second, of the bare proxy's`;
    found.push({ what: share, bar: `at least ${OF_BARE.bar}`, figure: ofBare, reached: ofBare >= OF_BARE.bar });
    found.push({ what: `${share} (aim)`, bar: `at least ${OF_BARE.aim}`, figure: ofBare, reached: ofBare >= OF_BARE.aim });
    found.push({
      what: `${name}: calls per CPU-second, of the SDK-terminated proxy's`,
      bar: `at least ${OF_SDK}x`,
      figure: ofSdk,
      reached: ofSdk >= OF_SDK,
    });
    if (name.endsWith('MariaDB')) {
      found.push({ what: `${name}: added p50, ms`, bar: `under ${ADDED_MS}`, figure: addedP50, reached: addedP50 < ADDED_MS });
    }
  }
  if (idle !== null) {
    const grown = (idle.rssAfter - idle.rssBefore) / 2 ** 20;
    found.push({ what: `${idle.streams} idle streams, MiB`, bar: `under ${IDLE_MIB}`, figure: grown, reached: grown < IDLE_MIB });
  }
  return found;
}
