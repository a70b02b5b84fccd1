/**
 * Computes how much RE2 does while it reads a name. RE2 reads a name with a deterministic automaton and makes its states when a name needs
 * them. Most patterns have few states. Some, such as `a[ab]{50}c`, have more than memory can hold: RE2 then makes a new state for each
 * character, again and again, and one such pattern takes half a second for one name. The cost of a pattern (re2.ts) does not show this.
 *
 * OPA's regex.match calls RE2::PartialMatch without submatches. RE2 reads the name in one of four ways (RE2::Match and Prog::SearchDFA), and each
 * has other states for the same pattern. So the states are made here exactly as DFA::RunStateOnByte makes them, but by characters instead of bytes.
 */
import { atOnce } from '../../base/turns/slices.ts';
import { byteRanges, type Ranges, WORD } from './characters.ts';
import type { Node } from './re2.ts';

/** The most work that one pattern may need. So much takes a few milliseconds in RE2. It takes up to 10 here, for each way to read. */
export const MAX_WORK = 200_000;
/** Takes about a millisecond at most. */
const WORK_AT_ONCE = 5_000;

/** An instruction of Thompson's automaton. `next` and `other` are positions. RE2 prefers `next`. */
type Instruction =
  | { readonly kind: 'chars'; readonly set: number; readonly work: number; readonly next: number }
  | { readonly kind: 'split'; next: number; other: number }
  | { readonly kind: 'condition'; readonly flag: number; readonly next: number }
  | { readonly kind: 'match' };

/** What holds between two characters, and whether the last character was one of a word. */
const FLAGS = { text_start: 1, line_start: 2, text_end: 4, line_end: 8, word_edge: 16 };
const AFTER_WORD = 32;

/** How RE2 reads a name. */
interface Reading {
  /** From the end to the beginning. */
  readonly backwards: boolean;
  /** The match begins where the reading begins. Otherwise, it can begin at every character. */
  readonly anchored: boolean;
  /**
   * RE2 stops at the first match; it looks for the match that it prefers, so it goes on with what it prefers to the first match; or the match must
   * be at the end of the name.
   */
  readonly until: 'any' | 'preferred' | 'end';
}

const SEARCH: Reading = { backwards: false, anchored: false, until: 'any' };
const AT_START: Reading = { backwards: false, anchored: true, until: 'preferred' };
const AT_END: Reading = { backwards: true, anchored: true, until: 'any' };
const WHOLE: Reading = { backwards: false, anchored: true, until: 'end' };

/**
 * Returns the number of instructions that RE2 visits to make all states of the pattern's automaton. null: more than `MAX_WORK`, so the states
 * are probably without end. `tree`: of this pattern.
 */
export const stateWork = (tree: Node, pattern: string): number | null => atOnce(stateWorkInSteps(tree, pattern));

/** Like `stateWork`, but pauses so that the caller can let other work run. */
export function* stateWorkInSteps(tree: Node, pattern: string): Generator<undefined, number | null> {
  const factored = factor(tree);
  let most = 0;
  for (const reading of readingsOf(factored, pattern)) {
    const work = yield* workOfReading(reading.backwards ? reverse(factored) : factored, reading);
    if (work === null) return null;
    most = Math.max(most, work);
  }
  return most;
}

/**
 * The ways in which RE2 may read a name. It looks for ^ and $ at the edges of the pattern, but not in all groups and alternatives. Only where an
 * anchor is plainly outside all groups, it is known what RE2 does.
 */
function readingsOf(tree: Node, pattern: string): Reading[] {
  const [start, end] = [canAnchor(tree, 'text_start'), canAnchor(tree, 'text_end')];
  const items = tree.kind === 'concat' ? tree.items : [];
  const surelyStart = isAssert(items[0], 'text_start') && /^(?:\^|\\A)/.test(pattern);
  const surelyEnd = isAssert(items.at(-1), 'text_end') && /(?:\$|\\z)$/.test(pattern);
  const readings: Reading[] = [];
  if (!surelyStart && !surelyEnd) readings.push(SEARCH);
  if (start && !surelyEnd) readings.push(AT_START);
  if (end && !surelyStart) readings.push(AT_END);
  if (start && end) readings.push(WHOLE);
  return readings;
}

const isAssert = (node: Node | undefined, at: 'text_start' | 'text_end'): boolean => node?.kind === 'assert' && node.at === at;

/** Whether the anchor may be at its edge of the pattern, so that RE2 may find it there. */
function canAnchor(node: Node, at: 'text_start' | 'text_end'): boolean {
  if (node.kind === 'alternate') return node.items.some((item) => canAnchor(item, at));
  if (node.kind === 'repeat') return canAnchor(node.item, at);
  if (node.kind !== 'concat') return isAssert(node, at);
  for (const item of at === 'text_start' ? node.items : [...node.items].reverse()) {
    if (canAnchor(item, at)) return true;
    if (!canBeEmpty(item)) return false;
  }
  return false;
}

function canBeEmpty(node: Node): boolean {
  if (node.kind === 'alternate') return node.items.some(canBeEmpty);
  if (node.kind === 'repeat') return node.min === 0 || canBeEmpty(node.item);
  return node.kind === 'concat' ? node.items.every(canBeEmpty) : node.kind === 'assert';
}

/** A state of the automaton. The instructions are in groups with `MARK` between them. */
interface State {
  readonly members: readonly number[];
  readonly conditional: boolean;
  /** 0 if there are no conditions. */
  readonly flags: number;
}

/** So few instructions are sorted at once. */
const FEW = 16;

/** Like RE2, keeps apart the instructions by the character at which the match would begin. */
const MARK = -1;

function* workOfReading(tree: Node, { anchored, until }: Reading): Generator<undefined, number | null> {
  const { program, sets, first } = assemble(tree);
  const classes = classesOf(
    sets,
    program.some(({ kind }) => kind === 'condition'),
  );
  const marks = new Uint32Array(program.length);
  let mark = 0;
  let work = 0;
  let pauseAt = 0;

  /** The instructions to which the seeds lead if the flags hold. null: the pattern has matched, and RE2 stops. */
  function close(seeds: readonly number[], flags: number): State | null {
    mark++;
    let group: number[] = [];
    const members: number[] = [];
    let conditional = false;
    const endGroup = (): void => {
      if (group.length === 0) return;
      // Only the preferred match needs the order.
      if (until !== 'preferred') {
        group.sort((a, b) => a - b);
        // RE2 sorts them, too, which takes most of its time if there are many.
        if (group.length > FEW) work += Math.ceil(2 * group.length * Math.log2(group.length));
      }
      if (members.length > 0) members.push(MARK);
      members.push(...group);
      group = [];
    };
    const stack: number[] = [];
    for (const seed of seeds) {
      if (seed === MARK) endGroup();
      else stack.push(seed);
      for (let at = stack.pop(); at !== undefined; at = stack.pop()) {
        const instruction = program[at];
        if (instruction === undefined || marks[at] === mark) continue;
        marks[at] = mark;
        work++;
        if (instruction.kind === 'split') {
          stack.push(instruction.other, instruction.next);
          continue;
        }
        group.push(at);
        if (instruction.kind === 'chars') work += instruction.work;
        else if (instruction.kind === 'condition') {
          conditional = true;
          if ((flags & instruction.flag) !== 0) stack.push(instruction.next);
        } else if (until === 'any') return null;
        else if (until === 'preferred') {
          endGroup();
          return { members, conditional, flags: conditional ? flags : 0 };
        }
      }
    }
    endGroup();
    return { members, conditional, flags: conditional ? flags : 0 };
  }

  /** The state after a character of the class. */
  function follow(state: State, { members: inSets, newline, word }: CharacterClass): State | null {
    let flags = state.flags & ~AFTER_WORD;
    if (newline) flags |= FLAGS.line_end;
    if (word !== ((state.flags & AFTER_WORD) !== 0)) flags |= FLAGS.word_edge;
    const before = state.conditional ? close(state.members, flags) : state;
    if (before === null) return null;
    const seeds: number[] = [];
    for (const at of before.members) {
      const instruction = program[at];
      if (instruction === undefined) {
        seeds.push(MARK);
        continue;
      }
      work++;
      if (instruction.kind === 'chars' && inSets[instruction.set] === true) seeds.push(instruction.next);
    }
    if (!anchored) seeds.push(MARK, first);
    return close(seeds, (newline ? FLAGS.line_start : 0) | (word ? AFTER_WORD : 0));
  }

  const known = new Set<string>();
  const open: State[] = [];
  const reach = (state: State | null): void => {
    if (state === null) return;
    // Much faster than `join`. The cost of a pattern limits the positions to some thousands.
    const key = String.fromCharCode(state.flags, ...state.members);
    if (known.has(key)) return;
    known.add(key);
    open.push(state);
  };
  reach(close([first], FLAGS.text_start | FLAGS.line_start));
  for (let state = open.pop(); state !== undefined; state = open.pop()) {
    for (const one of classes) {
      if (work > MAX_WORK) return null;
      if (work >= pauseAt) {
        yield;
        pauseAt = work + WORK_AT_ONCE;
      }
      reach(follow(state, one));
    }
  }
  return work;
}

/** Like RE2, reads a character only once with which alternatives that follow each other begin. */
function factor(node: Node): Node {
  switch (node.kind) {
    case 'chars':
    case 'assert':
      return node;
    case 'concat':
      return { kind: 'concat', items: node.items.map(factor) };
    case 'repeat':
      return { ...node, item: factor(node.item) };
    case 'alternate':
      return factorBranches(node.items.map((item) => (item.kind === 'concat' ? item.items : [item])));
  }
}

function factorBranches(branches: readonly (readonly Node[])[]): Node {
  const groups: (readonly Node[])[][] = [];
  for (const branch of branches) {
    const group = groups.at(-1);
    if (group?.[0] !== undefined && sameHead(group[0], branch)) group.push(branch);
    else groups.push([branch]);
  }
  const items = groups.map((group): Node => {
    const [[head, ...rest] = []] = group;
    if (head === undefined || group.length === 1) return factor({ kind: 'concat', items: group[0] ?? [] });
    return { kind: 'concat', items: [head, factorBranches([rest, ...group.slice(1).map((branch) => branch.slice(1))])] };
  });
  const [only] = items;
  return items.length === 1 && only !== undefined ? only : { kind: 'alternate', items };
}

const sameHead = ([a]: readonly Node[], [b]: readonly Node[]): boolean =>
  a?.kind === 'chars' && b?.kind === 'chars' && a.ranges.join() === b.ranges.join();

/** The pattern for the reversed name. */
function reverse(node: Node): Node {
  switch (node.kind) {
    case 'chars':
      return node;
    case 'assert':
      return { kind: 'assert', at: OPPOSITES[node.at] };
    case 'concat':
      return { kind: 'concat', items: node.items.map(reverse).reverse() };
    case 'alternate':
      return { kind: 'alternate', items: node.items.map(reverse) };
    case 'repeat':
      return { ...node, item: reverse(node.item) };
  }
}

const OPPOSITES = {
  text_start: 'text_end',
  text_end: 'text_start',
  line_start: 'line_end',
  line_end: 'line_start',
  word_edge: 'word_edge',
} as const;

function assemble(tree: Node): { program: readonly Instruction[]; sets: readonly Ranges[]; first: number } {
  const program: Instruction[] = [{ kind: 'match' }];
  const sets: Ranges[] = [];
  const numbers = new Map<string, number>();
  const add = (instruction: Instruction): number => program.push(instruction) - 1;
  const setOf = (ranges: Ranges): number => {
    const key = ranges.join();
    const number = numbers.get(key) ?? sets.push(ranges) - 1;
    numbers.set(key, number);
    return number;
  };
  /** The position of the instructions for the node. They end at `next`. */
  function put(node: Node, next: number): number {
    switch (node.kind) {
      case 'chars': {
        const bytes = node.ranges.reduce((sum, [low, high]) => sum + byteRanges(low, high), 0);
        return add({ kind: 'chars', set: setOf(node.ranges), work: bytes >> 2, next });
      }
      case 'assert':
        return add({ kind: 'condition', flag: FLAGS[node.at], next });
      case 'concat':
        return node.items.reduceRight((after, item) => put(item, after), next);
      case 'alternate':
        return node.items.map((item) => put(item, next)).reduceRight((other, one) => add({ kind: 'split', next: one, other }));
      case 'repeat':
        return putRepeat(node, next);
    }
  }
  function putRepeat({ item, min, max, lazy }: Extract<Node, { kind: 'repeat' }>, next: number): number {
    const choose = (more: number): number =>
      add({ kind: 'split', ...(lazy === true ? { next, other: more } : { next: more, other: next }) });
    let at = next;
    if (max === null) {
      const loop: Extract<Instruction, { kind: 'split' }> = { kind: 'split', next, other: next };
      at = add(loop);
      const again = put(item, at);
      if (lazy === true) loop.other = again;
      else loop.next = again;
      // x{2,} is xx+, and x+ begins with the x of the loop.
      if (min > 0) at = again;
    } else for (let times = min; times < max; times++) at = choose(put(item, at));
    for (let times = max === null ? 1 : 0; times < min; times++) at = put(item, at);
    return at;
  }
  const first = put(tree, 0);
  return { first, program, sets };
}

interface CharacterClass {
  /** Which sets contain the characters. */
  readonly members: readonly boolean[];
  readonly newline: boolean;
  readonly word: boolean;
}

const NEWLINE: Ranges = [[10, 10]];

/** The classes of characters that the pattern treats the same. `conditional`: it also asks for lines or words. */
function classesOf(sets: readonly Ranges[], conditional: boolean): CharacterClass[] {
  const all = conditional ? [...sets, NEWLINE, WORD] : sets;
  const edges = new Set([0]);
  for (const ranges of all) for (const [low, high] of ranges) edges.add(low).add(high + 1);
  const classes = new Map<string, CharacterClass>();
  for (const code of edges) {
    const has = (ranges: Ranges): boolean => ranges.some(([low, high]) => low <= code && code <= high);
    const members = sets.map(has);
    const [newline, word] = [conditional && has(NEWLINE), conditional && has(WORD)];
    classes.set([...members, newline, word].join(), { members, newline, word });
  }
  return [...classes.values()];
}
