/** Inputs that the gateway once read as something else. */
import test from 'ava';
import { readCredential } from '../../src/targets/credential-document.ts';
import { email } from '../../src/users/document.ts';

test('a credential for a header name such as __proto__ is refused', (t) => {
  t.throws(() => readCredential({ type: 'header', name: '__proto__', value: 'secret' }));
});

test('an e-mail with invisible characters is refused', (t) => {
  for (const hidden of ['\u200b', '\u202e', '\u2060', '\ufeff', '\u00ad']) {
    t.truthy(email().validate(`admin${hidden}@example.com`).error, JSON.stringify(hidden));
    t.truthy(email().validate(`admin@example.com${hidden}x`).error, JSON.stringify(hidden));
  }
  t.falsy(email().validate('j\u00f6rg+\u{1f600}@example.com').error);
});
