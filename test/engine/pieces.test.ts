/** The pieces in which an instance gets its data. Each is loaded without a pause. */
import test from 'ava';
import { atOnce } from '../../src/base/turns/slices.ts';
import { hashOf } from '../../src/engine/compile/collisions.ts';
import { compile } from '../../src/engine/compile/compile.ts';
import { layOutInSteps, MAX_PATTERNS } from '../../src/engine/partition.ts';
import { policyWith } from './support.ts';

/** Returns how many groups are in each piece of tools for groups. Each group has these names. */
function groupsInPieces(names: readonly string[], end = '$'): number[] {
  const subjects = ['a', 'b', 'c', 'd'].map((subject_value) => ({
    ...{ id: subject_value, subject_type: 'group' as const, subject_value },
  }));
  const policies = Array.from({ length: names.length / 25 }, (_, n) =>
    policyWith({ id: `p${n}`, resource_pattern: `^(${names.slice(n * 25, n * 25 + 25).join('|')})${end}`, subjects }),
  );
  const { document } = compile(policies, { checkPattern: () => null });
  const pieces = [...atOnce(layOutInSteps(document, MAX_PATTERNS)).main()].filter(
    ({ path }) => path[1] === 'every' && path[2] === 'tool',
  );
  return pieces.map(({ path, value }) => (path.length > 4 ? 1 : Object.keys(JSON.parse(value)).length));
}

test('names that collide in the tables of OPA end a piece', (t) => {
  const numbered = Array.from({ length: 600_000 }, (_, n) => `tool_${n}`);
  const colliding = numbered.filter((name) => hashOf(name) % 1_024 === 7);
  t.deepEqual(groupsInPieces(numbered.slice(0, 500)), [4]);
  t.deepEqual(groupsInPieces(colliding.slice(0, 500)), [1, 1, 1, 1]);
  // Texts at edges are looked up by their first characters, if they are long. These are whole.
  const short = Array.from({ length: 36 ** 4 }, (_, n) => n.toString(36).padStart(4, '0'));
  t.deepEqual(groupsInPieces(short.slice(0, 500), ''), [4]);
  const alike = short.filter((text) => hashOf(text) % 1_024 === 7).slice(0, 500);
  t.deepEqual(groupsInPieces(alike, ''), [1, 1, 1, 1]);
});
