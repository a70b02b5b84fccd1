/** Names that a reader which ignores case takes for others. */
import test from 'ava';
import fc from 'fast-check';
import { imitationOf } from '../../src/protocol/imitation.ts';

/** What a reader that ignores case makes of a name. JavaScript makes two characters of U+0130, and folds U+1E9E to U+00DF only. */
const fold = (name: string): string => name.replaceAll('\u0130', 'i').replaceAll('\u1e9e', 'ss').toUpperCase().toLowerCase();
const NAMES = ['resourceUri', 'tasks', '_meta', 'openai/outputTemplate', 'taskId', 'shuffle', 'last', 'k'];
const imitates = imitationOf(NAMES.join(' '));
const expected = (name: string): boolean =>
  NAMES.some((known) => known !== name && fold(known) === fold(name.replace(/\0.*/s, '')));

test('every character imitates the letters that it becomes when its case changes, and no others', (t) => {
  const letters = [...'abcdefghijklmnopqrstuvwxyz'].flatMap((one) => [one, `${one}${one}`, `f${one}`, `s${one}`, `ff${one}`]);
  const known = imitationOf(letters.join(' '));
  const wrong: string[] = [];
  for (let code = 0; code < 0x110000; code++) {
    const name = String.fromCodePoint(code);
    if ((known(name) || letters.includes(name)) !== letters.includes(fold(name))) wrong.push(name);
  }
  t.deepEqual(wrong, []);
});

test('a name imitates a protocol name if both are the same without case', (t) => {
  const piece = fc.oneof(
    fc.constantFrom(...'resourcUitaskIdlmphn_/fO', 'ſ', 'K', 'İ', 'ı', 'ß', 'ﬀ', 'ﬂ', 'ﬄ', 'ﬆ', 'é', '\0'),
    fc.string({ maxLength: 2, unit: 'grapheme' }),
  );
  const close = fc.constantFrom(...NAMES).chain((name) =>
    fc
      .array(fc.constantFrom('same', 'upper', 'long s', 'Kelvin'), { minLength: name.length, maxLength: name.length })
      .map((ways) =>
        [...name]
          .map((letter, i) => {
            if (ways[i] === 'upper') return letter.toUpperCase();
            if (ways[i] === 'long s' && letter === 's') return 'ſ';
            return ways[i] === 'Kelvin' && letter === 'k' ? 'K' : letter;
          })
          .join(''),
      ),
  );
  const name = fc.oneof(
    close,
    fc.array(piece, { maxLength: 12 }).map((parts) => parts.join('')),
  );
  fc.assert(
    fc.property(name, (one) => imitates(one) === expected(one)),
    { numRuns: 20_000 },
  );
  t.true(imitates('ſhuﬄe'));
  for (const tail of ['', 'x', '\0']) t.true(imitates(`shuffle\0${tail}`), 'for a reader in C, the name ends at the NUL');
  t.true(imitates('Shuffle\0'));
  t.false(imitates('\0shuffle'));
  t.false(imitates('shuff\0le'));
  t.false(imitates('shuffle'));
  t.false(imitates('shuffle'.repeat(100)));
});
