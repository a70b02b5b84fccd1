import test from 'ava';
import { isCanonicalUri } from '../../src/mcp/uri.ts';

for (const uri of [
  'file:///public/a.txt',
  'file:///public/',
  'file:///public/a%20b%2Cc.txt',
  'file:///public/%C3%A9',
  'test://template/1/data',
  'test://static-text',
  'demo://resource/dynamic/text/1',
  'https://example.com/a?b=c&d=%20',
  'note:a/b',
  'urn:isbn:0451450523',
  'ui://weather/card.html',
  'file:///public/..a/.b/c..',
]) {
  test(`canonical: ${uri}`, (t) => t.true(isCanonicalUri(uri)));
}

for (const uri of [
  'file:///public/../secret',
  'file:///public/%2e%2e/secret',
  'file:///public/%2E%2E/secret',
  'file:///public/..%2fsecret',
  'file:///public/..%2Fsecret',
  'file:///public/%252e%252e/secret',
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
