/**
 * The names that targets have listed to this process, as it last saw them. Names are kept apart by the credentials with which a target was
 * asked, because a target may list different names to different accounts. In memory: every list brings them again.
 */
import type { ResourceType } from '../../engine/compile/policy.ts';
import type { NamedObject } from '../../engine/decision.ts';
import { bindingKey } from './health.ts';
import type { Reach } from './upstream.ts';

/** At most this many of one list are noted, the first ones. */
export const NAMES_OF_LIST = 500;
/** How many names of one type are kept for the same credentials. */
const NAMES_KEPT = 1_000;
/** All names together, in characters. The lists that were seen longest ago make room. */
const CHARACTERS_KEPT = 8_000_000;

export interface CatalogueEntry extends NamedObject {
  /** When a target last listed it, in milliseconds since the epoch. */
  readonly seen_at: number;
}

interface Seen {
  readonly targetId: string;
  readonly names: Map<ResourceType, Map<string, number>>;
  characters: number;
}

export type Catalogue = ReturnType<typeof createCatalogue>;

/** `now`: milliseconds since the epoch. */
export function createCatalogue(now: () => number, charactersKept = CHARACTERS_KEPT) {
  /** The list that was seen last is at the end. */
  const seen = new Map<string, Seen>();
  let characters = 0;

  function forget(key: string): void {
    characters -= seen.get(key)?.characters ?? 0;
    seen.delete(key);
  }

  function entriesOf(names: Seen['names']): CatalogueEntry[] {
    return [...names].flatMap(([resource_type, ofType]) =>
      [...ofType].map(([resource_name, seen_at]) => ({ resource_type, resource_name, seen_at })),
    );
  }

  return {
    /** Notes what a target has listed. */
    note(reach: Reach, resource_type: ResourceType, listed: readonly string[]): void {
      const key = bindingKey(reach);
      const its = seen.get(key) ?? { targetId: reach.target.id, names: new Map(), characters: 0 };
      forget(key);
      const ofType = its.names.get(resource_type) ?? new Map<string, number>();
      its.names.set(resource_type, ofType);
      const at = now();
      for (const name of listed.slice(0, NAMES_OF_LIST)) {
        if (!ofType.delete(name)) its.characters += name.length;
        ofType.set(name, at);
      }
      for (const oldest of ofType.keys()) {
        if (ofType.size <= NAMES_KEPT) break;
        ofType.delete(oldest);
        its.characters -= oldest.length;
      }
      seen.set(key, its);
      characters += its.characters;
      for (const oldest of seen.keys()) {
        if (characters <= charactersKept) break;
        forget(oldest);
      }
    },
    /** Returns what the target listed to anybody who reaches it with these credentials. */
    of(reach: Reach): CatalogueEntry[] {
      return sorted(entriesOf(seen.get(bindingKey(reach))?.names ?? new Map()));
    },
    /** Returns what the target listed, whoever asked it. A name that was listed several times has the newest time. */
    ofTarget(targetId: string): CatalogueEntry[] {
      const newest = new Map<string, CatalogueEntry>();
      for (const its of seen.values()) {
        if (its.targetId !== targetId) continue;
        for (const entry of entriesOf(its.names)) {
          const key = `${entry.resource_type} ${entry.resource_name}`;
          if ((newest.get(key)?.seen_at ?? -1) < entry.seen_at) newest.set(key, entry);
        }
      }
      return sorted([...newest.values()]);
    },
  };
}

const keyOf = ({ resource_type, resource_name }: NamedObject): string => `${resource_type} ${resource_name}`;
const sorted = (entries: CatalogueEntry[]): CatalogueEntry[] => entries.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
