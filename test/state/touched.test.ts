import test from 'ava';
import { touchedBy } from '../../src/state/touched.ts';

const nothing = {
  policies: false,
  sessions: false,
  rights: false,
  providers: false,
  targets: new Set(),
  users: new Set(),
  tokens: new Set(),
};

test('each type of object changes its own part of the state, and keys and drafts change none', (t) => {
  const of = (object_type: string) => touchedBy([{ object_type, object_id: 'x' }]);
  t.deepEqual(of('policy'), { ...nothing, policies: true });
  t.deepEqual(of('session'), { ...nothing, sessions: true });
  t.deepEqual(of('right'), { ...nothing, rights: true });
  t.deepEqual(of('target'), { ...nothing, targets: new Set(['x']) });
  t.deepEqual(of('credential'), { ...nothing, targets: new Set(['x']) });
  t.deepEqual(of('user'), { ...nothing, users: new Set(['x']) });
  t.deepEqual(of('token'), { ...nothing, tokens: new Set(['x']) });
  // A grant is the record of its access tokens, and a client ends with its grants.
  t.deepEqual(of('grant'), { ...nothing, tokens: new Set(['x']) });
  t.deepEqual(of('client'), nothing);
  t.deepEqual(of('provider'), { ...nothing, providers: true });
  t.deepEqual(of('key'), nothing);
  t.deepEqual(of('draft'), nothing);
  t.deepEqual(touchedBy([]), nothing);
});

test('changes are merged, and a change of an unknown type reloads everything', (t) => {
  const user = { object_type: 'user', object_id: 'u' };
  const other = { object_type: 'user', object_id: 'v' };
  t.deepEqual(touchedBy([user, other, user]), { ...nothing, users: new Set(['u', 'v']) });
  for (const object_type of ['unheard-of', '', 'constructor', '__proto__'])
    t.is(touchedBy([user, { object_type, object_id: 'g' }]), null, object_type);
});
