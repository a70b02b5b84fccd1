/**
 * Computes how much RE2 does while it reads a name. RE2 reads a name with a deterministic automaton and makes its states when a name needs
 * them. Most patterns have few states. Some, such as `a[ab]{50}c`, have more than memory can hold: RE2 then makes a new state for each
 * character, again and again, and one such pattern takes half a second for one name. The cost of a pattern (re2.ts) does not show this.
 */
import { byteRanges, type Ranges } from './characters.ts';
import type { Node } from './re2.ts';

/** The most work that one pattern may need. So much takes a few milliseconds, here and in RE2. */
const MAX_WORK = 200_000;

/** An instruction of Thompson's automaton. `next` and `other` are positions. */
type Instruction =
  | { readonly kind: 'chars'; readonly set: number; readonly work: number; readonly next: number }
  | { readonly kind: 'split'; next: number; readonly other: number }
  | { readonly kind: 'start' | 'condition'; readonly next: number }
  | { readonly kind: 'match' };

/**
 * Returns the number of instructions that RE2 visits to make all states of the pattern's automaton. null: more than `MAX_WORK`, so the states
 * are probably without end.
 */
export function stateWork(tree: Node): number | null {
  const { program, sets, first } = assemble(tree);
  const classes = classesOf(sets);
  const marks = new Uint32Array(program.length);
  let mark = 0;
  let work = 0;

  /** The instructions of a state that read characters. null: the pattern has matched, and RE2 stops. */
  function close(seeds: readonly number[], atStart: boolean): number[] | null {
    mark++;
    const reading: number[] = [];
    const conditional: number[] = [];
    const visit = (from: readonly number[], sure: boolean): boolean => {
      const stack = [...from];
      for (let at = stack.pop(); at !== undefined; at = stack.pop()) {
        const instruction = program[at];
        if (instruction === undefined || marks[at] === mark) continue;
        marks[at] = mark;
        work++;
        if (instruction.kind === 'match') {
          if (sure) return true;
        } else if (instruction.kind === 'chars') {
          reading.push(at);
          work += instruction.work;
        } else if (instruction.kind === 'split') stack.push(instruction.other, instruction.next);
        else if (instruction.kind === 'condition') conditional.push(instruction.next);
        else if (atStart) stack.push(instruction.next);
      }
      return false;
    };
    if (visit(seeds, true)) return null;
    // What follows a condition counts as if the condition held. Only a match does not: it would end the reading.
    while (conditional.length > 0) visit(conditional.splice(0), false);
    return reading.sort((a, b) => a - b);
  }

  const known = new Set<string>();
  const open: number[][] = [];
  const reach = (state: number[] | null): void => {
    if (state === null) return;
    const key = state.join();
    if (known.has(key)) return;
    known.add(key);
    open.push(state);
  };
  reach(close([first], true));
  for (let state = open.pop(); state !== undefined; state = open.pop()) {
    for (const members of classes) {
      if (work > MAX_WORK) return null;
      work += state.length;
      // The pattern can begin at every character.
      const seeds = [first];
      for (const at of state) {
        const instruction = program[at];
        if (instruction?.kind === 'chars' && members[instruction.set] === true) seeds.push(instruction.next);
      }
      reach(close(seeds, false));
    }
  }
  return work;
}

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
        return add({ kind: node.at === 'text_start' ? 'start' : 'condition', next });
      case 'concat':
        return node.items.reduceRight((after, item) => put(item, after), next);
      case 'alternate':
        return putAlternatives(
          node.items.map((item) => (item.kind === 'concat' ? item.items : [item])),
          next,
        );
      case 'repeat':
        return putRepeat(node, next);
    }
  }
  /** Like RE2, puts a character only once with which alternatives that follow each other begin. */
  function putAlternatives(branches: readonly (readonly Node[])[], next: number): number {
    const groups: (readonly Node[])[][] = [];
    for (const branch of branches) {
      const group = groups.at(-1);
      if (group?.[0] !== undefined && sameHead(group[0], branch)) group.push(branch);
      else groups.push([branch]);
    }
    const starts = groups.map((group) => {
      const [[head, ...rest] = []] = group;
      if (head === undefined || group.length === 1) return put({ kind: 'concat', items: group[0] ?? [] }, next);
      return put(head, putAlternatives([rest, ...group.slice(1).map((branch) => branch.slice(1))], next));
    });
    return starts.reduceRight((other, one) => add({ kind: 'split', next: one, other }));
  }
  function putRepeat({ item, min, max }: Extract<Node, { kind: 'repeat' }>, next: number): number {
    let at = next;
    if (max === null) {
      const loop: Extract<Instruction, { kind: 'split' }> = { kind: 'split', next: 0, other: next };
      at = add(loop);
      loop.next = put(item, at);
    } else for (let times = min; times < max; times++) at = add({ kind: 'split', next: put(item, at), other: next });
    for (let times = 0; times < min; times++) at = put(item, at);
    return at;
  }
  return { first: put(tree, 0), program, sets };
}

const sameHead = ([a]: readonly Node[], [b]: readonly Node[]): boolean =>
  a?.kind === 'chars' && b?.kind === 'chars' && a.ranges.join() === b.ranges.join();

/** For each class of characters that the pattern treats the same: which sets contain them. */
function classesOf(sets: readonly Ranges[]): boolean[][] {
  const edges = new Set([0]);
  for (const ranges of sets) for (const [low, high] of ranges) edges.add(low).add(high + 1);
  const classes = new Map<string, boolean[]>();
  for (const code of edges) {
    const members = sets.map((ranges) => ranges.some(([low, high]) => low <= code && code <= high));
    classes.set(members.join(), members);
  }
  return [...classes.values()];
}
