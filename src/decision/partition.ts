/** How a compiled document is laid out over WASM instances. */
import type { Bucket, BySubject, CompiledDocument, IndexNode, Rank } from '../policies/compile.ts';
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
  /** All but the regexes held elsewhere. */
  readonly main: () => Iterable<DataPiece>;
  /** Regexes alone, for each further instance, in the order that `elsewhere` counts. */
  readonly others: readonly (() => Iterable<DataPiece>)[];
}

type Regexes = NonNullable<Bucket['regex']>;
type Located = readonly [path: readonly string[], bucket: Bucket];

export function layOut(document: CompiledDocument, maxPatterns: number): Layout {
  const all = [...nodes(document)].flatMap(([path, node]) => [...buckets(path, node)]);
  const distinct = new Set(all.flatMap(([, { regex = [] }]) => regex.map(([, pattern]) => pattern)));
  if (distinct.size <= maxPatterns) return { main: () => mainPieces(document, (bucket) => bucket), others: [] };

  const parts: { readonly patterns: Set<string>; readonly held: [path: readonly string[], regex: Regexes][] }[] = [];
  const elsewhere = new Map<Bucket, [Rank, number][]>();
  for (const [path, bucket] of all) {
    for (const regex of chunks(bucket.regex ?? [], maxPatterns)) {
      let part = parts.at(-1);
      if (part === undefined || new Set([...part.patterns, ...regex.map(([, pattern]) => pattern)]).size > maxPatterns) {
        part = { patterns: new Set(), held: [] };
        parts.push(part);
      }
      for (const [, pattern] of regex) part.patterns.add(pattern);
      part.held.push([path, regex]);
      const [[least] = [0]] = regex;
      elsewhere.set(bucket, [...(elsewhere.get(bucket) ?? []), [least, parts.length - 1]]);
    }
  }
  const withoutRegex = (bucket: Bucket): object => {
    const { regex, ...rest } = bucket;
    return regex === undefined ? rest : { ...rest, elsewhere: elsewhere.get(bucket) };
  };
  return {
    main: () => mainPieces(document, withoutRegex),
    others: parts.map(
      ({ held }) =>
        () =>
          partPieces(document, held),
    ),
  };
}

function* chunks(regex: Regexes, size: number): Generator<Regexes> {
  for (let from = 0; from < regex.length; from += size) yield regex.slice(from, from + size);
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

function* partPieces(
  { unmatched }: CompiledDocument,
  held: Iterable<readonly [readonly string[], Regexes]>,
): Generator<DataPiece> {
  yield { path: [], value: `{${EMPTY_INDEX},"order":[],"unmatched":${unmatched}}` };
  for (const [path, regex] of held) yield { path, value: JSON.stringify({ regex }) };
}

/** The value as one piece, or member by member where that would be too long. */
function* pieces(path: readonly string[], value: object): Generator<DataPiece> {
  const json = JSON.stringify(value);
  const deepest = 6;
  if (json.length <= PIECE_BYTES || Array.isArray(value) || path.length >= deepest) yield { path, value: json };
  else for (const [key, member] of Object.entries(value)) yield* pieces([...path, key], member);
}

/** No prototype: names such as `__proto__` are keys like any other. */
function mapValues<T, U>(from: Readonly<Record<string, T>>, change: (value: T) => U): Record<string, U> {
  const to = Object.create(null) as Record<string, U>;
  for (const [key, value] of Object.entries(from)) to[key] = change(value);
  return to;
}
