/** The table of attacks names tests that are there. */
import { readFileSync } from 'node:fs';
import test from 'ava';
import { CASES } from './cases.ts';

const TITLE =
  /\b(?:test(?:\.serial)?\(|each(?:Engine|Server)\(\s*test(?:\.serial)?,)\s*(?:'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)"|`((?:\\.|[^`\\])*)`)/g;
const HOLE = /\$\{[^}]*\}/;

/** The literal parts of a title, which has holes between them. */
type Title = readonly string[];

function titlesIn(source: string): Title[] {
  return [...source.matchAll(TITLE)].map(([, single, double, template]) => {
    const literal = single ?? double;
    const plain = (text: string): string => text.replace(/\\(.)/g, '$1');
    return literal === undefined ? (template ?? '').split(HOLE).map(plain) : [plain(literal)];
  });
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

/** The text in each hole of a title must be a literal of the file, so that no test of a series can be invented. */
function isTitle(parts: Title, wanted: string, source: string): boolean {
  const filled = new RegExp(`^${parts.map(escaped).join('(.+)')}$`, 's').exec(wanted)?.slice(1);
  return filled?.every((text) => [`'${text}'`, `"${text}"`, `\`${text}\``].some((literal) => source.includes(literal))) === true;
}

test.serial('every attack has a number, a sentence and tests', (t) => {
  t.deepEqual(
    [...CASES.keys()],
    Array.from({ length: 56 }, (_, index) => index + 1),
  );
  t.is(new Set([...CASES.values()].map(({ what }) => what)).size, CASES.size);
  for (const [number, { what, shownBy }] of CASES) {
    t.regex(what, /^[A-Z].*\.$/, String(number));
    t.true(Object.values(shownBy).flat().length > 0, String(number));
  }
});

const files = new Set([...CASES.values()].flatMap(({ shownBy }) => Object.keys(shownBy)));

for (const file of files) {
  test.serial(`every title that is named for ${file} exists`, (t) => {
    const source = readFileSync(new URL(`../${file}`, import.meta.url), 'utf8');
    const titles = titlesIn(source);
    for (const [number, { shownBy }] of CASES) {
      for (const wanted of shownBy[file] ?? []) {
        t.true(
          titles.some((title) => isTitle(title, wanted, source)),
          `${number}: ${wanted}`,
        );
      }
    }
  });
}

test.serial('a missing title is noticed', (t) => {
  const source = `for (const what of ['a form']) test(\`asks for \${what}, twice\`, f);\neachEngine(\n  test,\n  'it\\'s here', f);`;
  const titles = titlesIn(source);
  const found = (wanted: string): boolean => titles.some((title) => isTitle(title, wanted, source));
  t.true(found("it's here") && found('asks for a form, twice'));
  for (const wanted of ['asks for a roof, twice', 'asks for , twice', 'asks for a form', 'it', ''])
    t.false(found(wanted), wanted);
});
