/**
 * Turns patterns into plain comparisons if these are provably equivalent. A pattern whose alternatives are finite sets of texts
 * between anchors or `.*` needs no regular expression. In doubt, the pattern stays one.
 */
import { ANY, ANY_BUT_NEWLINE, type Ranges } from './characters.ts';
import type { Node } from './re2.ts';

export interface Shape {
  readonly kind: 'exact' | 'prefix' | 'suffix' | 'contains';
  readonly text: string;
  /** Only names without a line break match: this is the meaning of `.*` between the text and an anchor. */
  readonly oneLine: boolean;
}

/** Few different lengths need few look-ups. The tests compare the characters that are cut off here. */
const shorten = (length: number): number => (length < 4 ? length : length - (length % 4));

/** How a text at the beginning or end of a name is looked up. `length` is negative for the end. `key`: the characters that are looked up. */
export function edgeOf(text: string, side: Guard['side']): { readonly length: number; readonly key: string } {
  const characters = [...text];
  const size = shorten(characters.length);
  const length = side === 'start' ? size : -size;
  return { length, key: (side === 'start' ? characters.slice(0, size) : characters.slice(-size)).join('') };
}

/** With more texts than this, one regular expression is cheaper. */
export const MAX_TEXTS = 64;

/** Returns shapes that together match the same names as the pattern. null: the pattern stays a regular expression. */
export function lower(node: Node): Shape[] | null {
  const shapes: Shape[] = [];
  for (const branch of node.kind === 'alternate' ? node.items : [node]) {
    const lowered = branch.kind === 'alternate' ? lower(branch) : lowerBranch(branch);
    if (lowered === null || shapes.length + lowered.length > MAX_TEXTS) return null;
    shapes.push(...lowered);
  }
  return shapes;
}

/** A quick test that every matching name passes, without the regular expression. */
export interface Screen {
  /** null: no such texts exist, or too many to be useful. */
  readonly guard: Guard | null;
  /** Every name that matches contains this text; it may be empty. */
  readonly needs: string;
}

/** Every name that matches begins with one of the texts, or ends with one of them. */
export interface Guard {
  readonly side: 'start' | 'end';
  readonly texts: readonly string[];
}

export function screen(node: Node): Screen {
  const useful = (texts: string[] | null): texts is string[] =>
    texts !== null && (texts.length <= MANY_EDGES || shortest(texts) >= LONG_EDGE);
  const [start, end] = [edges(node, 'start'), edges(node, 'end')];
  const guards: Guard[] = [
    ...(useful(start) ? [{ side: 'start', texts: start } as const] : []),
    ...(useful(end) ? [{ side: 'end', texts: end } as const] : []),
  ];
  const [guard = null] = guards.sort((a, b) => shortest(b.texts) - shortest(a.texts));
  return { guard, needs: needed(node) };
}

const shortest = (texts: readonly string[]): number => Math.min(...texts.map((text) => text.length));

/** Returns the longest text that every match contains. It looks at one item after the other, so the true longest text may be longer. */
function needed(node: Node): string {
  let longest = '';
  const consider = (text: string): void => {
    if (text.length > longest.length) longest = text;
  };
  let run = '';
  for (const item of flatten(node)) {
    // An assertion has no width, so its neighbours are adjacent.
    if (item.kind === 'assert') continue;
    const [text, ...others] = language(item) ?? ['', ''];
    if (others.length === 0) run += text;
    else {
      consider(run);
      run = '';
      if (item.kind === 'repeat' && item.min > 0) consider(needed(item.item));
    }
  }
  consider(run);
  return longest;
}

function edges(node: Node, side: Guard['side']): string[] | null {
  if (node.kind === 'alternate') {
    const each = node.items.map((item) => edges(item, side));
    return each.some((texts) => texts === null) ? null : few(each.flatMap((texts) => texts ?? []));
  }
  const items = flatten(node);
  const [anchor, ...inward] = side === 'start' ? items : items.reverse();
  if (anchor?.kind === 'alternate' && inward.length === 0) return edges(anchor, side);
  if (anchor?.kind !== 'assert' || anchor.at !== `text_${side}`) return null;
  const texts = outermost(inward, side);
  return texts.includes('') ? null : texts;
}

/** More edges than this are not worth their space if they are short: `^[a-z]+_` has 26. */
const MANY_EDGES = 8;

/** Edges of this length distinguish names well enough: longer ones that would multiply the edges are dropped. */
const LONG_EDGE = 3;

/**
 * Returns the texts with which matches of the items can begin at that edge, as far as they can be listed. The items come in the
 * order from the edge inwards.
 */
function outermost(inward: readonly Node[], side: Guard['side']): string[] {
  let texts = [''];
  for (const item of inward) {
    const all = language(item);
    const next = all ?? edgeOfOne(item, side);
    const longer: string[] | null = side === 'start' ? product(texts, () => next) : product(next, () => texts);
    if (longer === null || (longer.length > texts.length && texts.every((text) => text.length >= LONG_EDGE))) break;
    texts = longer;
    if (all === null) break;
  }
  return texts;
}

/** The edges of a repeated item are those of a single one. */
function edgeOfOne(item: Node, side: Guard['side']): string[] | null {
  const inward = (node: Node): Node[] => (side === 'start' ? flatten(node) : flatten(node).reverse());
  if (item.kind === 'alternate') return few(item.items.flatMap((branch) => outermost(inward(branch), side)));
  return item.kind === 'repeat' && item.min > 0 ? outermost(inward(item.item), side) : null;
}

/** What may stand between the text and an end of the name: nothing, anything, or anything except a line break. */
type Side = 'nothing' | 'anything' | 'one line';

function lowerBranch(node: Node): Shape[] | null {
  const items = flatten(node);
  if (items.length === 1 && items[0]?.kind === 'alternate') return lower(items[0]);
  const left = takeSide(items, 'text_start', 'shift');
  const right = takeSide(items, 'text_end', 'pop');
  const texts = language({ kind: 'concat', items });
  if (texts === null) return null;
  const shapes = texts.map((text) => shapeOf(left, text, right));
  return shapes.every((shape) => shape !== null) ? shapes : null;
}

function flatten(node: Node): Node[] {
  return node.kind === 'concat' ? node.items.flatMap(flatten) : [node];
}

function takeSide(items: Node[], anchor: 'text_start' | 'text_end', take: 'shift' | 'pop'): Side {
  const peek = (): Node | undefined => (take === 'shift' ? items[0] : items.at(-1));
  const edge = peek();
  const anchored = edge?.kind === 'assert' && edge.at === anchor;
  if (anchored) items[take]();
  const next = peek();
  const filler = next?.kind === 'repeat' && next.min === 0 && next.max === null ? fillerOf(next.item) : 'nothing';
  if (filler !== 'nothing') items[take]();
  return anchored ? filler : 'anything';
}

function fillerOf(item: Node): Side {
  if (item.kind !== 'chars') return 'nothing';
  if (sameRanges(item.ranges, ANY)) return 'anything';
  return sameRanges(item.ranges, ANY_BUT_NEWLINE) ? 'one line' : 'nothing';
}

const sameRanges = (a: Ranges, b: Ranges): boolean => JSON.stringify(a) === JSON.stringify(b);

function shapeOf(left: Side, text: string, right: Side): Shape | null {
  const oneLine = left === 'one line' || right === 'one line';
  // `^.*x` and `x.*$` forbid a line break only on one side of the text, so no shape is equivalent. The exception is an empty
  // text, which can match anywhere.
  if (oneLine && (left === 'anything' || right === 'anything')) {
    return text === '' ? { kind: 'contains', text, oneLine: false } : null;
  }
  const kind = left === 'nothing' ? (right === 'nothing' ? 'exact' : 'prefix') : right === 'nothing' ? 'suffix' : 'contains';
  return { kind, text, oneLine };
}

/** Returns every text that the node matches, if there are few and they consist of printable characters. */
function language(node: Node): string[] | null {
  switch (node.kind) {
    case 'chars':
      return characters(node.ranges);
    case 'assert':
      return null;
    case 'concat':
      return node.items.reduce<string[] | null>((heads, item) => product(heads, () => language(item)), ['']);
    case 'alternate': {
      const parts = node.items.map(language);
      return parts.some((part) => part === null) ? null : few(parts.flatMap((part) => part ?? []));
    }
    case 'repeat': {
      if (node.max === null || node.max > MAX_TEXTS) return null;
      let power: string[] | null = [''];
      let all: string[] | null = node.min === 0 ? [''] : [];
      for (let times = 1; times <= node.max && all !== null; times++) {
        power = product(power, () => language(node.item));
        if (power === null) return null;
        if (times >= node.min) all = few([...all, ...power]);
      }
      return all;
    }
  }
}

function product(heads: readonly string[] | null, tails: () => string[] | null): string[] | null {
  if (heads === null) return null;
  const all = tails();
  if (all === null || heads.length * all.length > MAX_TEXTS) return null;
  const [only] = all;
  if (all.length === 1 && only !== undefined) return heads.map((head) => head + only);
  return few(heads.flatMap((head) => all.map((tail) => head + tail)));
}

const few = (texts: string[]): string[] | null => {
  const distinct = [...new Set(texts)];
  return distinct.length > MAX_TEXTS ? null : distinct;
};

function characters(ranges: Ranges): string[] | null {
  const [first] = ranges;
  if (ranges.length === 1 && first !== undefined && first[0] === first[1]) {
    return isPrintable(first[0]) ? [String.fromCodePoint(first[0])] : null;
  }
  const size = ranges.reduce((sum, [low, high]) => sum + high - low + 1, 0);
  if (size > MAX_TEXTS) return null;
  const codes = ranges.flatMap(([low, high]) => Array.from({ length: high - low + 1 }, (_, i) => low + i));
  return codes.every(isPrintable) ? codes.map((code) => String.fromCodePoint(code)) : null;
}

const isPrintable = (code: number): boolean =>
  code >= 0x20 && !(code >= 0x7f && code <= 0x9f) && !(code >= 0xd800 && code <= 0xdfff);
