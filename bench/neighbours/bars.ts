/** The goals of the gateway beside each bad neighbour, and whether this run met them. */
import type { Bar } from '../bars.ts';
import type { Slices } from './slices.ts';
import type { VictimFigures } from './victim.ts';
import type { Tally } from './workload.ts';

export interface PhaseFigures {
  readonly victim: VictimFigures;
  /** null: the load generator sent nothing. */
  readonly tally: Tally | null;
  /** Bytes: peak of the resident memory, less the resident memory before. */
  readonly memory: number;
  readonly slices: Slices;
}

export interface Measured {
  readonly name: string;
  readonly what: string;
  readonly beside: PhaseFigures;
  readonly control: PhaseFigures;
}

/** The gateway ended, or something else went wrong, before all was measured. */
export interface Failed {
  readonly name: string;
  readonly what: string;
  readonly failed: string;
}

export type NeighbourFigures = Measured | Failed;

const P50 = 3;
const P99 = 5;
const MEMORY_MIB = 300;
const SLICE_MS = 50;

export const mib = (bytes: number): number => bytes / 2 ** 20;
export const longestOf = ({ longest }: Slices): number => longest[0]?.ms ?? 0;
export const refusedOf = ({ refused }: VictimFigures): number => Object.values(refused).reduce((sum, count) => sum + count, 0);

export function bars(figures: NeighbourFigures): Bar[] {
  const { name } = figures;
  if ('failed' in figures) return [{ what: `${name}: ${figures.failed}`, bar: 'it is measured', figure: 0, reached: false }];
  const { beside, control } = figures;
  const { victim, memory, slices } = beside;
  const below = (what: string, limit: number, unit: string, figure: number): Bar => ({
    ...{ what: `${name}: ${what}`, bar: `below ${limit}${unit}`, figure, reached: figure < limit },
  });
  const refused = refusedOf(victim);
  const longest = longestOf(slices);
  return [
    below("the victim's p50, of the control's", P50, 'x', victim.p50 / control.victim.p50),
    below("the victim's p99, of the control's", P99, 'x', victim.p99 / control.victim.p99),
    { what: `${name}: calls of the victim that were refused`, bar: 'none', figure: refused, reached: refused === 0 },
    below('memory added', MEMORY_MIB, ' MiB', mib(memory)),
    { what: `${name}: longest slice`, bar: `at most ${SLICE_MS} ms`, figure: longest, reached: longest <= SLICE_MS },
  ];
}
