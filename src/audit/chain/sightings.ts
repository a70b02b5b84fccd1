/** Earlier heads of chains, as a checkpoint or the header of a later chain names them. */
import type { ChainRow } from './chain.ts';
import type { Checkpoint } from './checkpoint.ts';

export interface Sighting {
  readonly seq: number;
  readonly mac: string;
  /** When the head was seen: records after `seq` were written later. */
  readonly time: number;
  readonly by: string;
}

export function createSightings() {
  const furthest = new Map<string, Sighting>();
  /** The latest sighting of each number. */
  const all = new Map<string, Map<number, Sighting>>();
  return {
    add(chain: string, sighting: Sighting): void {
      if (sighting.seq >= (furthest.get(chain)?.seq ?? -1)) furthest.set(chain, sighting);
      const of = all.get(chain) ?? new Map<number, Sighting>();
      all.set(chain, of);
      if (sighting.time >= (of.get(sighting.seq)?.time ?? 0)) of.set(sighting.seq, sighting);
    },
    /** Returns the sighting with the highest number. */
    furthest: (chain: string): Sighting | undefined => furthest.get(chain),
    chains: (): Iterable<readonly [chain: string, furthest: Sighting]> => furthest,
    /** Returns the latest sighting, not after `until`, at which record `seq` did not exist yet. */
    lastWithout(chain: string, seq: number, until: number): Sighting | null {
      let last: Sighting | null = null;
      for (const sighting of all.get(chain)?.values() ?? []) {
        if (sighting.seq < seq && sighting.time <= until && sighting.time > (last?.time ?? 0)) last = sighting;
      }
      return last;
    },
  };
}

/** Returns the heads of the other chains that the header of a chain names. */
export function foundBy(row: ChainRow): [chain: string, seq: number, mac: string][] {
  return JSON.parse(row.found);
}

export type Start = Pick<Sighting, 'seq' | 'mac'>;

/**
 * Returns the head of each chain at the checkpoint. A checkpoint leaves out the heads that the header of a later chain names,
 * so these are added. A chain that is not in the answer began after the checkpoint. `chains` must have valid headers.
 */
export function startsAt({ heads }: Checkpoint, chains: readonly ChainRow[]): Map<string, Start> {
  const rows = new Map(chains.map((row) => [row.chain_id, row]));
  const starts = new Map<string, Start>();
  const open = [...heads];
  // The list grows during the loop.
  for (const [chain, seq, mac] of open) {
    const known = starts.get(chain);
    const row = rows.get(chain);
    if (known === undefined && row !== undefined) open.push(...foundBy(row));
    if (known === undefined || seq > known.seq) starts.set(chain, { seq, mac });
  }
  return starts;
}
