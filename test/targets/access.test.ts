import test from 'ava';
import fc from 'fast-check';
import { accessor, type HeldCredential } from '../../src/targets/access.ts';
import { type HttpTarget, ISOLATIONS, type StdioTarget } from '../../src/targets/target.ts';

const base = {
  id: 'a',
  name: 'a',
  description: null,
  enabled: true,
  denials: 'shown',
  may_ask: [],
  extension_methods: [],
  user_credentials: [],
  capture_arguments: null,
  own_accounts: null,
  timeout_ms: null,
  created_at: 0,
  updated_at: 0,
} as const;
const http: HttpTarget = { ...base, transport: 'streamable-http', url: 'https://a.example/' };
const stdio: StdioTarget = { ...base, transport: 'stdio', command: '/a', args: [], cwd: null, env: {}, isolation: 'per_user' };

type Subject = readonly [HeldCredential['subject_type'], string];
let count = 0;
const held = (
  [subject_type, subject_value]: Subject,
  name: string,
  value: string | null,
  over: Partial<HeldCredential> = {},
): HeldCredential => ({
  ...{ subject_type, subject_value, type: 'header', name, supplied_by: 'administrator', version: `v${count++}` },
  open: () => value,
  ...over,
});
const alice = { sub: 'alice', role: 'dev', groups: ['b', 'a'] };

/** The rule as people read it: for each name, look at one place after the other. */
function oracle(rows: readonly HeldCredential[], { sub, role, groups }: typeof alice): Map<string, HeldCredential> {
  const sorted = [...groups].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  const winners = new Map<string, HeldCredential>();
  for (const name of new Set(rows.map((row) => row.name))) {
    const those = rows.filter((row) => row.name === name);
    const of = (type: string, value: string) => those.find((row) => row.subject_type === type && row.subject_value === value);
    let winner = of('user', sub);
    for (const group of sorted) winner ??= of('group', group);
    winner ??= of('role', role);
    winner ??= of('default', '');
    if (winner) winners.set(name, winner);
  }
  return winners;
}

const words = fc.constantFrom('a', 'b', 'ab', '\u{ff5e}', '\u{1f600}', 'user:a', '__proto__', 'constructor', '');
const subjects = fc.oneof(
  fc.tuple(fc.constantFrom('user' as const, 'group' as const, 'role' as const), words),
  fc.constant(['default', ''] as const),
);
const rowsOf = fc.uniqueArray(
  fc.record({ subject: subjects, name: fc.constantFrom('x', 'y', 'constructor'), usable: fc.boolean() }),
  {
    selector: ({ subject, name }) => JSON.stringify([subject, name]),
    maxLength: 20,
  },
);

test('the most specific credential wins for each name, whatever the order of rows and groups', (t) => {
  const principals = fc.record({ sub: words, role: words, groups: fc.uniqueArray(words) });
  fc.assert(
    fc.property(rowsOf, principals, (specs, principal) => {
      const rows = specs.map(({ subject, name, usable }, i) => held(subject, name, usable ? `value ${i}` : null));
      const winners = oracle(rows, principal);
      const access = accessor(http, rows)(principal);
      const values = [...winners.values()].map((row) => row.open());
      if (values.includes(null)) t.is(access.credentials, 'unusable');
      else {
        const expected = [...winners].map(([name, row]) => [name, row.open()]).sort();
        t.deepEqual(access.credentials === 'unusable' ? null : [...access.credentials.headers].sort(), expected as never);
      }
      t.is(access.scope, null);
      const reversed = accessor(http, [...rows].reverse())({ ...principal, groups: [...principal.groups].reverse() });
      t.deepEqual(reversed, access);
    }),
    { numRuns: 500 },
  );
});

test('the binding differs exactly if a different credential wins', (t) => {
  const principals = fc.record({ sub: words, role: words, groups: fc.uniqueArray(words, { maxLength: 3 }) });
  fc.assert(
    fc.property(rowsOf, principals, principals, (specs, one, other) => {
      const rows = specs.map(({ subject, name }, i) => held(subject, name, `value ${i}`));
      const versions = (who: typeof alice) => [...oracle(rows, who).values()].map(({ version }) => version).sort();
      const same = JSON.stringify(versions(one)) === JSON.stringify(versions(other));
      const accessOf = accessor(http, rows);
      t.is(accessOf(one).binding === accessOf(other).binding, same);
    }),
    { numRuns: 500 },
  );
});

test('a new value of the winning credential changes the binding; a value that loses does not', (t) => {
  const mine = held(['user', 'alice'], 'x', 'mine');
  const role = held(['role', 'dev'], 'x', 'of the role');
  const { binding } = accessor(http, [mine, role])(alice);
  t.is(accessor(http, [mine])(alice).binding, binding);
  t.is(accessor(http, [mine, held(['role', 'dev'], 'x', 'another')])(alice).binding, binding);
  t.not(accessor(http, [held(['user', 'alice'], 'x', 'mine')])(alice).binding, binding);
  t.not(accessor(http, [])(alice).binding, binding);
});

test('an unusable winner is not replaced by a less specific one', (t) => {
  const rows = [held(['default', ''], 'x', 'of all'), held(['group', 'a'], 'x', null), held(['group', 'b'], 'x', 'of b')];
  t.is(accessor(http, rows)(alice).credentials, 'unusable');
  t.like(accessor(http, rows)({ ...alice, groups: ['b'] }).credentials, { headers: [['x', 'of b']] });
  t.like(accessor(http, rows)({ ...alice, groups: [] }).credentials, { headers: [['x', 'of all']] });
});

test('a value of a user that names a host goes only with other values of that user', (t) => {
  const own = (name: string) => held(['user', 'alice'], name, 'own', { type: 'env', supplied_by: 'user' });
  const [token, host] = [held(['default', ''], 'TOKEN', 'of all', { type: 'env' }), own('GITHUB_HOST')];
  t.is(accessor(stdio, [token, host])(alice).credentials, 'unusable');
  t.like(accessor(stdio, [token, host])({ ...alice, sub: 'bob' }).credentials, { env: { TOKEN: 'of all' } });
  t.like(accessor(stdio, [own('TOKEN'), host])(alice).credentials, { env: { TOKEN: 'own', GITHUB_HOST: 'own' } });
  t.like(accessor(stdio, [token, own('NAME')])(alice).credentials, { env: { TOKEN: 'of all', NAME: 'own' } });
  const chosen = held(['user', 'alice'], 'GITHUB_HOST', 'chosen', { type: 'env' });
  t.like(accessor(stdio, [token, chosen])(alice).credentials, { env: { TOKEN: 'of all', GITHUB_HOST: 'chosen' } });
});

test('a bearer credential and a header named authorization replace each other', (t) => {
  const rows = [
    held(['default', ''], 'authorization', 'Basic eA=='),
    held(['user', 'alice'], 'authorization', 'mine', { type: 'bearer' }),
  ];
  t.like(accessor(http, rows)(alice).credentials, { headers: [['authorization', 'Bearer mine']] });
  t.like(accessor(http, rows)({ ...alice, sub: 'bob' }).credentials, { headers: [['authorization', 'Basic eA==']] });
});

test('a credential that does not fit the transport is unusable', (t) => {
  t.is(accessor(http, [held(['default', ''], 'X', 'v', { type: 'env' })])(alice).credentials, 'unusable');
  t.is(accessor(stdio, [held(['default', ''], 'x', 'v')])(alice).credentials, 'unusable');
  const env = accessor(stdio, [held(['default', ''], 'X', 'v', { type: 'env' })])(alice);
  t.like(env.credentials, { headers: [], env: { X: 'v' } });
});

test('a credential is decrypted only when it is needed, and its value may be any text', (t) => {
  let opened = 0;
  const spy = (value: string) => ({
    open: () => {
      opened++;
      return value;
    },
  });
  const rows = Array.from({ length: 10_000 }, (_, i) => held(['user', `u${i}`], 'x', '', spy(`value ${i}`)));
  const accessOf = accessor(http, [...rows, held(['default', ''], 'x', '', spy('unusable'))]);
  t.is(opened, 0);
  t.like(accessOf({ ...alice, sub: 'u77' }).credentials, { headers: [['x', 'value 77']] });
  t.is(opened, 1);
  t.like(accessOf(alice).credentials, { headers: [['x', 'unusable']] });
});

test('a target without credentials is reached in the same way by everybody', (t) => {
  const accessOf = accessor(http, []);
  t.deepEqual(accessOf({ sub: 'bob', role: 'admin', groups: [] }), { ...accessOf(alice), user: 'bob' });
  t.like(accessOf(alice), { credentials: { headers: [], env: {} }, scope: null });
});

test('the isolation of a target decides which callers share a process', (t) => {
  const scopes = (isolation: StdioTarget['isolation'], who = alice) => accessor({ ...stdio, isolation }, [])(who).scope;
  t.deepEqual(
    ISOLATIONS.map((isolation) => scopes(isolation)),
    [null, 'a', 'dev', ''],
  );
  t.is(scopes('per_group', { ...alice, groups: [] }), null);
  t.is(scopes('per_group', { ...alice, groups: ['\u{1f600}', '\u{ff5e}'] }), '\u{ff5e}');
  const binding = (role: string) => accessor({ ...stdio, isolation: 'per_role' }, [])({ ...alice, role }).binding;
  t.not(binding('dev'), binding('ops'));
  t.is(binding('dev'), binding('dev'));
});
