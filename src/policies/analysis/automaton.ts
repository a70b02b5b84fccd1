/**
 * Names as a regular language. Each pattern becomes an automaton, whose states are computed when they are first reached. Names
 * contain no control characters (names.ts), so the ends of lines are the ends of the name.
 */
import { type Ranges, WORD } from '../../engine/compile/characters.ts';
import type { Node } from '../../engine/compile/re2.ts';

/** The state from which no continuation is accepted. */
export const NOTHING = -1;
/** The state from which every continuation is accepted. */
export const EVERYTHING = -2;
const UNKNOWN = -3;
export type State = number;

export interface Automaton {
  /** Ascending code points. The automaton treats all characters from one to the next alike. */
  readonly cuts: readonly number[];
  /** The number of the class of characters that the automaton treats like this one. */
  kindOf(code: number): number;
  readonly start: State;
  /** Throws `TooLarge`, as `accepts` does. */
  next(state: State, kind: number): State;
  accepts(state: State): boolean;
}

export interface PatternAutomaton extends Automaton {
  /** Tells whether the automaton accepts the name, even if its memory is full. */
  fits(name: string): boolean;
}

/** The question would exceed its budget. */
export class TooLarge extends Error {}

/** The number of steps that are left for the questions that share this budget. */
export interface Budget {
  left: number;
}

export function spend(budget: Budget, steps: number): void {
  budget.left -= steps;
  if (budget.left < 0) throw new TooLarge();
}

type Instruction =
  | { readonly kind: 'char'; readonly set: number; readonly next: number }
  | { readonly kind: 'fork'; next: readonly number[] }
  | { readonly kind: 'assert'; readonly at: Assertion; readonly next: number }
  | { readonly kind: 'match' };
type Assertion = Extract<Node, { kind: 'assert' }>['at'];

interface Program {
  readonly code: readonly Instruction[];
  readonly sets: readonly Ranges[];
  readonly entry: number;
  readonly looksAtWords: boolean;
}

function compileProgram(tree: Node): Program {
  const code: Instruction[] = [{ kind: 'match' }];
  const sets = new Map<string, { readonly index: number; readonly ranges: Ranges }>();
  const asserted = new Set<Assertion>();
  const add = (instruction: Instruction): number => code.push(instruction) - 1;
  function setOf(ranges: Ranges): number {
    const key = ranges.join(';');
    const known = sets.get(key) ?? { index: sets.size, ranges };
    sets.set(key, known);
    return known.index;
  }
  /** Returns the instruction that matches the node and continues at `next`. */
  function build(node: Node, next: number): number {
    switch (node.kind) {
      case 'chars':
        return add({ kind: 'char', set: setOf(node.ranges), next });
      case 'assert':
        asserted.add(node.at);
        return add({ kind: 'assert', at: node.at, next });
      case 'concat':
        return node.items.reduceRight((then, item) => build(item, then), next);
      case 'alternate':
        return add({ kind: 'fork', next: node.items.map((item) => build(item, next)) });
      case 'repeat': {
        let entry = next;
        if (node.max === null) {
          const loop: Instruction = { kind: 'fork', next: [] };
          entry = add(loop);
          loop.next = [build(node.item, entry), next];
        } else {
          for (let times = node.min; times < node.max; times++)
            entry = add({ kind: 'fork', next: [build(node.item, entry), next] });
        }
        for (let times = 0; times < node.min; times++) entry = build(node.item, entry);
        return entry;
      }
    }
  }
  const entry = build(tree, 0);
  return {
    code,
    sets: [...sets.values()].map(({ ranges }) => ranges),
    entry,
    looksAtWords: asserted.has('word_edge'),
  };
}

/** The neighbour of a position in the name: the end of the name, a word character, or a different character. */
type Beside = 0 | 1 | 2;
const END = 0 satisfies Beside;
const IN_WORD = 1 satisfies Beside;
const OTHER = 2 satisfies Beside;

function holds(at: Assertion, before: Beside, after: Beside): boolean {
  switch (at) {
    case 'text_start':
    case 'line_start':
      return before === END;
    case 'text_end':
    case 'line_end':
      return after === END;
    case 'word_edge':
      return (before === IN_WORD) !== (after === IN_WORD);
  }
}

/** Returns an automaton of the names that match. Each stored state, except the first, is charged to every budget in `rooms`. */
export function patternAutomaton(tree: Node, rooms: readonly Budget[]): PatternAutomaton {
  const { code, sets, entry, looksAtWords } = compileProgram(tree);
  const { cuts, kinds, kindOf, has } = partition(looksAtWords ? [...sets, WORD] : sets);
  const wordKinds = looksAtWords ? has[sets.length] : undefined;
  const besideOf = (kind: number): Beside => (wordKinds?.[kind] === 1 ? IN_WORD : OTHER);

  const stamps = new Uint32Array(code.length);
  let stamp = 0;
  /** Returns the `char` instructions that are reachable without consuming a character; null: the pattern has matched. */
  function reach(from: readonly number[], before: Beside, after: Beside): number[] | null {
    stamp++;
    const found: number[] = [];
    const open = [...from, entry];
    for (let at = open.pop(); at !== undefined; at = open.pop()) {
      const instruction = code[at];
      if (instruction === undefined || stamps[at] === stamp) continue;
      stamps[at] = stamp;
      switch (instruction.kind) {
        case 'match':
          return null;
        case 'char':
          found.push(at);
          break;
        case 'fork':
          open.push(...instruction.next);
          break;
        case 'assert':
          if (holds(instruction.at, before, after)) open.push(instruction.next);
      }
    }
    return found;
  }

  /** Whether a match can begin after the first character. */
  const beginsLater = ([IN_WORD, OTHER] as const).some((before) =>
    ([END, IN_WORD, OTHER] as const).some((after) => reach([], before, after)?.length !== 0),
  );

  interface NameState {
    /** The pending instructions, without those reachable without consuming a character. */
    readonly due: readonly number[];
    readonly before: Beside;
    readonly next: Int32Array;
    accepts: boolean | undefined;
  }
  const nameStates: NameState[] = [];
  const known = new Map<string, State>();
  function stateOf(due: readonly number[], before: Beside): State {
    if (due.length === 0 && before !== END && !beginsLater) return NOTHING;
    const key = `${before},${due.join()}`;
    let state = known.get(key);
    if (state === undefined) {
      // A match before a character that is not a word character is also a match at the end.
      const sides = looksAtWords ? ([IN_WORD, OTHER] as const) : ([OTHER] as const);
      if (sides.every((after) => reach(due, before, after) === null)) state = EVERYTHING;
      else {
        if (nameStates.length > 0) for (const room of rooms) spend(room, due.length + kinds);
        state = nameStates.push({ due, before, next: new Int32Array(kinds).fill(UNKNOWN), accepts: undefined }) - 1;
      }
      known.set(key, state);
    }
    return state;
  }
  /** Returns the instructions pending after a character of this kind; null: the pattern has matched. */
  function dueAfter(due: readonly number[], before: Beside, kind: number): number[] | null {
    const reached = reach(due, before, besideOf(kind));
    if (reached === null) return null;
    const then = new Set<number>();
    for (const at of reached) {
      const instruction = code[at];
      if (instruction?.kind === 'char' && has[instruction.set]?.[kind] === 1) then.add(instruction.next);
    }
    return [...then].sort((a, b) => a - b);
  }
  function follow({ due, before }: NameState, kind: number): State {
    const then = dueAfter(due, before, kind);
    return then === null ? EVERYTHING : stateOf(then, looksAtWords ? besideOf(kind) : OTHER);
  }
  function fitsUnremembered(name: string): boolean {
    let due: readonly number[] = [];
    let before: Beside = END;
    for (const character of name) {
      const kind = kindOf(character.codePointAt(0) ?? 0);
      const then = dueAfter(due, before, kind);
      if (then === null) return true;
      due = then;
      before = besideOf(kind);
    }
    return reach(due, before, END) === null;
  }

  const automaton: Automaton = {
    cuts,
    kindOf,
    start: stateOf([], END),
    next(state, kind) {
      const nameState = nameStates[state];
      if (nameState === undefined) return state;
      let then = nameState.next[kind] ?? UNKNOWN;
      if (then === UNKNOWN) {
        then = follow(nameState, kind);
        nameState.next[kind] = then;
      }
      return then;
    },
    accepts(state) {
      const nameState = nameStates[state];
      if (nameState === undefined) return state === EVERYTHING;
      nameState.accepts ??= reach(nameState.due, nameState.before, END) === null;
      return nameState.accepts;
    },
  };
  return {
    ...automaton,
    fits(name) {
      try {
        return accepts(automaton, name);
      } catch (error) {
        if (error instanceof TooLarge) return fitsUnremembered(name);
        throw error;
      }
    },
  };
}

/** Returns an automaton that accepts these texts and nothing else. */
export function textsAutomaton(texts: Iterable<string>): Automaton {
  interface Branch {
    readonly next: Map<number, State>;
    ends: boolean;
  }
  const branches: Branch[] = [{ next: new Map(), ends: false }];
  const codes = new Set<number>();
  for (const text of texts) {
    let at: State = 0;
    for (const character of text) {
      const code = character.codePointAt(0) ?? 0;
      codes.add(code);
      const then: State = branches[at]?.next.get(code) ?? branches.push({ next: new Map(), ends: false }) - 1;
      branches[at]?.next.set(code, then);
      at = then;
    }
    const end = branches[at];
    if (end !== undefined) end.ends = true;
  }
  return {
    cuts: [0, ...[...codes].flatMap((code) => [code, code + 1])].sort((a, b) => a - b),
    // No text contains the character, so it leads nowhere.
    kindOf: (code) => (codes.has(code) ? code : NOTHING),
    start: 0,
    next: (state, kind) => branches[state]?.next.get(kind) ?? NOTHING,
    accepts: (state) => branches[state]?.ends === true,
  };
}

/** Divides the characters into kinds: no set distinguishes two characters of the same kind. */
function partition(sets: readonly Ranges[]): {
  cuts: number[];
  kinds: number;
  kindOf: (code: number) => number;
  has: Uint8Array[];
} {
  const cuts = [...new Set([0, ...sets.flatMap((ranges) => ranges.flatMap(([low, high]) => [low, high + 1]))])].sort(
    (a, b) => a - b,
  );
  const indexOf = new Map(cuts.map((cut, i) => [cut, i]));
  const members = cuts.map(() => '');
  for (const [set, ranges] of sets.entries()) {
    for (const [low, high] of ranges) {
      for (let i = indexOf.get(low) ?? 0; i < (indexOf.get(high + 1) ?? 0); i++) members[i] += `${set},`;
    }
  }
  const kindByMembers = new Map<string, number>();
  const kindByCut = members.map((key) => {
    const kind = kindByMembers.get(key) ?? kindByMembers.size;
    kindByMembers.set(key, kind);
    return kind;
  });
  const has = sets.map(() => new Uint8Array(kindByMembers.size));
  for (const [key, kind] of kindByMembers) {
    for (const set of key.split(',')) if (set !== '') has[Number(set)]?.fill(1, kind, kind + 1);
  }
  const search = (code: number): number => kindByCut[lastAtMost(cuts, code)] ?? 0;
  const ascii = Array.from({ length: 128 }, (_, code) => search(code));
  return { cuts, kinds: kindByMembers.size, kindOf: (code) => ascii[code] ?? search(code), has };
}

function lastAtMost(ascending: readonly number[], value: number): number {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((ascending[middle] ?? 0) <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

export function accepts(automaton: Automaton, name: string): boolean {
  let state = automaton.start;
  for (const character of name) {
    if (state < 0) break;
    state = automaton.next(state, automaton.kindOf(character.codePointAt(0) ?? 0));
  }
  return automaton.accepts(state) || state === EVERYTHING;
}

/** The set of possible names. */
export interface Domain {
  readonly characters: Ranges;
  /** The size of a character in the unit of `limit`. It never decreases with rising code points. */
  readonly sizeOf: (code: number) => number;
  /** The maximum size of a name. */
  readonly limit: number;
}

/** One character for all those that the automata treat alike, and its kind in each automaton. */
interface Letter {
  readonly code: number;
  readonly size: number;
  readonly kinds: readonly number[];
}

/** The characters that examples use first, so that they look like names. */
const PREFERRED = [...'xabcdefghijklmnopqrstuvwyz0123456789_-ABCDEFGHIJKLMNOPQRSTUVWXYZ./:'].map((letter) =>
  letter.charCodeAt(0),
);

export function alphabet(automata: readonly Automaton[], { characters, sizeOf }: Domain): Letter[] {
  const cuts = [...new Set(automata.flatMap(({ cuts }) => cuts))];
  const letters = new Map<string, Letter>();
  for (const [first, last] of characters) {
    const from = [first, ...cuts.filter((cut) => cut > first && cut <= last).sort((a, b) => a - b)];
    for (const [i, low] of from.entries()) {
      const high = (from[i + 1] ?? last + 1) - 1;
      const code = PREFERRED.find((letter) => letter >= low && letter <= high) ?? low;
      const kinds = automata.map((automaton) => automaton.kindOf(low));
      const key = kinds.join();
      const known = letters.get(key);
      const better = known === undefined || (known.size >= sizeOf(code) && rankOf(code) < rankOf(known.code));
      if (better) letters.set(key, { code, size: sizeOf(code), kinds });
    }
  }
  return [...letters.values()].sort((a, b) => rankOf(a.code) - rankOf(b.code));
}

const RANKS = new Map(PREFERRED.map((code, i) => [code, i]));
const rankOf = (code: number): number => RANKS.get(code) ?? PREFERRED.length + code;

/** The number of steps after which other work may run. */
const PAUSE = 100;

/**
 * Returns a short name of the domain that every automaton in `include` accepts and none in `exclude`; null: there is none. Pauses
 * between steps; throws `TooLarge`.
 */
export function* shortestName(
  include: readonly Automaton[],
  exclude: readonly Automaton[],
  domain: Domain,
  budget: Budget,
  begin = '',
): Generator<undefined, string | null> {
  const automata = [...include, ...exclude];
  const letters = alphabet(automata, domain);
  interface Node {
    readonly states: readonly State[];
    readonly size: number;
    readonly code: number;
    readonly before: Node | null;
  }
  /** null: no name with this beginning can be a result. */
  function step(states: readonly State[], kinds: readonly number[]): State[] | null {
    const then: State[] = [];
    for (let i = 0; i < automata.length; i++) {
      const state = states[i] ?? NOTHING;
      const next = state < 0 ? state : (automata[i]?.next(state, kinds[i] ?? 0) ?? NOTHING);
      if (next === (i < include.length ? NOTHING : EVERYTHING)) return null;
      then.push(next);
    }
    return then;
  }
  const isFound = (states: readonly State[]): boolean =>
    states.every((state, i) => (state === EVERYTHING || (automata[i]?.accepts(state) ?? false)) === i < include.length);

  let states: State[] | null = automata.map(({ start }) => start);
  if (states.some((state, i) => state === (i < include.length ? NOTHING : EVERYTHING))) return null;
  for (const character of begin) {
    const code = character.codePointAt(0) ?? 0;
    const kinds = automata.map((automaton) => automaton.kindOf(code));
    states = states && step(states, kinds);
  }
  if (states === null) return null;

  const least = new Map<string, number>([[states.join(), 0]]);
  const bySize: Node[][] = [[{ states, size: 0, code: -1, before: null }]];
  for (let size = 0; size < Math.min(bySize.length, domain.limit); size++) {
    for (const node of bySize[size] ?? []) {
      if (least.get(node.states.join()) !== size) continue;
      for (const { code, size: more, kinds } of letters) {
        const then = size + more > domain.limit ? null : step(node.states, kinds);
        if (then === null) continue;
        const reached: Node = { states: then, size: size + more, code, before: node };
        if (isFound(then)) return begin + textOf(reached);
        const key = then.join();
        if ((least.get(key) ?? Number.POSITIVE_INFINITY) <= reached.size) continue;
        spend(budget, 1);
        if (budget.left % PAUSE === 0) yield;
        least.set(key, reached.size);
        while (bySize.length <= reached.size) bySize.push([]);
        bySize[reached.size]?.push(reached);
      }
    }
  }
  return null;

  function textOf(node: Node): string {
    const codes: number[] = [];
    for (let at: Node | null = node; at !== null && at.before !== null; at = at.before) codes.push(at.code);
    return String.fromCodePoint(...codes.reverse());
  }
}

/** Tells whether every beginning can be completed to an accepted name, without a limit on its length. Throws `TooLarge`. */
export function acceptsAnyBeginning(automaton: Automaton, domain: Domain, budget: Budget): boolean {
  const letters = alphabet([automaton], domain);
  const before = new Map<State, Set<State>>([[automaton.start, new Set()]]);
  if (automaton.start < 0) return automaton.start === EVERYTHING;
  const open = [automaton.start];
  for (let state = open.pop(); state !== undefined; state = open.pop()) {
    for (const { kinds } of letters) {
      const then = automaton.next(state, kinds[0] ?? 0);
      if (then === NOTHING) return false;
      const known = before.get(then);
      if (known !== undefined) {
        known.add(state);
        continue;
      }
      spend(budget, 1);
      before.set(then, new Set([state]));
      if (then >= 0) open.push(then);
    }
  }
  const good = new Set<State>();
  const accepted = [...before.keys()].filter((state) => state === EVERYTHING || automaton.accepts(state));
  for (let state = accepted.pop(); state !== undefined; state = accepted.pop()) {
    if (good.has(state)) continue;
    good.add(state);
    accepted.push(...(before.get(state) ?? []));
  }
  return good.size === before.size;
}
