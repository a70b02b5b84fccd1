import test from 'ava';
import fc from 'fast-check';
import { createEngine, loadPolicyModule } from '../../../src/engine/engine.ts';
import { parsePolicyFile } from '../../../src/policies/files/yaml.ts';
import { exactPatterns } from '../../../src/policies/suggest/exact-pattern.ts';
import { fileOfProposed } from '../../../src/policies/suggest/files.ts';
import type { Proposed } from '../../../src/policies/suggest/proposal.ts';
import { policy } from '../policies.ts';

const RUNS = Number(process.env['SUGGEST_RUNS'] ?? 100) / 4;
const module = await loadPolicyModule();

/** Names that patterns, YAML or terminals could read as something else. */
const ODD = [
  ...[
    'a.b',
    '.*',
    '^a$',
    'a|b',
    '(a',
    '[a-z]',
    'a{2}',
    'a+?',
    '\\',
    '\\E',
    '\\Q.\\E',
    'a\\',
    '\\n',
    '\\x{41}',
    '$',
    '^',
    '|',
    '(?i)a',
  ],
  ...[
    '# no comment',
    '&anchor',
    '*alias',
    '!tag',
    '--- ',
    '...',
    '? key',
    '- item',
    'a: b',
    '{a: b}',
    "it's",
    '"quoted"',
    '%TAG',
    '~',
    'null',
  ],
  ...[
    'true',
    '0x10',
    '1e3',
    ' a',
    'a ',
    '\u00a0',
    '\u2028',
    '\u202etxt.exe',
    '\u200b',
    '\ufeff',
    'é',
    'e\u0301',
    '日本',
    '😀',
    '\u{e0041}',
  ],
  ...['{id}', 'file:///a%20b/%C3%A9?x=1#y', 'demo://{path}/{+rest}', '@', '`', '>', '|-', '__proto__', 'constructor'],
];

async function decides(patterns: readonly string[], name: string): Promise<boolean> {
  const policies = patterns.map((resource_pattern, i) =>
    policy(`p${i}`, { resource_pattern, subjects: [{ id: 's', subject_type: 'everyone', subject_value: null }] }),
  );
  const engine = await createEngine({ module, policies, revision: 1 });
  const { effect, reason } = engine.decide({ sub: '', role: '', groups: [] }, 't', {
    resource_type: 'tool',
    resource_name: name,
  });
  if (reason === 'error') throw new Error('The engine does not answer');
  return effect === 'allow';
}

test('a pattern of odd names matches each of them in the engine, and no other one', async (t) => {
  for (const name of ODD) {
    const { exact, inexpressible } = exactPatterns([name]);
    t.deepEqual(inexpressible, [], name);
    const patterns = exact.map(({ pattern }) => pattern);
    t.is(module.checkPattern(patterns[0] ?? ''), null, name);
    t.true(await decides(patterns, name), `${name}: ${patterns}`);
    for (const other of [`${name}x`, `x${name}`, name.slice(1), `${name}\n`, name.toUpperCase(), 'axb', 'aa']) {
      if (other !== name && other !== '' && other.isWellFormed())
        t.false(await decides(patterns, other), `${patterns} must not match ${other}`);
    }
  }
  const all = exactPatterns(ODD);
  const patterns = all.exact.map(({ pattern }) => pattern);
  t.deepEqual(all.exact.flatMap(({ names }) => names).sort(), [...ODD].sort());
  for (const name of ODD) t.true(await decides(patterns, name), name);
  t.false(await decides(patterns, 'axb'));
});

test('names of random characters become patterns that match them alone, within the limits of a pattern', async (t) => {
  const character = fc.oneof(
    fc.constantFrom(...'.*+?()[]{}|^$\\-#&!:EQabc '),
    fc.constantFrom('é', '日', '\u202e', '\u00a0', '😀'),
    fc.integer({ min: 0x20, max: 0x10ffff }).map((code) => String.fromCodePoint(code)),
  );
  const name = fc
    .array(character, { minLength: 1, maxLength: 256, size: 'max' })
    .map((characters) => characters.slice(0, 256).join(''))
    .filter((text) => !/[\p{Cc}\p{Cs}]/u.test(text));
  let split = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(name, { minLength: 1, maxLength: 20, size: 'max' }), async (names) => {
      const { exact, inexpressible } = exactPatterns(names);
      const known = new Set(names);
      t.deepEqual([...exact.flatMap((each) => each.names), ...inexpressible].sort(), [...known].sort());
      for (const each of inexpressible) t.true([...each].length > 60 && /[\p{C}\p{Z}]/u.test(each), each);
      split += exact.length > 1 ? 1 : 0;
      const patterns = exact.map(({ pattern }) => pattern);
      for (const pattern of patterns) {
        t.is(module.checkPattern(pattern), null, pattern);
        t.true([...pattern].length <= 512);
      }
      for (const one of names.slice(0, 3)) {
        t.is(await decides(patterns, one), !inexpressible.includes(one), one);
        if (!known.has(`${one}.`)) t.false(await decides(patterns, `${one}.`), one);
      }
    }),
    { numRuns: RUNS },
  );
  t.true(split > RUNS / 10);
});

test('long names and many names are split over several patterns, and what does not fit is said', (t) => {
  const special = '.'.repeat(256);
  t.deepEqual(exactPatterns([special]).exact, [{ pattern: `^\\Q${special}\\E$`, names: [special] }]);
  const quoting = '\\E'.repeat(128);
  t.deepEqual(exactPatterns([quoting]).inexpressible, []);
  const unseen = '\u200b'.repeat(100);
  t.deepEqual(exactPatterns([unseen]), { exact: [], inexpressible: [unseen] });
  const uri = `file:///${'a'.repeat(600)}`;
  t.deepEqual(exactPatterns([uri, 'b']), { exact: [{ pattern: '^b$', names: ['b'] }], inexpressible: [uri] });

  const many = Array.from({ length: 200 }, (_, n) => `t${n}`);
  const { exact } = exactPatterns([...many, ...many]);
  t.deepEqual(
    exact.flatMap(({ names }) => names),
    [...many].sort(),
  );
  for (const { names } of exact) t.true(names.length <= 64);
  t.true(exact.length <= 5);
});

test('the file of a suggestion says what was proposed, whatever the names are', (t) => {
  for (const name of [...ODD, 'x'.repeat(256), '. '.repeat(128), `a${' '.repeat(200)}b`]) {
    const [one] = exactPatterns([name]).exact;
    const proposed: Proposed = {
      ...{
        subject_type: 'group',
        subject_value: name,
        target_id: 't',
        resource_type: 'tool',
        priority: 0,
        needs: [],
        outranks: [],
      },
      ...{ resource_pattern: one?.pattern ?? '', names: [name] },
    };
    const { file, text } = fileOfProposed(proposed, 'everything', 1, { from: 0, to: 1 });
    const parsed = parsePolicyFile(text, file);
    if ('errors' in parsed) return t.fail(`${name}: ${JSON.stringify(parsed.errors)}\n${text}`);
    t.like(parsed.policy, {
      target: 'everything',
      resource_type: 'tool',
      resource_pattern: one?.pattern,
      effect: 'allow',
      priority: 0,
    });
    t.deepEqual(parsed.policy.subjects, [{ subject_type: 'group', subject_value: name }]);
    t.notRegex(text, /[\u200b\u202e\u2028\ufeff](?=.*\n.*resource_type)/, 'hidden characters of the pattern are escaped');
  }
  return undefined;
});
