/** Keys that share a slot in OPA's tables. */
import test from 'ava';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { collisionProblems, comparisonsOf, hashOf } from '../../../src/engine/compile/collisions.ts';
import type { Policy } from '../../../src/engine/compile/policy.ts';
import { checkPolicySet, problemsOfChange } from '../../../src/engine/compile/set-limits.ts';
import type { OwnedPolicy } from '../../../src/engine/compile/shares.ts';
import { policyWith } from '../support.ts';

/** So many slots have 180 to 358 keys. */
const SLOTS = 512;
const numbered = (count: number): string[] => Array.from({ length: count }, (_, n) => `tool_${n}`);
const colliding = (count: number): string[] =>
  numbered(count * SLOTS * 2)
    .filter((key) => hashOf(key) % SLOTS === 7)
    .slice(0, count);

const everyone = [{ id: 's', subject_type: 'everyone' as const, subject_value: null }];
const inPatterns = (
  names: readonly string[],
  patternOf: (some: readonly string[]) => string,
  more: object = {},
): OwnedPolicy[] => {
  const policies: OwnedPolicy[] = [];
  for (let at = 0; at < names.length; at += 25) {
    const resource_pattern = patternOf(names.slice(at, at + 25));
    policies.push(policyWith({ id: `p${at}`, resource_pattern, subjects: everyone, ...more }));
  }
  return policies;
};
const exact = (some: readonly string[]): string => `^(${some.join('|')})$`;
const problems = (policies: readonly Policy[]): string[] => checkPolicySet(policies).map(({ message }) => message);

test('the hash is the one of OPA: FNV-1 with 32 bits', (t) => {
  // From the tables of the authors of the hash.
  t.deepEqual([hashOf(''), hashOf('a'), hashOf('foobar')], [0x811c9dc5, 0x050c5d7e, 0x31f0b262]);
  t.is(atOnce(comparisonsOf(new Set(colliding(200)))), (200 * 199) / 2);
});

test('names that collide in the engine are refused', (t) => {
  const refused =
    /^The texts for everyone \(tool, every target\) have hashes so alike that loading them takes 19100 comparisons beyond chance, more than the limit of 10000\. Use different ones\.$/;
  const bad = colliding(200);
  for (const pattern of [
    exact,
    (some: readonly string[]) => `^(${some.join('|')})`,
    (some: readonly string[]) => `(${some.join('|')})$`,
  ])
    t.is(problems(inPatterns(numbered(2_000), pattern)).length, 0, pattern(['a', 'b']));
  t.regex(problems(inPatterns(bad, exact)).join(), refused);
  t.deepEqual(problems(inPatterns(bad, exact, { enabled: false })), []);
  t.deepEqual(problems(inPatterns(bad.slice(0, 140), exact)), []);
  const halves = [inPatterns(bad.slice(0, 100), exact), inPatterns(bad.slice(100), exact, { target_id: 'a' })];
  t.deepEqual(problems(halves.flat()), [], 'other targets have other tables');
});

test('comparisons of long texts that begin alike count more', (t) => {
  const oneEach = (names: readonly string[]) =>
    names.map((name, n) => policyWith({ id: `p${n}`, resource_pattern: `^${name}$`, subjects: everyone }));
  const begin = (kinds: number, n: number): string => `${String.fromCharCode(97 + (n % kinds))}${'a'.repeat(400)}`;
  const long = (kinds: number) =>
    Array.from({ length: 80_000 }, (_, n) => `${begin(kinds, n)}${n}`)
      .filter((key) => hashOf(key) % 256 === 7)
      .slice(0, 150);
  for (const kinds of [1, 4]) {
    const comparisons = atOnce(comparisonsOf(new Set(long(kinds))));
    t.true(comparisons > 70 * ((150 * 149) / 2 - 15 * 15), `${comparisons}`);
    t.is(problems(oneEach(long(kinds))).length, 1);
  }
  // Chance brings few into one slot.
  const ordinary = Array.from({ length: 1_000 }, (_, n) => `https://files/${'team/'.repeat(12)}tenant-${n % 71}/${n}`);
  t.deepEqual(problems(oneEach(ordinary)), []);
});

test('texts at edges, and subjects, are looked up in tables, too', (t) => {
  // Of the length that is looked up, so that the whole text is the key.
  const starts = Array.from({ length: 400_000 }, (_, n) => n.toString(36).padStart(4, '0')).filter(
    (key) => hashOf(key) % SLOTS === 7,
  );
  const prefixes = inPatterns(starts.slice(0, 200), (some) => `^(${some.join('|')})`);
  t.regex(problems(prefixes).join(), /takes 19100 comparisons/);
  const ofGroups = (groups: readonly string[]) =>
    groups.map((subject_value, n) =>
      policyWith({ id: `p${n}`, resource_pattern: null, subjects: [{ id: 's', subject_type: 'group', subject_value }] }),
    );
  t.deepEqual(problems(ofGroups(numbered(2_000))), []);
  const [first, ...more] = problems(ofGroups(colliding(200)));
  t.regex(
    first ?? '',
    /^The subjects of type group \(use, every target\) have hashes so alike that loading them takes 19100 comparisons/,
  );
  t.is(more.length, 1, 'and for the type');
});

test('a change is checked at the places that it changes', async (t) => {
  const bad = inPatterns(colliding(225), exact);
  const one = policyWith({ id: 'q', resource_pattern: '^a$', subjects: everyone, target_id: 'a' });
  const last = bad.at(-1) as Policy;
  const stored = bad.slice(0, -1);
  t.is((await problemsOfChange(bad, new Set([last.id]), async () => stored)).length, 1);
  t.deepEqual(await problemsOfChange([...bad, one], new Set([one.id]), async () => bad), []);
  t.deepEqual(await problemsOfChange(bad, new Set([last.id]), async () => bad), [], 'what adds nothing is never refused');
});

test('nobody whose own texts are ordinary is refused because of names that a different owner has chosen', async (t) => {
  // 359 keys have 1,024 slots, and 358 have 512. In the first table, half of these names are in one slot and half in a different one.
  const chosen = (slot: number) =>
    numbered(200_000)
      .filter((key) => hashOf(key) % 1_024 === slot)
      .slice(0, 106);
  const alike = [...chosen(7), ...chosen(519)];
  const others = numbered(40_000).filter((_, n) => n % 101 === 5);
  const spread = others.filter((key) => !alike.includes(key)).slice(0, 357 - alike.length);
  const inOwner = (names: readonly string[]) =>
    inPatterns(names, exact).map((policy) => ({ ...policy, managed_as: `a/${policy.id}` }));
  const full = inOwner([...alike, ...spread]);
  // The names that kept the others apart are deleted, which is never refused.
  const left = inOwner(alike);
  for (const owner of [null, 'b/own']) {
    const own = {
      ...policyWith({ id: 'own', effect: 'deny', resource_pattern: '^(drop|delete)$', subjects: everyone }),
      managed_as: owner,
    };
    t.deepEqual(problems([...full, own]), []);
    t.is(problems([...left, own]).length, 1, 'the owner who chose them');
    for (const names of [full, left]) {
      const change = async (change: Partial<Policy>, stored: readonly Policy[] = [...names, own]): Promise<number> => {
        const after = { ...own, ...change };
        return (await problemsOfChange([...names, after], new Set([after.id]), async () => stored)).length;
      };
      t.is(await change({}, names), 0, 'the first policy');
      t.is(await change({ resource_pattern: '^drop$' }), 0);
      t.is(await change({ resource_type: 'resource' }), 0);
      t.is(await change({ resource_pattern: '^other$' }), 0);
      t.is(await change({ resource_pattern: '^drop_[a-z]+$' }), 0);
    }
  }
});

test('two owners may not do together what neither may', (t) => {
  const bad = colliding(280);
  const of = (owner: string, names: string[]) =>
    inPatterns(names, exact).map((policy) => ({ ...policy, id: `${owner} ${policy.id}`, managed_as: `${owner}/x` }));
  t.deepEqual(problems(of('a', bad.slice(0, 140))), []);
  const together = problems([...of('a', bad.slice(0, 140)), ...of('b', bad.slice(140))]);
  t.is(together.length, 2);
});

test('an owner cannot hide keys that collide behind the many entries of other owners', async (t) => {
  const subjects = numbered(1_000).map((subject_value) => ({ id: subject_value, subject_type: 'group' as const, subject_value }));
  const stored = ['a', 'b'].flatMap((owner) =>
    numbered(50).map((name, n) => ({
      ...policyWith({ id: `${owner}${n}`, resource_pattern: `^${name}$`, subjects }),
      managed_as: `${owner}/${n}`,
    })),
  );
  const bad = inPatterns(colliding(200), exact).map((policy) => ({ ...policy, managed_as: `c/${policy.id}` }));
  const found = await problemsOfChange([...stored, ...bad], new Set(bad.map(({ id }) => id)), async () => stored);
  t.deepEqual(
    found.map(({ limit }) => limit.split(' ')[0]),
    ['collisions'],
  );
});

test('a set with very many keys is left to the limit of entries', (t) => {
  const subjects = numbered(1_000).map((subject_value) => ({ id: subject_value, subject_type: 'group' as const, subject_value }));
  const set = inPatterns(numbered(2_500), exact, { subjects, resource_type: 'all' });
  t.is([...collisionProblems(set, null)].length, 1);
  t.true(checkPolicySet(set).some(({ limit }) => limit.startsWith('entries')));
});
