/** Keeps values: in maps with a limited number of entries, which evict the oldest entry for a new one, or as long as an object lives. */

export function keep<K, V>(map: Map<K, V>, key: K, value: V, max: number): V {
  const [oldest] = map.size >= max ? map.keys() : [];
  if (oldest !== undefined) map.delete(oldest);
  map.set(key, value);
  return value;
}

/** Returns `make`, but with the result kept as long as its object. The object must not change. */
export function perObject<K extends object, V>(make: (key: K) => V): (key: K) => V {
  const kept = new WeakMap<K, V>();
  return (key) => {
    const known = kept.get(key);
    if (known !== undefined) return known;
    const value = make(key);
    kept.set(key, value);
    return value;
  };
}

/** Returns the value of the key, and makes one if there is none. */
export function entered<K, V>(map: Map<K, V>, key: K, make: () => V, max: number): V {
  return map.get(key) ?? keep(map, key, make(), max);
}

/**
 * Returns a map that holds entries of at most this weight. If there are more, it evicts half of them: those that were neither set nor found for
 * the longest time. Without `weightOf` each entry weighs 1. All values of a key must weigh the same.
 */
export function createRecent<K, V>(capacity: number, weightOf: (key: K, value: V) => number = () => 1) {
  const half = Math.ceil(capacity / 2);
  let recent = new Map<K, V>();
  let older = new Map<K, V>();
  let weight = 0;
  function set(key: K, value: V): void {
    if (!recent.has(key)) {
      const added = weightOf(key, value);
      if (recent.size > 0 && weight + added > half) {
        older = recent;
        recent = new Map();
        weight = 0;
      }
      weight += added;
    }
    recent.set(key, value);
  }
  return {
    set,
    get(key: K): V | undefined {
      const value = recent.get(key);
      if (value !== undefined) return value;
      const known = older.get(key);
      if (known !== undefined) {
        older.delete(key);
        set(key, known);
      }
      return known;
    },
    get size() {
      return recent.size + older.size;
    },
  };
}

/** For texts that are kept: one that was cut from another, or put together, keeps far more memory than its own. */
export const copyOf = (text: string): string => Buffer.from(text, 'utf16le').toString('utf16le');
