/** Where chains stood when somebody looked: a checkpoint, or a later chain that names the others in its head. */
import type { ChainRow } from './chain.ts';
import type { Checkpoint } from './checkpoint.ts';

export interface Sighting {
  readonly seq: number;
  readonly mac: string;
  /** When they looked: records after `seq` were written later. */
  readonly time: number;
  readonly by: string;
}

export interface Sightings {
  add(chain: string, sighting: Sighting): void;
  /** The one that has seen most of the chain. */
  furthest(chain: string): Sighting | undefined;
  chains(): Iterable<readonly [chain: string, furthest: Sighting]>;
  /** The latest before `until` that had not seen record `seq` yet. */
  lastWithout(chain: string, seq: number, until: number): Sighting | null;
}

export function createSightings(): Sightings {
  const furthest = new Map<string, Sighting>();
  /** The latest with each number. */
  const all = new Map<string, Map<number, Sighting>>();
  return {
    add(chain, sighting) {
      if (sighting.seq >= (furthest.get(chain)?.seq ?? -1)) furthest.set(chain, sighting);
      const of = all.get(chain) ?? new Map<number, Sighting>();
      all.set(chain, of);
      if (sighting.time >= (of.get(sighting.seq)?.time ?? 0)) of.set(sighting.seq, sighting);
    },
    furthest: (chain) => furthest.get(chain),
    chains: () => furthest,
    lastWithout(chain, seq, until) {
      let last: Sighting | null = null;
      for (const sighting of all.get(chain)?.values() ?? []) {
        if (sighting.seq < seq && sighting.time <= until && sighting.time > (last?.time ?? 0)) last = sighting;
      }
      return last;
    },
  };
}

/** What the head of a chain says of those that were there when it began. */
export function foundBy(row: ChainRow): [chain: string, seq: number, mac: string][] {
  return JSON.parse(row.found);
}

export type Start = Pick<Sighting, 'seq' | 'mac'>;

/**
 * Where each chain stood at the checkpoint, in whose heads those chains are left out that a later chain had found as they
 * were. A chain that is not in the answer began after the checkpoint. `chains` are those whose heads fit their MACs.
 */
export function startsAt({ heads }: Checkpoint, chains: readonly ChainRow[]): Map<string, Start> {
  const rows = new Map(chains.map((row) => [row.chain_id, row]));
  const starts = new Map<string, Start>();
  const open = [...heads];
  // It grows while it is read.
  for (const [chain, seq, mac] of open) {
    const known = starts.get(chain);
    const row = rows.get(chain);
    if (known === undefined && row !== undefined) open.push(...foundBy(row));
    if (known === undefined || seq > known.seq) starts.set(chain, { seq, mac });
  }
  return starts;
}
