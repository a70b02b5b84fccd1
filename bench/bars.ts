/** The goals of the engine, and whether this run met them. */
import type { EstimateFigures } from './estimates.ts';
import type { Figures } from './measure.ts';
import type { Peer } from './peers/peer.ts';
import type { ListFigures, RebuildFigures } from './scenarios.ts';
import type { MIXES } from './workload.ts';

export interface Row extends Partial<Figures> {
  readonly mix: keyof typeof MIXES;
  readonly policies: number;
  readonly peer: string;
  readonly kind: Peer['kind'];
  /** The time of a rebuild: milliseconds from the policies until the first answer is possible. */
  readonly build?: number;
  /** MiB that this process holds more after all those questions, or that the server is in size. */
  readonly memory?: number;
  /** The reason why there are no figures. */
  readonly leftOut?: string;
  /** p50 as a multiple of the plain loop's, and of ours. */
  readonly toLoop?: number;
  readonly toOurs?: number;
}

export interface Bar {
  readonly what: string;
  readonly bar: string;
  readonly figure: number;
  readonly reached: boolean;
}

export function bars(
  rows: readonly Row[],
  list: ListFigures,
  cached: Figures,
  rebuild: RebuildFigures,
  estimates: readonly EstimateFigures[],
): Bar[] {
  const row = (mix: Row['mix'], policies: number, peer = 'Portcullis'): Row | undefined =>
    rows.find((one) => one.mix === mix && one.policies === policies && one.peer === peer && one.p50 !== undefined);
  const found: Bar[] = [];
  const atMost = (what: string, limit: number, unit: string, figure: number | undefined): void => {
    if (figure !== undefined) found.push({ what, bar: `at most ${limit}${unit}`, figure, reached: figure <= limit });
  };
  const atLeast = (what: string, limit: number, figure: number | undefined): void => {
    if (figure !== undefined) found.push({ what, bar: `at least ${limit}x`, figure, reached: figure >= limit });
  };
  for (const [policies, limit] of [
    [100, 5],
    [1_000, 0.5],
    [10_000, 0.1],
    [100_000, 0.25],
  ] as const) {
    atMost(`p50 to the plain loop's, ${policies} policies`, limit, 'x', row('mixed', policies)?.toLoop);
  }
  const [small, large] = [row('mixed', 1_000)?.p50, row('mixed', 100_000)?.p50];
  if (small !== undefined && large !== undefined) atMost('growth from 1,000 to 100,000 policies', 6, 'x', large / small);
  for (const { peer, mix, policies, toOurs } of rows) {
    if (policies !== 1_000 || !(mix === 'mixed' || (mix === 'literal' && peer.startsWith('Cedar')))) continue;
    if (peer !== 'Portcullis' && peer !== 'plain TypeScript loop') atLeast(`${peer} to ours, 1,000 policies`, 10, toOurs);
  }
  for (const { peer, mix, policies, p50, p99 } of rows) {
    if (peer === 'Portcullis' && p50 !== undefined && p99 !== undefined) {
      atMost(`p99 to p50, ${policies} policies, ${mix}`, 10, 'x', p99 / p50);
    }
  }
  for (const mix of ['worst', 'bare'] as const) {
    atLeast(`naive rule to ours, 1,000 policies, ${mix}`, 30, row(mix, 1_000, 'naive Rego in WASM')?.toOurs);
  }
  atMost('cached', 1, ' us', cached.p50);
  atMost("a list of 1,000 tools to the plain loop's time", 1, 'x', list.list.p50 / list.loop.p50);
  atLeast('1,000 single evaluations to a list', 1.5, list.oneByOne.p50 / list.list.p50);
  atMost('longest gap of the event loop in a rebuild at 10,000', 50, ' ms', rebuild.longestGap);
  atMost('time of a decision to its estimate, the worst family', 1, 'x', Math.max(...estimates.map(({ ratio }) => ratio)));
  atMost(
    'longest decision within the limits, with compiling',
    50,
    ' ms',
    Math.max(...estimates.map(({ first, next }) => Math.max(first, next))),
  );
  return found;
}
