import test from 'ava';
import fc from 'fast-check';
import { readChallenge, scopesOf } from '../../src/connections/challenge.ts';

test('a Bearer challenge is read with quoted values, tokens, and other schemes around it', (t) => {
  t.is(readChallenge(null), null);
  t.is(readChallenge('Basic realm="x"'), null);
  t.deepEqual(readChallenge('Bearer'), {});
  const header =
    'Basic realm="a, b", Bearer realm="x\\"y", error=insufficient_scope , scope="a b",resource_metadata="https://e.x/m"';
  t.deepEqual(readChallenge(header), { error: 'insufficient_scope', scope: 'a b', resource_metadata: 'https://e.x/m' });
  t.deepEqual(readChallenge('Bearer scope="first", scope="second"'), { scope: 'first' });
  t.deepEqual(readChallenge('Bearer __proto__="x", scope="a"'), { scope: 'a' });
  t.is(readChallenge(`Bearer scope="${'a'.repeat(9_000)}"`), null);
});

test('no header throws or takes long', (t) => {
  fc.assert(
    fc.property(fc.string({ maxLength: 8_000 }), (text) => {
      const began = performance.now();
      readChallenge(`Bearer ${text}`);
      return performance.now() - began < 1_000;
    }),
  );
  const began = performance.now();
  readChallenge(`Bearer ${'a="\\'.repeat(2_000)}`);
  readChallenge(`Bearer ${', '.repeat(4_000)}`);
  t.true(performance.now() - began < 1_000);
});

test('only lists of scopes in the form of RFC 6749 count', (t) => {
  t.deepEqual(scopesOf('a b:c a'), ['a', 'b:c']);
  for (const wrong of ['', ' a', 'a  b', 'a"b', 'a\\b', 'é', 'a\nb', null, undefined, 'a '.repeat(2_000)])
    t.deepEqual(scopesOf(wrong), []);
});
