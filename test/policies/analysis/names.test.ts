import test from 'ava';
import fc from 'fast-check';
import { DFA, isDisjointWith, JS, NFA } from 'refa';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { parse } from '../../../src/engine/compile/re2.ts';
import { accepts, patternAutomaton, shortestName, textsAutomaton } from '../../../src/policies/analysis/automaton.ts';
import { areApart, canBeAsked, createLibrary, domainOf } from '../../../src/policies/analysis/names.ts';
import { matcher, type Pattern, pattern } from '../../engine/arbitraries.ts';

const RUNS = Number(process.env.ANALYSIS_RUNS ?? 400);
const library = createLibrary();
const domain = domainOf('tool');
const shortest = (...args: Parameters<typeof shortestName>) => atOnce(shortestName(...args));
const plenty = () => ({ left: 1_000_000 });

/** The budget has room only for the first state. */
const forgetful = (pattern: string, name: string): boolean => patternAutomaton(parse(pattern), [{ left: 0 }]).fits(name);

test('an automaton accepts what the regular expression matches', (t) => {
  t.timeout(120_000 + RUNS * 100);
  let matched = 0;
  let asked = 0;
  const near = fc.tuple(
    fc.constantFrom('', '', 'x', 'é', '-'),
    fc.constantFrom(0, 0, 0, 1, 2),
    fc.constantFrom(0, 0, 0, 1, 2),
    fc.constantFrom('', '', 'y', '日', '_'),
  );
  fc.assert(
    fc.property(pattern, fc.array(near, { minLength: 8, maxLength: 8 }), (generated, changes) => {
      const matches = matcher([generated]);
      const names = library(generated.re2);
      const characters = [...generated.sample];
      for (const [before, from, less, after] of changes) {
        const name = before + characters.slice(from, characters.length - less).join('') + after;
        if (!canBeAsked('tool', name)) continue;
        asked++;
        const expected = matches(generated.re2, name);
        if (expected) matched++;
        if (
          [accepts(names.automaton(), name), names.has(name), forgetful(generated.re2, name)].some(
            (answer) => answer !== expected,
          )
        )
          throw new Error(`${generated.re2} on ${JSON.stringify(name)}: should be ${expected}`);
      }
    }),
    { numRuns: RUNS * 5 },
  );
  t.log(`${asked} names, ${matched} of them matched`);
  t.true(matched > asked / 10 && matched < (asked * 9) / 10);
});

/** The pattern in the form that refa can read, with anchors at the ends only. null: refa cannot read it. */
function readByRefa({ js }: Pattern): NFA | null {
  const [, start = '', body = '', end = ''] = /^(\^?)(.*?)(\$?)$/su.exec(js.replaceAll('(?i)', '')) ?? [];
  if (/\\$/.test(body) || /\(\?[<=!]|\\b/.test(body) || /(?<!\\|\[)\^|(?<!\\)\$/.test(body)) return null;
  if (start + end !== '' && hasOuterBranch(body)) return null;
  const source = `${start === '' ? '[^]*' : ''}(?:${body})${end === '' ? '[^]*' : ''}`;
  const { expression, maxCharacter } = JS.Parser.fromLiteral({ source, flags: js.includes('(?i)') ? 'iu' : 'u' }).parse();
  return NFA.fromRegex(expression, { maxCharacter });
}

function hasOuterBranch(source: string): boolean {
  let depth = 0;
  for (const [token] of source.matchAll(/\\.|\[[^\]]*\]|[()|]/gsu)) {
    if (token === '(') depth++;
    else if (token === ')') depth--;
    else if (token === '|' && depth === 0) return true;
  }
  return false;
}

test('refa finds the same containments and overlaps of patterns', (t) => {
  t.timeout(120_000 + RUNS * 100);
  const all = readByRefa({ re2: '', js: '^[ -~\\u{a0}-\\u{d7ff}\\u{e000}-\\u{10ffff}]+$', sample: '' });
  if (all === null) return t.fail();
  const verdicts = { within: 0, notWithin: 0, apart: 0, notApart: 0, left: 0 };
  const related = fc.tuple(pattern, pattern, pattern).map(([one, other, rest]): [Pattern, Pattern] => {
    const joined = { re2: `(?:${one.re2})|(?:${other.re2})`, js: `(?:${one.js})|(?:${other.js})`, sample: one.sample };
    return one.js.includes('(?i)') || other.js.includes('(?i)') || rest.sample.length % 2 === 0 ? [one, other] : [one, joined];
  });
  fc.assert(
    fc.property(related, ([one, other]) => {
      const [left, right] = [readByRefa(one), readByRefa(other)];
      if (left === null || right === null) {
        verdicts.left++;
        return;
      }
      const asked = DFA.fromIntersection(left, all);
      const outside = DFA.fromFA(right);
      outside.complement();
      const [a, b] = [library(one.re2), library(other.re2)];
      const within = shortest([a.automaton()], [b.automaton()], domain, plenty()) === null;
      const apart = shortest([a.automaton(), b.automaton()], [], domain, plenty()) === null;
      verdicts[within ? 'within' : 'notWithin']++;
      verdicts[apart ? 'apart' : 'notApart']++;
      const pair = `${one.re2} and ${other.re2}`;
      if (isDisjointWith(asked, outside) !== within) throw new Error(`${pair}: within is ${within}`);
      if (isDisjointWith(asked, right) !== apart) throw new Error(`${pair}: apart is ${apart}`);
      if (areApart(a, b) && !apart) throw new Error(`${pair}: the quick look errs`);
    }),
    { numRuns: RUNS },
  );
  t.log(JSON.stringify(verdicts));
  t.true(Object.values(verdicts).every((count) => count > RUNS / 100));
  t.true(verdicts.left < RUNS * 0.7);
});

test('the search for a name keeps within the allowed lengths', (t) => {
  const shortestOf = (re2: string, type: 'tool' | 'resource', but: string | null = null): string | null =>
    shortest([library(re2).automaton()], but === null ? [] : [library(but).automaton()], domainOf(type), plenty());
  t.is(shortestOf('^a{256}$', 'tool'), 'a'.repeat(256));
  t.is(shortestOf('^a{257}$', 'tool'), null);
  t.is(shortestOf('^é{256}$', 'tool'), 'é'.repeat(256));
  t.is(shortestOf('^a{1000}a{1000}a{48}$', 'resource')?.length, 2048);
  t.is(shortestOf('^a{1000}a{1000}a{49}$', 'resource'), null);
  t.is(shortestOf('^é{512}é{512}$', 'resource')?.length, 1024);
  t.is(shortestOf('^é{512}é{512}a$', 'resource'), null);
  t.is(shortestOf('^😀{512}$', 'resource')?.length, 1024);
  t.is(shortestOf('^$', 'tool'), null);
  t.is(shortestOf('\\n', 'tool'), null);
  t.is(shortestOf('[[:cntrl:]]', 'resource'), null);
  t.is(shortestOf('', 'tool', '^.'), null);
  t.is(shortestOf('', 'tool', '^[[:ascii:]]'), '\u00a0');
  t.is(shortestOf('(?i)^k$', 'tool', '^[kK]$'), '\u212a');
  t.is(shortestOf('^a*$', 'tool', '^a{0,255}$'), 'a'.repeat(256));
  t.is(shortestOf('^a*$', 'tool', '^a{0,256}$'), null);
});

const EDGES: readonly (readonly [pattern: string, fits: readonly string[], fitsNot: readonly string[]])[] = [
  ['\\b', ['a', '-a', 'a-', '日a'], ['-', '日', '--']],
  ['^\\b', ['a', 'a-'], ['-', '-a']],
  ['\\b$', ['a', '-a'], ['-', 'a-']],
  ['a\\b', ['a', 'a-b', 'ba'], ['ab', '-']],
  ['a\\b(?:-|$)', ['a', 'a-b'], ['ab', 'a.']],
  ['(?:a|$)x?\\b', ['a', 'ax', '-a'], ['ab-', '-']],
  ['x$', ['x', 'xx'], ['xy']],
  ['(?m:^)x(?m:$)', ['x'], ['xy', 'yx']],
  ['(?:^|-)x', ['x', 'a-x'], ['ax']],
  ['a|$', ['a', 'b'], []],
];

for (const [pattern, fits, fitsNot] of EDGES) {
  test(`edges: ${pattern}`, (t) => {
    const automaton = library(pattern).automaton();
    for (const name of fits) t.true(accepts(automaton, name), name);
    for (const name of fitsNot) t.false(accepts(automaton, name), name);
  });
}

test('an automaton for texts accepts exactly these texts', (t) => {
  const texts = textsAutomaton(['ab', 'abc', 'é']);
  for (const name of ['ab', 'abc', 'é']) t.true(accepts(texts, name));
  for (const name of ['a', 'abcd', 'x', 'éé', 'b']) t.false(accepts(texts, name));
});

test('a search that takes too long is given up', (t) => {
  const automaton = library('(?:a|b).*a.{12}$').automaton();
  t.throws(() => shortest([automaton], [library('a.{12}$').automaton()], domain, { left: 100 }));
});
