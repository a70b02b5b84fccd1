import test from 'ava';
import fc from 'fast-check';
import { isCanonicalUri } from '../../src/protocol/uri.ts';

for (const uri of [
  'file:///public/a.txt',
  'file:///public/',
  'file:///public/a%20b%2Cc.txt',
  'file:///public/a%20/b',
  'file:///public/%C3%A9',
  'file:///public/%E2%9D%A4%EF%B8%8F.txt',
  'test://template/1/data',
  'test://static-text',
  'demo://resource/dynamic/text/1',
  'https://example.com/a?b=c&d=%20',
  'note:a/b',
  'urn:isbn:0451450523',
  'ui://weather/card.html',
  'file:///public/..a/.b/c..',
  'file:///public/a;v=1/b;',
  'file:///public/...;x/a%20;',
  'https://example.com/a?b=%C3%A9',
  'file:///public/100%25',
  'file:///public/50%25%20off',
  'data:;base64,AAAA',
]) {
  test(`canonical: ${uri}`, (t) => t.true(isCanonicalUri(uri)));
}

for (const uri of [
  'file:///public/../secret',
  'file:///public/..;/secret',
  'file:///public/..;x=1/secret',
  'file:///public/..%3Fx/secret',
  'file:///public/..%23x/secret',
  'file:///public/%C2%A0../secret',
  'file:///public/..%C2%85/secret',
  'file:///public/..%7F/secret',
  'file:///public/..%EF%BB%BF/secret',
  'file:///public/%E2%80%8B../secret',
  'file:///public/.%C2%AD./secret',
  'file:///public/..%E2%81%A0/secret',
  'file:///public/..%CD%8F;x/secret',
  'file:///public/..%F3%A0%80%A0/secret',
  'https://example.com/%E1%A0%8E/secret',
  'file:///public/.;x/secret',
  'file:///public/..%3B/secret',
  'file:///public/..%253Bx/secret',
  'file:///public/..;',
  'test:..;/secret',
  'https://example.com/;/secret',
  'https://example.com/;x=1/secret',
  'https://example.com/%3B/secret',
  'https://example.com/public/;x',
  'https://example.com/%20/secret',
  'https://example.com/%2520;x/secret',
  'file:///public/..%20/secret',
  'file:///secr%09et/key',
  'file:///secr%0Aet/key',
  'file:///secr%0Det/key',
  'file:///secret/key%1F',
  'file:///secret/key%7F',
  'file:///secret/key%C2%85',
  'file:///secret/key%20',
  'note:secret%20',
  'https://example.com/a?b=secr%0Aet',
  'file:///public/.%09./secret',
  'file:///public/%0A..;/secret',
  'file:///public/%C0%AE%C0%AE/secret',
  'file:///public/%C0%AF',
  'file:///public/%FF',
  'file:///public/%C3',
  'file:///public/%A9%C3',
  'file:///public/%ED%A0%80',
  'file:///public/%F5%80%80%80',
  'file:///public/%25C0%25AE%25C0%25AE/secret',
  'https://example.com/a?b=%FF',
  'urn:x:%FF',
  'https://example.com/a?',
  'note:a?',
  'https://example.com./a',
  'https://example.com.:8080/a',
  'file:///public/%2e%2e/secret',
  'file:///public/%2E%2E/secret',
  'file:///public/..%2fsecret',
  'file:///public/..%2Fsecret',
  'file:///public/%252e%252e/secret',
  'file:///%2573ecret/plan',
  'file:///secre%25%37%34/plan',
  'file:///my%2520secrets/plan',
  'file:///caf%25c3%25a9/plan',
  'https://example.com/a?b=%2561',
  'note:%2573ecret',
  'file:///public/%25252E%25252E/secret',
  'file:///public/a%252Fb',
  'file:///public/a%5Cb',
  'file:///public/\\..\\secret',
  'file:///public//secret',
  'file:///public/./secret',
  'file:///public/a%00',
  'file:///public/a\tb',
  'file:///public/a b',
  'file:///public/a\n',
  'FILE:///public/a',
  'file:/public/a',
  'file://localhost/public/a',
  'file:///public/a?x',
  'file:///public/a#x',
  'file:///public/%61',
  'file:///public/%c3%a9',
  'file:///public/é',
  'file:///publiс/a',
  'file:///public/{x}',
  'file:///public/[x]',
  'file:///public/%zz',
  'file:///public/%',
  'https://user@example.com/a',
  'https://example.com',
  'https://EXAMPLE.com/a',
  'https://example.com:443/a',
  'https://0x7f.1/a',
  'https://exаmple.com/a',
  'note:a/../b',
  'test://template/../data',
  'no-scheme',
  '',
  `file:///${'a'.repeat(2048)}`,
]) {
  test(`not canonical: ${JSON.stringify(uri).slice(0, 60)}`, (t) => t.false(isCanonicalUri(uri)));
}

/** The rule for one segment, in plain words: the gateway asks it of the whole path at once. */
function mayVanish(segment: string, isFirst: boolean): boolean {
  const [name = ''] = segment.split(';', 1);
  const left = name.replace(/[\s\p{Default_Ignorable_Code_Point}]/gu, '');
  return left === '' ? !isFirst : /^\.\.?([?#]|$)/.test(left);
}

function hasPlainSegments(path: string): boolean {
  const segments = path.split('/');
  return segments.every((segment, index) => {
    if (segment === '') return index === 0 || index === segments.length - 1;
    const text = decodeURIComponent(segment);
    return !/[/\\]/.test(text) && ![segment, text].some((form) => mayVanish(form, index === 0));
  });
}

test('a path is canonical if each of its segments is', (t) => {
  const piece = fc.constantFrom(
    ...['/', '/', '.', '..', ';', 'a', '%20', '%3B', '%2F', '%5C', '%3F', '%23', '%C2%A0', '%E2%80%A8', '%C3%A9', '%E2%80%8B'],
  );
  fc.assert(
    fc.property(fc.constantFrom('note:', 'note:/', 'note://h/'), fc.array(piece, { maxLength: 9 }), (begin, pieces) => {
      const uri = `${begin}a/${pieces.join('')}`;
      const path = /^note:(?:\/\/h)?(.*)$/.exec(uri)?.[1] ?? '';
      // What is not about segments: a space at the end, and what URL parsers change.
      const isOtherwisePlain = !uri.endsWith('%20') && new URL(uri).href === uri;
      return isCanonicalUri(uri) === (hasPlainSegments(path) && isOtherwisePlain);
    }),
    { numRuns: 20_000 },
  );
  t.pass();
});
