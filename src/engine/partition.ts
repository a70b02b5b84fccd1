/** Distributes a compiled document over WASM instances. */
import { atOnce } from '../base/turns/slices.ts';
import { comparisonsOf } from './compile/collisions.ts';
import type { Bucket, CompiledDocument, IndexNode, NameTest } from './compile/compile.ts';
import { RESOURCE_TYPES, SUBJECT_TYPES } from './compile/policy.ts';
import type { DataPiece } from './instance.ts';

/**
 * No instance holds more than 99 patterns: OPA's regex cache frees patterns that are still in use once a heap has seen 100
 * different ones (`reuse()` in OPA's regex.cc).
 */
export const MAX_PATTERNS = 99;

const BUCKETS_AT_ONCE = 100;

/** A piece is loaded without a pause, so it must not be long: OPA reads some 60 bytes per microsecond. */
const PIECE_BYTES = 200_000;
/** Changes are refused that need more for one bucket (collisions.ts), but not deletions, after which a table has fewer slots. */
const PIECE_COMPARISONS = 100_000;
/** So few texts take 10,000 comparisons at most, and are not counted. */
const FEW_TEXTS = 140;

export interface Layout {
  /** Everything except the regexes of the other instances. Each of those is replaced by the number of its instance. */
  readonly main: () => Iterable<DataPiece>;
  /** The regexes of each further instance, in the order of the numbers in `elsewhere`. */
  readonly others: readonly (() => Iterable<DataPiece>)[];
}

/** The place of a pattern: the number of the additional instance that holds it, and the pattern's number there. */
type Home = readonly [instance: number, number: number];

/** Pauses every hundred subjects of a table. */
export function* layOutInSteps(document: CompiledDocument, maxPatterns: number): Generator<undefined, Layout> {
  // The main instance answers every question, so it holds as many patterns as it can.
  const here = new Set<string>();
  const elsewhere = new Map<string, Home>();
  const others: string[][] = [];
  for (const pattern of patternsOf(document)) {
    if (pattern === undefined) {
      yield;
      continue;
    }
    if (here.has(pattern) || elsewhere.has(pattern)) continue;
    if (here.size < maxPatterns) {
      here.add(pattern);
      continue;
    }
    // Keep the patterns of one bucket together: they come one after the other.
    if ((others.at(-1)?.length ?? maxPatterns) === maxPatterns) others.push([]);
    elsewhere.set(pattern, [others.length - 1, (others.at(-1)?.push(pattern) ?? 0) - 1]);
  }
  const placed = (tests: readonly NameTest[]): unknown[] =>
    tests.map((test) => {
      const home = test[1] === 'regex' ? elsewhere.get(test[3]) : undefined;
      return home === undefined ? test : [test[0], home[0], test[2], home[1]];
    });
  const shown = ({ tests, edges, ...rest }: Bucket): object => ({
    ...rest,
    ...(tests === undefined ? {} : { tests: placed(tests) }),
    ...(edges === undefined ? {} : { edges: edges.map(([least, length, table]) => [least, length, mapValues(table, placed)]) }),
  });
  return {
    main: () => mainPieces(document, elsewhere.size === 0 ? (bucket) => bucket : shown),
    others: others.map((patterns) => () => [{ path: [], value: JSON.stringify({ patterns }) }]),
  };
}

/** Yields undefined for a pause. */
function* patternsOf(document: CompiledDocument): Generator<string | undefined> {
  let buckets = 0;
  for (const [, node] of nodes(document)) {
    for (const type of RESOURCE_TYPES) {
      for (const kind of SUBJECT_TYPES) {
        const table = node[type][kind];
        // A table can have a hundred thousand subjects. `Object.values` takes several times as long as `Object.keys`.
        for (const value of Object.keys(table)) {
          if (++buckets % BUCKETS_AT_ONCE === 0) yield;
          const { tests = [], edges = [] } = table[value] ?? {};
          const all = [...tests, ...edges.flatMap(([, , table]) => Object.values(table).flat())];
          for (const test of all) if (test[1] === 'regex') yield test[3];
        }
      }
    }
  }
}

function* nodes({ index }: CompiledDocument): Generator<[path: readonly string[], node: IndexNode]> {
  yield [['index', 'every'], index.every];
  for (const [target, node] of Object.entries(index.targets)) yield [['index', 'targets', target], node];
}

function* mainPieces(document: CompiledDocument, shown: (bucket: Bucket) => object): Generator<DataPiece> {
  const { order, unmatched } = document;
  yield { path: [], value: `{"index":{"every":{},"targets":{}},"order":${JSON.stringify(order)},"unmatched":${unmatched}}` };
  for (const [path, { use, ...buckets }] of nodes(document)) {
    yield { path, value: EMPTY_NODE };
    for (const kind of SUBJECT_TYPES) {
      yield* tablePieces([...path, 'use', kind], use[kind], (rank) => rank);
      for (const type of RESOURCE_TYPES) yield* tablePieces([...path, type, kind], buckets[type][kind], shown);
    }
  }
}

const NO_SUBJECTS = Object.fromEntries(SUBJECT_TYPES.map((kind) => [kind, {}]));
const EMPTY_NODE = JSON.stringify(Object.fromEntries(['use', ...RESOURCE_TYPES].map((part) => [part, NO_SUBJECTS])));

/** Yields the table as one piece, or as one that is long enough and one for each further member. */
function* tablePieces<T>(
  path: DataPiece['path'],
  table: Readonly<Record<string, T>>,
  shown: (member: T) => unknown,
): Generator<DataPiece> {
  let first = '';
  let comparisons = 0;
  let isFull = false;
  for (const key of Object.keys(table)) {
    const member = table[key] as T;
    const value = JSON.stringify(shown(member));
    if (isFull) {
      yield { path: [...path, key], value };
      continue;
    }
    first += `${first === '' ? '{' : ','}${JSON.stringify(key)}:${value}`;
    comparisons += comparisonsIn(member);
    isFull = first.length > PIECE_BYTES || comparisons > PIECE_COMPARISONS;
    if (isFull) yield { path, value: `${first}}` };
  }
  if (first !== '' && !isFull) yield { path, value: `${first}}` };
}

/** How often OPA compares texts while it loads the member. */
function comparisonsIn(member: unknown): number {
  const { exact = {}, edges = [] } = (typeof member === 'object' ? member : {}) as Bucket;
  let comparisons = 0;
  for (const table of [exact, ...edges.map(([, , table]) => table)]) {
    const texts = new Set(Object.keys(table));
    if (texts.size > FEW_TEXTS) comparisons += atOnce(comparisonsOf(texts));
  }
  return comparisons;
}

function mapValues<T, U>(from: Readonly<Record<string, T>>, change: (value: T) => U): Record<string, U> {
  return tableOf(Object.entries(from).map(([key, value]) => [key, change(value)]));
}

/** The table has no prototype, so that names such as `__proto__` are ordinary keys. */
function tableOf<T>(entries: Iterable<readonly [string, T]>): Record<string, T> {
  const table = Object.create(null) as Record<string, T>;
  for (const [key, value] of entries) table[key] = value;
  return table;
}
