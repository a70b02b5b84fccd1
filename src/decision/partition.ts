/** How a compiled document is laid out over WASM instances. */
import type { Bucket, BySubject, CompiledDocument, IndexNode, RegexEntry } from '../policies/compile.ts';
import { RESOURCE_TYPES, SUBJECT_TYPES } from '../policies/document.ts';
import type { DataPiece } from './instance.ts';

/**
 * OPA's regex cache frees patterns that are in use once a heap has seen 100 different ones (`reuse()` in OPA's regex.cc), so no
 * instance is given more than 99.
 */
export const MAX_PATTERNS = 99;

/** A piece is read without a pause, so that it must not be long: OPA reads some 60 bytes a microsecond. */
const PIECE_BYTES = 500_000;

export interface Layout {
  /** All but the regexes held elsewhere: in place of each stands the number of its instance. */
  readonly main: () => Iterable<DataPiece>;
  /** Regexes alone, for each further instance, in the order that `elsewhere` counts. */
  readonly others: readonly (() => Iterable<DataPiece>)[];
}

type Located = readonly [path: readonly string[], bucket: Bucket];

export function layOut(document: CompiledDocument, maxPatterns: number): Layout {
  const all = [...nodes(document)].flatMap(([path, node]) => [...buckets(path, node)]);
  const distinct = new Set(all.flatMap(([, bucket]) => patternsOf(bucket)));
  if (distinct.size <= maxPatterns) return { main: () => mainPieces(document, (bucket) => bucket), others: [] };

  // The main instance is asked every question, so it holds its fill, too: what is in its part 0 is not asked elsewhere.
  const parts: { readonly patterns: Set<string>; readonly held: Located[] }[] = [{ patterns: new Set(), held: [] }];
  const homes = new Map<Bucket, Map<string, number>>();
  for (const [path, bucket] of all) {
    const home = new Map<string, number>();
    for (const pattern of patternsOf(bucket)) {
      let part = parts.findIndex(
        ({ patterns }, i) => (i === 0 || i === parts.length - 1) && (patterns.has(pattern) || patterns.size < maxPatterns),
      );
      if (part === -1) part = parts.push({ patterns: new Set(), held: [] }) - 1;
      parts[part]?.patterns.add(pattern);
      home.set(pattern, part);
    }
    homes.set(bucket, home);
    for (const part of new Set(home.values())) {
      if (part > 0) parts[part]?.held.push([path, onlyRegexes(bucket, (pattern) => home.get(pattern) === part)]);
    }
  }
  const numbered = (bucket: Bucket): object =>
    withRegexes(bucket, ([rank, pattern]) => {
      const part = homes.get(bucket)?.get(pattern) ?? 0;
      return part === 0 ? [rank, pattern] : [rank, part - 1];
    });
  return {
    main: () => mainPieces(document, numbered),
    others: parts.slice(1).map(
      ({ held }) =>
        () =>
          partPieces(document, held),
    ),
  };
}

function patternsOf({ regex = [], guarded = [] }: Bucket): string[] {
  const entries = [...regex, ...guarded.flatMap(([, , table]) => Object.values(table).flat())];
  return [...new Set(entries.map(([, pattern]) => pattern))];
}

/** The bucket with something else in place of each regex. */
function withRegexes(bucket: Bucket, change: (entry: RegexEntry) => unknown): object {
  const { regex, guarded } = bucket;
  return {
    ...bucket,
    regex: regex?.map(change),
    guarded: guarded?.map(([least, length, table]) => [least, length, mapValues(table, (list) => list.map(change))]),
  };
}

/** What the bucket holds of these regexes. */
function onlyRegexes({ regex = [], guarded = [] }: Bucket, belongs: (pattern: string) => boolean): Bucket {
  const kept = (list: readonly RegexEntry[]): RegexEntry[] => list.filter(([, pattern]) => belongs(pattern));
  const groups = guarded.map(([least, length, table]) => {
    const lists = Object.entries(table).flatMap(([head, list]) => {
      const rest = kept(list);
      return rest.length > 0 ? [[head, rest] as const] : [];
    });
    return [least, length, tableOf(lists)] as const;
  });
  return { regex: kept(regex), guarded: groups };
}

function* nodes({ index }: CompiledDocument): Generator<[path: readonly string[], node: IndexNode]> {
  yield [['index', 'every'], index.every];
  for (const [target, node] of Object.entries(index.targets)) yield [['index', 'targets', target], node];
}

function* buckets(path: readonly string[], node: IndexNode): Generator<Located> {
  for (const type of RESOURCE_TYPES) {
    for (const kind of SUBJECT_TYPES) {
      for (const [value, bucket] of Object.entries(node[type][kind])) yield [[...path, type, kind, value], bucket];
    }
  }
}

const EMPTY_INDEX = '"index":{"every":{},"targets":{}}';

function* mainPieces(document: CompiledDocument, shown: (bucket: Bucket) => object): Generator<DataPiece> {
  const { order, unmatched } = document;
  yield { path: [], value: `{${EMPTY_INDEX},"order":${JSON.stringify(order)},"unmatched":${unmatched}}` };
  for (const [path, node] of nodes(document)) {
    const display = (by: BySubject<Bucket>) => mapValues(by, (table) => mapValues(table, shown));
    yield* pieces(path, {
      use: node.use,
      tool: display(node.tool),
      resource: display(node.resource),
      prompt: display(node.prompt),
    });
  }
}

function* partPieces({ unmatched }: CompiledDocument, held: Iterable<Located>): Generator<DataPiece> {
  yield { path: [], value: `{${EMPTY_INDEX},"order":[],"unmatched":${unmatched}}` };
  for (const [path, bucket] of held) yield { path, value: JSON.stringify(bucket) };
}

/** The value as one piece, or member by member where that would be too long. */
function* pieces(path: readonly string[], value: object): Generator<DataPiece> {
  const json = JSON.stringify(value);
  const deepest = 6;
  if (json.length <= PIECE_BYTES || Array.isArray(value) || path.length >= deepest) yield { path, value: json };
  else for (const [key, member] of Object.entries(value)) yield* pieces([...path, key], member);
}

function mapValues<T, U>(from: Readonly<Record<string, T>>, change: (value: T) => U): Record<string, U> {
  return tableOf(Object.entries(from).map(([key, value]) => [key, change(value)]));
}

/** No prototype: names such as `__proto__` are keys like any other. */
function tableOf<T>(entries: Iterable<readonly [string, T]>): Record<string, T> {
  const table = Object.create(null) as Record<string, T>;
  for (const [key, value] of entries) table[key] = value;
  return table;
}
