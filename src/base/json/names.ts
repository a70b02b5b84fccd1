/**
 * Tracks the member names of all open objects of a JSON reader. It finds repeated names without creating a string for each name.
 */

/** Up to this many names of an object are compared one by one. A table would cost more. */
const FEW = 32;
/** Entries are stored in chunks and tables in segments that grow separately, so that no single growth takes long. */
const CHUNK = 4_096;
const SEGMENTS = 64;
const SEGMENT_SHIFT = 26;
const FIRST_SLOTS = 64;
/** A table with more names than this is not reused for the next object. */
const REUSED = SEGMENTS * FIRST_SLOTS;

/** Secret and odd, so that no client can choose names that collide. */
const SECRET = (Math.floor(Math.random() * 0x7fffffff) << 1) | 1;

/**
 * The initial hash. It is not 0: characters with code 0 would not change a hash of 0, so names of only such characters would all
 * collide.
 */
export const HASH_BEGIN = (Math.floor(Math.random() * 0x7fff) + 1) << 16;

/** Returns the hash after one more code unit of a name. */
export function hashStep(hash: number, unit: number): number {
  const mixed = Math.imul(hash ^ unit, SECRET);
  return mixed ^ (mixed >>> 15);
}

interface Table {
  segments: (Int32Array | null)[];
  counts: Int32Array;
  size: number;
}

export function hashOf(name: string): number {
  let hash = HASH_BEGIN;
  for (let i = 0; i < name.length; i++) hash = hashStep(hash, name.charCodeAt(i));
  return hash;
}

export function createOpenNames(text: string) {
  /** The hash, start and end of each name in the open objects. The end is complemented if the name has escapes. */
  const chunks: Int32Array[] = [];
  let top = 0;
  const tables = new Map<number, Table>();
  let spare: Table | null = null;

  function read(entry: number, field: number): number {
    return (chunks[Math.floor(entry / CHUNK)] as Int32Array)[(entry % CHUNK) * 3 + field] as number;
  }

  /** Called only if two hashes are equal, so escapes are rarely decoded. */
  function isSame(entry: number, start: number, end: number, hasEscapes: boolean): boolean {
    const knownEnd = read(entry, 2);
    return nameAt(read(entry, 1), knownEnd < 0 ? ~knownEnd : knownEnd, knownEnd < 0) === nameAt(start, end, hasEscapes);
  }

  function nameAt(start: number, end: number, hasEscapes: boolean): string {
    return hasEscapes ? (JSON.parse(text.slice(start - 1, end + 1)) as string) : text.slice(start, end);
  }

  /** Inserts an entry. Slots hold the entry plus 1; 0 is free. */
  function fill(slots: Int32Array, entry: number, hash: number): void {
    const mask = slots.length - 1;
    let slot = hash & mask;
    while (slots[slot] !== 0) slot = (slot + 1) & mask;
    slots[slot] = entry + 1;
  }

  function insert(table: Table, entry: number, hash: number): void {
    const at = hash >>> SEGMENT_SHIFT;
    let slots = table.segments[at] ?? null;
    if (slots === null) {
      slots = new Int32Array(FIRST_SLOTS);
      table.segments[at] = slots;
    } else if ((table.counts[at] as number) * 2 >= slots.length) {
      const grown = new Int32Array(slots.length * 2);
      for (const kept of slots) if (kept !== 0) fill(grown, kept - 1, read(kept - 1, 0));
      slots = grown;
      table.segments[at] = slots;
    }
    fill(slots, entry, hash);
    table.counts[at] = (table.counts[at] as number) + 1;
    table.size++;
  }

  function tableFor(base: number): Table {
    const table = spare ?? {
      segments: new Array<Int32Array | null>(SEGMENTS).fill(null),
      counts: new Int32Array(SEGMENTS),
      size: 0,
    };
    spare = null;
    for (let entry = base; entry < top; entry++) insert(table, entry, read(entry, 0));
    tables.set(base, table);
    return table;
  }

  function isKnown(base: number, hash: number, start: number, end: number, hasEscapes: boolean): boolean {
    if (top - base < FEW) {
      for (let entry = base; entry < top; entry++)
        if (read(entry, 0) === hash && isSame(entry, start, end, hasEscapes)) return true;
      return false;
    }
    const table = tables.get(base) ?? tableFor(base);
    const slots = table.segments[hash >>> SEGMENT_SHIFT] ?? null;
    if (slots === null) return false;
    const mask = slots.length - 1;
    for (let slot = hash & mask; slots[slot] !== 0; slot = (slot + 1) & mask) {
      const entry = (slots[slot] as number) - 1;
      if (read(entry, 0) === hash && isSame(entry, start, end, hasEscapes)) return true;
    }
    return false;
  }

  return {
    /** Starts an object. Returns the base to pass to `add` and `end`. */
    begin: (): number => top,
    end(base: number): void {
      const table = top - base < FEW ? undefined : tables.get(base);
      if (table !== undefined) {
        tables.delete(base);
        if (table.size <= REUSED) {
          for (const slots of table.segments) slots?.fill(0);
          table.counts.fill(0);
          table.size = 0;
          spare = table;
        }
      }
      top = base;
    },
    /** Adds a name. False: the innermost object already has it. `start` and `end` are the offsets of its text. */
    add(base: number, hash: number, start: number, end: number, hasEscapes: boolean): boolean {
      if (isKnown(base, hash, start, end, hasEscapes)) return false;
      const chunk = Math.floor(top / CHUNK);
      chunks[chunk] ??= new Int32Array(CHUNK * 3);
      const at = (top % CHUNK) * 3;
      const fields = chunks[chunk] as Int32Array;
      fields[at] = hash;
      fields[at + 1] = start;
      fields[at + 2] = hasEscapes ? ~end : end;
      const table = top - base < FEW ? undefined : tables.get(base);
      if (table !== undefined) insert(table, top, hash);
      top++;
      return true;
    },
  };
}
