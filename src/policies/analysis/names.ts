/**
 * The names that a request can contain, and which of them a pattern matches.
 *
 * A tool or prompt has a name of 1 to 256 characters. A resource has a canonical URI, or a template, of 1 to 2,048 bytes.
 * src/protocol/operation.ts refuses names with control characters.
 */
import type { Shape } from '../../engine/compile/lower.ts';
import { formIn, formOf, readPattern } from '../../engine/compile/pattern.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import { parse } from '../../engine/compile/re2.ts';
import { isDecidableResource } from '../../protocol/uri.ts';
import { type Automaton, type Budget, type Domain, patternAutomaton, textsAutomaton } from './automaton.ts';

const PLAIN = [
  [0x20, 0x7e],
  [0xa0, 0xd7ff],
  [0xe000, 0x10ffff],
] as const;
const byName: Domain = { characters: PLAIN, sizeOf: () => 1, limit: 256 };
const byUri: Domain = {
  characters: PLAIN,
  sizeOf: (code) => (code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4),
  limit: 2048,
};

/** The allowed characters and lengths. Not every such text is the name of a resource. */
export const domainOf = (type: ResourceType): Domain => (type === 'resource' ? byUri : byName);

export const canBeAsked = (type: ResourceType, name: string): boolean =>
  canBeSent(type, name) && (type !== 'resource' || isDecidableResource(name));

export const NOT_SENT = 'no request can have it: a tool or prompt has at most 256 characters, and a resource at most 2,048 bytes';

/** Whether a request with this name is decided, or refused because its URI is ambiguous. */
export function canBeSent(type: ResourceType, name: string): boolean {
  if (name === '' || /[\p{Cc}\p{Cs}]/u.test(name)) return false;
  const { sizeOf, limit } = domainOf(type);
  let size = 0;
  for (const character of name) size += sizeOf(character.codePointAt(0) ?? 0);
  return size <= limit;
}

/** The names that a pattern matches. A statement about a name holds for names that a request can contain. */
export interface Names {
  readonly isEvery: boolean;
  /** All the names, if there are few. */
  readonly texts: readonly string[] | null;
  /** Each name begins with one of these texts; `ends` is the same for the end. */
  readonly starts: readonly string[] | null;
  readonly ends: readonly string[] | null;
  has(name: string): boolean;
  /** Throws `TooLarge`. */
  automaton(): Automaton;
}

const EVERY_NAME: Names = {
  isEvery: true,
  texts: null,
  starts: null,
  ends: null,
  has: () => true,
  automaton: () => everyName,
};
const everyName = patternAutomaton({ kind: 'concat', items: [] }, []);

/** The memory limit of each automaton and of all automata of a library together, in numbers of four to eight bytes. */
const ROOM = 10_000_000;
const ROOM_FOR_ONE = 200_000;

/** Returns the names by pattern. Each pattern is parsed once. */
export function createLibrary(): (pattern: string | null) => Names {
  const known = new Map<string, Names>();
  const room = { left: ROOM };
  return (pattern) => {
    if (pattern === null) return EVERY_NAME;
    const names = known.get(pattern) ?? namesOf(pattern, room);
    known.set(pattern, names);
    return names;
  };
}

function namesOf(pattern: string, room: Budget): Names {
  const automaton = once(() => patternAutomaton(parse(pattern), [room, { left: ROOM_FOR_ONE }]));
  const reading = readPattern(pattern);
  // The patterns of the analysis itself may exceed the limits.
  const { shapes, screen } = typeof reading === 'string' ? formOf(parse(pattern)) : formIn(reading);
  if (shapes === null) {
    const { guard, needs } = screen;
    const fitsGuard = (name: string): boolean =>
      guard === null || guard.texts.some((text) => (guard.side === 'start' ? name.startsWith(text) : name.endsWith(text)));
    return {
      isEvery: false,
      texts: null,
      starts: guard?.side === 'start' ? guard.texts : null,
      ends: guard?.side === 'end' ? guard.texts : null,
      has: (name) => name.includes(needs) && fitsGuard(name) && automaton().fits(name),
      automaton,
    };
  }
  if (shapes.some(({ kind, text }) => text === '' && kind !== 'exact')) return EVERY_NAME;
  const texts = shapes.map(({ text }) => text);
  if (shapes.every(({ kind }) => kind === 'exact')) {
    const all = new Set(texts);
    return {
      isEvery: false,
      texts,
      starts: texts,
      ends: texts,
      has: (name) => all.has(name),
      automaton: once(() => textsAutomaton(texts)),
    };
  }
  return {
    isEvery: false,
    texts: null,
    starts: shapes.every(({ kind }) => kind === 'exact' || kind === 'prefix') ? texts : null,
    ends: shapes.every(({ kind }) => kind === 'exact' || kind === 'suffix') ? texts : null,
    has: (name) => shapes.some((shape) => isOf(shape, name)),
    automaton,
  };
}

function once<T>(make: () => T): () => T {
  let made: T | undefined;
  return () => {
    made ??= make();
    return made;
  };
}

function isOf({ kind, text }: Shape, name: string): boolean {
  switch (kind) {
    case 'exact':
      return name === text;
    case 'prefix':
      return name.startsWith(text);
    case 'suffix':
      return name.endsWith(text);
    case 'contains':
      return name.includes(text);
  }
}

/** A quick check that finds many pairs without a common name. If it returns false, nothing is known. */
export function areApart(a: Names, b: Names): boolean {
  return (
    (a.starts !== null && b.starts !== null && !meet(a.starts, b.starts, (one, two) => one.startsWith(two))) ||
    (a.ends !== null && b.ends !== null && !meet(a.ends, b.ends, (one, two) => one.endsWith(two)))
  );
}

function meet(some: readonly string[], others: readonly string[], fits: (one: string, two: string) => boolean): boolean {
  for (const one of some) for (const two of others) if (fits(one, two) || fits(two, one)) return true;
  return false;
}
