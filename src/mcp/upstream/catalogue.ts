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
/** The size of all names together, in characters. The lists that were seen longest ago make room. */
const KEPT = 8_000_000;
/** What a name takes besides its characters. */
const OF_NAME = 64;
/** A longer name cannot be called. */
const LONGEST = 2_048;
/** A target may take a quarter of the room, so that it cannot push out the names of all others. */
const OF_TARGET = 1 / 4;
/** One type for one kind of credentials may take a third of that, because there are three types. */
const OF_TYPE = OF_TARGET / 3;

export interface CatalogueEntry extends NamedObject {
  /** When a target last listed it, in milliseconds since the epoch. */
  readonly seen_at: number;
}

/** The names of one type. The name that was listed last is at the end. */
interface OfType {
  readonly names: Map<string, number>;
  size: number;
}

interface Seen {
  readonly targetId: string;
  readonly types: Map<ResourceType, OfType>;
}

const sizeOf = (name: string): number => name.length + OF_NAME;
const sizeOfAll = ({ types }: Seen): number => [...types.values()].reduce((sum, { size }) => sum + size, 0);

export type Catalogue = ReturnType<typeof createCatalogue>;

/** `now`: milliseconds since the epoch. */
export function createCatalogue(now: () => number, kept = KEPT) {
  /** The list that was seen last is at the end. */
  const seen = new Map<string, Seen>();
  const sizes = new Map<string, number>();
  let size = 0;

  function resize(targetId: string, more: number): void {
    size += more;
    const its = (sizes.get(targetId) ?? 0) + more;
    if (its > 0) sizes.set(targetId, its);
    else sizes.delete(targetId);
  }

  function forget(key: string): void {
    const its = seen.get(key);
    if (its === undefined) return;
    seen.delete(key);
    resize(its.targetId, -sizeOfAll(its));
  }

  return {
    /** Notes what a target has listed. */
    note(reach: Reach, resource_type: ResourceType, listed: readonly string[]): void {
      const key = bindingKey(reach);
      const { id: targetId } = reach.target;
      const its = seen.get(key) ?? { targetId, types: new Map() };
      forget(key);
      const ofType = its.types.get(resource_type) ?? { names: new Map(), size: 0 };
      its.types.set(resource_type, ofType);
      const at = now();
      for (const name of listed.slice(0, NAMES_OF_LIST)) {
        if (name.length > LONGEST) continue;
        if (!ofType.names.delete(name)) ofType.size += sizeOf(name);
        ofType.names.set(name, at);
      }
      for (const oldest of ofType.names.keys()) {
        if (ofType.names.size <= NAMES_KEPT && ofType.size <= kept * OF_TYPE) break;
        ofType.names.delete(oldest);
        ofType.size -= sizeOf(oldest);
      }
      seen.set(key, its);
      resize(targetId, sizeOfAll(its));
      if ((sizes.get(targetId) ?? 0) > kept * OF_TARGET) {
        for (const [oldest, other] of seen) {
          if ((sizes.get(targetId) ?? 0) <= kept * OF_TARGET) break;
          if (other.targetId === targetId) forget(oldest);
        }
      }
      for (const oldest of seen.keys()) {
        if (size <= kept) break;
        forget(oldest);
      }
    },
    /** Returns what the target listed to anybody who reaches it with these credentials. */
    of: (reach: Reach): CatalogueEntry[] => {
      const its = seen.get(bindingKey(reach));
      return its === undefined ? [] : merged([its], () => true);
    },
    /** Returns what the target listed, for any caller. A name that was listed several times has the newest time. */
    ofTarget: (targetId: string, isWanted: (object: NamedObject) => boolean = () => true): CatalogueEntry[] =>
      merged(
        [...seen.values()].filter((its) => its.targetId === targetId),
        isWanted,
      ),
  };
}

/** Returns the wanted names once, ordered by type and name. */
function merged(all: readonly Seen[], isWanted: (object: NamedObject) => boolean): CatalogueEntry[] {
  const newest = new Map<ResourceType, Map<string, number>>();
  for (const [type, { names }] of all.flatMap(({ types }) => [...types])) {
    const its = newest.get(type) ?? new Map<string, number>();
    newest.set(type, its);
    for (const [name, at] of names) if ((its.get(name) ?? -1) < at) its.set(name, at);
  }
  return [...newest]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([resource_type, names]) =>
      [...names]
        .map(([resource_name, seen_at]) => ({ resource_type, resource_name, seen_at }))
        .filter(isWanted)
        .sort((a, b) => (a.resource_name < b.resource_name ? -1 : 1)),
    );
}
