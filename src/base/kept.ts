/** Maps that keep a limited number of entries: the oldest gives way to a new one. */

export function keep<K, V>(map: Map<K, V>, key: K, value: V, max: number): V {
  const [oldest] = map.size >= max ? map.keys() : [];
  if (oldest !== undefined) map.delete(oldest);
  map.set(key, value);
  return value;
}

/** Returns the value of the key, and makes one if there is none. */
export function entered<K, V>(map: Map<K, V>, key: K, make: () => V, max: number): V {
  return map.get(key) ?? keep(map, key, make(), max);
}
