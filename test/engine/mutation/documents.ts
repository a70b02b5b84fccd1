/** Faults of compiled documents. A seed chooses the place of each fault. */
import type { Bucket, CompiledDocument, IndexNode, NameTest } from '../../../src/engine/compile/compile.ts';
import { RESOURCE_TYPES, SUBJECT_TYPES } from '../../../src/engine/compile/policy.ts';

/** The document without `readonly`: a copy that may be spoilt. */
type Draft = { -readonly [K in keyof CompiledDocument]: CompiledDocument[K] };
type Table = Record<string, unknown>;
type Pick = (below: number) => number;

/** Puts the fault into the draft; false: the draft has no place for it. */
type Fault = (draft: Draft, pick: Pick) => boolean;

const nodesOf = ({ index }: Draft): IndexNode[] => [index.every, ...Object.values(index.targets)];
const tablesOf = (draft: Draft): Table[] =>
  nodesOf(draft).flatMap((node) => RESOURCE_TYPES.flatMap((type) => SUBJECT_TYPES.map((kind) => node[type][kind])));
const bucketsOf = (draft: Draft): Bucket[] => tablesOf(draft).flatMap((table) => Object.values(table) as Bucket[]);
const groupsOf = (draft: Draft): unknown[][] => bucketsOf(draft).flatMap(({ edges = [] }) => edges as unknown as unknown[][]);
const edgeTables = (draft: Draft): Table[] => groupsOf(draft).map((group) => group[2] as Table);
const testLists = (draft: Draft): NameTest[][] => [
  ...bucketsOf(draft).flatMap(({ tests }) => (tests === undefined ? [] : [tests])),
  ...edgeTables(draft).flatMap((table) => Object.values(table) as NameTest[][]),
];
const testsOf = (draft: Draft): unknown[][] => testLists(draft).flat() as unknown as unknown[][];
const exactsOf = (draft: Draft): Table[] =>
  bucketsOf(draft).flatMap(({ exact }) => (exact === undefined ? [] : [exact as Table]));
const usesOf = (draft: Draft): Table[] => nodesOf(draft).flatMap(({ use }) => SUBJECT_TYPES.map((kind) => use[kind]));
const rowsOf = (draft: Draft): Table[] => draft.policies as unknown as Table[];

/** Applies `change` to one of the places, if there is any. */
function at<T>(
  places: (draft: Draft) => readonly T[],
  change: (place: T, pick: Pick, draft: Draft) => boolean | undefined,
): Fault {
  return (draft, pick) => {
    const all = places(draft);
    const place = all[pick(all.length)];
    return place !== undefined && change(place, pick, draft) !== false;
  };
}
const filled = (tables: (draft: Draft) => readonly Table[]) => (draft: Draft) =>
  tables(draft).filter((table) => Object.keys(table).length > 0);
const keyOf = (table: Table, pick: Pick): string => Object.keys(table)[pick(Object.keys(table).length)] ?? '';

const dropKey = (table: Table, pick: Pick): undefined => {
  delete table[keyOf(table, pick)];
};
const renameKey =
  (to: (key: string) => string) =>
  (table: Table, pick: Pick): boolean => {
    const key = keyOf(table, pick);
    const other = to(key);
    if (other === key) return false;
    table[other] = table[key];
    delete table[key];
    return true;
  };
const moveRank =
  (by: number) =>
  (table: Table, pick: Pick, { unmatched }: Draft): boolean => {
    const key = keyOf(table, pick);
    const rank = (table[key] as number) + by;
    if (rank < 0 || rank > unmatched) return false;
    table[key] = rank;
    return true;
  };
const dropFrom =
  <T>(list: (draft: Draft) => readonly T[][]): Fault =>
  (draft, pick) =>
    at<T[]>(
      (d) => list(d).filter((items) => items.length > 0),
      (items, p) => {
        items.splice(p(items.length), 1);
        return true;
      },
    )(draft, pick);
const changeText = (part: number, change: (text: string) => string, only: (test: unknown[]) => boolean = () => true): Fault =>
  at(
    (draft) => testsOf(draft).filter((test) => typeof test[part] === 'string' && only(test)),
    (test) => {
      const before = test[part] as string;
      test[part] = change(before);
      return test[part] !== before;
    },
  );
const isRegex = (test: unknown[]): boolean => test[1] === 'regex';
const isPlain = (test: unknown[]): boolean => !isRegex(test);
/** Moves the bucket of one subject to another, or gives it to both. */
const giveSubject = (move: boolean): Fault =>
  at(
    (draft) => nodesOf(draft).flatMap((node) => RESOURCE_TYPES.map((type) => node[type] as unknown as Record<string, Table>)),
    (bySubject, pick) => {
      const kinds = Object.keys(bySubject).filter((kind) => Object.keys(bySubject[kind] ?? {}).length > 0);
      const from = bySubject[kinds[pick(kinds.length)] ?? ''];
      if (from === undefined) return false;
      const key = keyOf(from, pick);
      const to = from === bySubject['everyone'] ? 'role' : 'everyone';
      const name = to === 'everyone' ? '' : 'dev';
      const table = bySubject[to];
      if (table === undefined || table[name] !== undefined) return false;
      table[name] = from[key];
      if (move) delete from[key];
      return true;
    },
  );
const setRow = (change: (row: Table) => boolean): Fault => at(rowsOf, change);
const setMember = (member: string, value: unknown): Fault =>
  setRow((row) => {
    const same = row[member] === value;
    row[member] = value;
    return !same;
  });
const FLIPPED: Readonly<Record<string, string>> = { allow: 'deny', deny: 'allow' };

export const FAULTS: Readonly<Record<string, Fault>> = {
  'order: an effect flipped': at(
    (draft) => draft.order as unknown as string[][],
    (row) => {
      row[0] = FLIPPED[row[0] ?? ''] ?? '';
      return true;
    },
  ),
  'order: neighbours swapped': (draft, pick) => {
    const order = draft.order as unknown[];
    const i = pick(order.length - 1);
    if (order.length < 2) return false;
    order.splice(i, 2, order[i + 1], order[i]);
    return true;
  },
  'order: a row dropped': dropFrom((draft) => [draft.order as unknown[]]),
  'order: another id': at(
    (draft) => draft.order as unknown as string[][],
    (row) => {
      row[1] = `${row[1]}x`;
      return true;
    },
  ),
  'unmatched: one less': (draft) => --draft.unmatched >= 0,
  'unmatched: nothing': (draft) => {
    const before = draft.unmatched;
    draft.unmatched = 0;
    return before !== 0;
  },
  'any: dropped': at(
    (draft) => bucketsOf(draft).filter(({ any }) => any !== undefined),
    (bucket) => {
      delete bucket.any;
      return true;
    },
  ),
  'any: later': at(
    (draft) => bucketsOf(draft).filter(({ any }) => any !== undefined) as unknown as Table[],
    (bucket, _, draft) => {
      bucket['any'] = Math.min(draft.unmatched, (bucket['any'] as number) + 1);
      return true;
    },
  ),
  'any: added': at(
    (draft) => bucketsOf(draft).filter(({ any }) => any === undefined) as unknown as Table[],
    (bucket, pick, draft) => {
      bucket['any'] = pick(draft.unmatched);
      return true;
    },
  ),
  'exact: a name dropped': at(filled(exactsOf), dropKey),
  'exact: a longer name': at(
    filled(exactsOf),
    renameKey((key) => `${key}x`),
  ),
  'exact: a shorter name': at(
    filled(exactsOf),
    renameKey((key) => key.slice(0, -1)),
  ),
  'exact: upper case': at(
    filled(exactsOf),
    renameKey((key) => key.toUpperCase()),
  ),
  'exact: a later rank': at(filled(exactsOf), moveRank(1)),
  'exact: an earlier rank': at(filled(exactsOf), moveRank(-1)),
  'edges: a group dropped': dropFrom((draft) => bucketsOf(draft).flatMap(({ edges }) => (edges === undefined ? [] : [edges]))),
  'edges: a key dropped': at(filled(edgeTables), dropKey),
  'edges: a longer key': at(
    filled(edgeTables),
    renameKey((key) => `${key}x`),
  ),
  'edges: another length': at(groupsOf, (group) => {
    group[1] = (group[1] as number) + 1;
    return true;
  }),
  'edges: the other end': at(groupsOf, (group) => {
    group[1] = -(group[1] as number);
    return true;
  }),
  'edges: least rank too high': at(groupsOf, (group, _, draft) => {
    group[0] = draft.unmatched;
    return true;
  }),
  'tests: one dropped': dropFrom((draft) => testLists(draft) as unknown as unknown[][]),
  'tests: a later rank': at(testsOf, (test) => {
    test[0] = (test[0] as number) + 1;
    return true;
  }),
  'tests: an earlier rank': at(testsOf, (test) => {
    test[0] = (test[0] as number) - 1;
    return (test[0] as number) >= 0;
  }),
  'tests: prefix for suffix': changeText(1, (form) => form.replace('suffix', 'prefix'), isPlain),
  'tests: suffix for prefix': changeText(1, (form) => form.replace('prefix', 'suffix'), isPlain),
  'tests: contains for suffix': changeText(1, (form) => form.replace('suffix', 'contains'), isPlain),
  'tests: contains for prefix': changeText(1, (form) => form.replace('prefix', 'contains'), isPlain),
  'tests: prefix for contains': changeText(1, (form) => form.replace('contains', 'prefix'), isPlain),
  'tests: line forgotten': changeText(1, (form) => form.replace('line ', ''), isPlain),
  'tests: line added': changeText(1, (form) => (form.startsWith('line ') ? form : `line ${form}`), isPlain),
  'tests: a form that there is not': changeText(1, () => 'other', isPlain),
  'tests: a wider text': changeText(2, (text) => text.slice(0, -1), isPlain),
  'tests: a narrower text': changeText(2, (text) => `${text}x`),
  'tests: text needed elsewhere': changeText(2, (text) => `${text}\u0001`, isRegex),
  'regex: widened at the start': changeText(3, (pattern) => pattern.replace('^', ''), isRegex),
  'regex: widened at the end': changeText(3, (pattern) => pattern.replace('$', ''), isRegex),
  'regex: widened to everything': changeText(3, () => '', isRegex),
  'regex: narrowed to nothing': changeText(3, () => '[^\\x00-\\x{10FFFF}]', isRegex),
  'regex: cannot be built': changeText(3, () => '(', isRegex),
  'subjects: one dropped': at(filled(tablesOf), dropKey),
  'subjects: another name': at(
    filled(tablesOf),
    renameKey((key) => `${key}x`),
  ),
  'subjects: upper case': at(
    filled(tablesOf),
    renameKey((key) => key.toUpperCase()),
  ),
  'subjects: moved': giveSubject(true),
  'subjects: one more': giveSubject(false),
  'targets: one dropped': at(
    filled((draft) => [draft.index.targets as unknown as Table]),
    dropKey,
  ),
  'targets: another id': at(
    filled((draft) => [draft.index.targets as unknown as Table]),
    renameKey((key) => `${key}x`),
  ),
  'targets: one for every target': (draft, pick) => {
    const [first] = Object.values(draft.index.targets);
    if (first === undefined || pick(1) !== 0) return false;
    draft.index = { ...draft.index, every: first };
    return true;
  },
  'types: exchanged': at(nodesOf, (node) => {
    const types = node as { -readonly [K in keyof IndexNode]: IndexNode[K] };
    [types.tool, types.resource] = [types.resource, types.tool];
    return true;
  }),
  'use: one dropped': at(filled(usesOf), dropKey),
  'use: a later rank': at(filled(usesOf), moveRank(1)),
  'use: an earlier rank': at(filled(usesOf), moveRank(-1)),
  'policies: an effect flipped': setRow((row) => {
    row['effect'] = FLIPPED[row['effect'] as string];
    return true;
  }),
  'policies: one dropped': dropFrom((draft) => [draft.policies as unknown[]]),
  'policies: every name': setMember('pattern', null),
  'policies: every target': setMember('target', null),
  'policies: every type': setMember('type', 'all'),
  'policies: nobody': setRow((row) => {
    const before = (row['subjects'] as unknown[]).length;
    row['subjects'] = [];
    return before > 0;
  }),
  'policies: everyone': setMember('subjects', [['everyone']]),
  'policies: the highest priority': setMember('priority', 2_147_483_647),
  'policies: the lowest priority': setMember('priority', -2_147_483_648),
};

/** Returns a copy with the fault at a place that the numbers choose; null: there is no such place. */
export function spoil(document: CompiledDocument, fault: Fault, pick: Pick): CompiledDocument | null {
  const draft = JSON.parse(JSON.stringify(document)) as Draft;
  return fault(draft, pick) ? draft : null;
}
