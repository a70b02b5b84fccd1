/** Inputs that were taken for something else than they are. */
import test from 'ava';
import { isLinkLocal } from '../../src/targets/address.ts';
import { readCredential } from '../../src/targets/credential-document.ts';
import { email } from '../../src/users/document.ts';

test('a header that no object can hold would silently not be sent', (t) => {
  t.throws(() => readCredential({ type: 'header', name: '__proto__', value: 'secret' }));
});

test('every IPv6 form of the metadata address is link-local', (t) => {
  for (const address of ['::169.254.169.254', '[::a9fe:a9fe]', '2002:a9fe:a9fe::1', '::ffff:a9fe:a9fe', '64:ff9b::a9fe:a9fe']) {
    t.true(isLinkLocal(address), address);
  }
  for (const address of ['::1', '2002:7f00:1::1', '::a9ff:1']) t.false(isLinkLocal(address), address);
});

test('no e-mail has characters that nobody sees', (t) => {
  for (const hidden of ['\u200b', '\u202e', '\u2060', '\ufeff', '\u00ad']) {
    t.truthy(email().validate(`admin${hidden}@example.com`).error, JSON.stringify(hidden));
    t.truthy(email().validate(`admin@example.com${hidden}x`).error, JSON.stringify(hidden));
  }
  t.falsy(email().validate('j\u00f6rg+\u{1f600}@example.com').error);
});
