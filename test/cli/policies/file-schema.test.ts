import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv } from 'ajv';
import test from 'ava';
import fc from 'fast-check';
import { parse as parseYaml, stringify } from 'yaml';
import { MANIFEST_SCHEMA, POLICY_FILE_SCHEMA, TEST_FILE_SCHEMA } from '../../../src/cli/policies/file-schema.ts';
import { parseTestFile } from '../../../src/policies/files/test-file.ts';
import { parsePolicyFile } from '../../../src/policies/files/yaml.ts';

const inPolicies = (name: string): string => readFileSync(join(import.meta.dirname, '../../../policies', name), 'utf8');

test('the schema files hold the current schemas', (t) => {
  t.deepEqual(JSON.parse(inPolicies('policy.schema.json')), JSON.parse(JSON.stringify(POLICY_FILE_SCHEMA)));
  t.deepEqual(JSON.parse(inPolicies('portcullis.schema.json')), JSON.parse(JSON.stringify(MANIFEST_SCHEMA)));
  t.deepEqual(JSON.parse(inPolicies('tests/test.schema.json')), JSON.parse(JSON.stringify(TEST_FILE_SCHEMA)));
});

test('editors accept exactly the policy files that the gateway accepts', (t) => {
  const accepts = new Ajv({ strict: true, strictTypes: false }).compile(POLICY_FILE_SCHEMA);
  const word = fc.constantFrom<unknown>(
    ...[
      '',
      'a',
      'everything',
      'Not a name',
      'a\tb',
      'a\r\nb',
      'a\rb',
      'a\u0085b',
      'é'.repeat(256),
      'é'.repeat(257),
      '\u{1f600}'.repeat(256),
    ],
    ...['x'.repeat(512), 'x'.repeat(513), 'x'.repeat(4096), 'x'.repeat(4097), null, 5, 1.5, -(2 ** 31), 2 ** 31, true, [], {}],
  );
  const subject = fc.oneof(
    fc.constantFrom<unknown>('everyone', 'nobody', null, {}, { role: 'a', group: 'b' }, { everyone: true }, ['a']),
    fc.record({ role: word }, { noNullPrototype: true }),
    fc.record({ group: word }, { noNullPrototype: true }),
    fc.record({
      user: fc.oneof(
        word,
        fc.uuid(),
        fc.uuid().map((id) => id.toUpperCase()),
      ),
    }),
  );
  const good = {
    name: fc.constant<unknown>('a'),
    description: fc.constant<unknown>('a'),
    target: fc.constant<unknown>('everything'),
    resource_type: fc.constant<unknown>('tool'),
    resource_pattern: fc.constant<unknown>('^a$'),
    effect: fc.constant<unknown>('allow'),
    priority: fc.constant<unknown>(1),
    enabled: fc.constant<unknown>(true),
    subjects: fc.array(subject, { maxLength: 2 }) as fc.Arbitrary<unknown>,
  };
  const odd = fc.oneof(word, fc.constantFrom<unknown>('all', 'prompt', 'deny', 'Allow'));
  let taken = 0;
  let refused = 0;
  for (const member of [...Object.keys(good), 'colour']) {
    fc.assert(
      fc.property(
        fc.record({ ...good, ...(member === 'subjects' ? {} : { [member]: odd }) }, { requiredKeys: [], noNullPrototype: true }),
        fc.boolean(),
        (written, whole) => {
          const value = whole
            ? { name: 'a', resource_type: 'all', effect: 'deny', priority: 0, subjects: [], ...written }
            : written;
          const reads = 'policy' in parsePolicyFile(stringify(value), 'a.yaml');
          t.is(accepts(JSON.parse(JSON.stringify(value))), reads, JSON.stringify(value).slice(0, 300));
          if (reads) taken++;
          else refused++;
        },
      ),
      { numRuns: 200 },
    );
  }
  t.true(taken > 100 && refused > 100, `${taken} taken, ${refused} refused`);
});

test('editors accept exactly the test files that the gateway accepts', (t) => {
  const accepts = new Ajv({ strict: true, strictTypes: false, strictRequired: false }).compile(TEST_FILE_SCHEMA);
  t.true(accepts(parseYaml(inPolicies('tests/starter.yaml'))));
  /** The parts of a valid file by their place. `p` and `r` are names that the file defines. */
  const good = {
    target: 'everything',
    principals: { p: { role: 'a', groups: ['b'], user: 'c' } },
    requests: { r: { tool: 'a' }, s: { target: 'everything' } },
    tests: [{ name: 'a', principals: ['p'], requests: ['r'], expect: [{ principals: ['p'], effect: 'allow', policy: null }] }],
  };
  const paths: readonly (readonly (string | number)[])[] = [
    ...[['target'], ['principals'], ['principals', 'p'], ['principals', 'p', 'role'], ['principals', 'p', 'groups']],
    ...[
      ['principals', 'p', 'groups', 0],
      ['principals', 'p', 'user'],
      ['requests'],
      ['requests', 's'],
      ['requests', 'r', 'tool'],
    ],
    ...[
      ['requests', 's', 'target'],
      ['requests', 's', 'resource'],
      ['requests', 's', 'prompt'],
      ['requests', 'r', 'prompt'],
    ],
    ...[
      ['tests'],
      ['tests', 0],
      ['tests', 0, 'name'],
      ['tests', 0, 'principals'],
      ['tests', 0, 'requests'],
      ['tests', 0, 'expect'],
    ],
    ...['principals', 'requests', 'effect', 'policy', 'colour'].map((key) => ['tests', 0, 'expect', 0, key]),
    ...[
      ['tests', 0, 'expect', 0],
      ['tests', 0, 'colour'],
      ['requests', 'r', 'colour'],
      ['principals', 'p', 'colour'],
      ['colour'],
    ],
  ];
  const labels = ['a', 'A b.c_-9', '-a', '', 'ä', 'a/b', 'x'.repeat(63), 'x'.repeat(64), 'p', 'r'];
  const odd: fc.Arbitrary<unknown> = fc.oneof(
    fc.constantFrom<unknown>(
      ...[
        '',
        'a',
        'p',
        'r',
        'everything',
        'Not a name',
        'a\tb',
        'a\u0085b',
        'allow',
        'deny',
        'Allow',
        null,
        5,
        true,
        [],
        {},
        [[]],
      ],
      ...[256, 257, 512, 2048, 2049].flatMap((length) => ['x'.repeat(length), '\u{1f600}'.repeat(length)]),
      ...[['p'], ['r'], ['p', 'p'], ['r', 'r'], ['r', 's'], ['p', null], [5], [''], ['a', 'b'], ['a', 'a'], 'p'],
      ...[
        { name: 'a' },
        [{ name: 'a' }],
        [{ name: 'a' }, { name: 'b' }],
        [{ effect: 'deny' }],
        [{ effect: 'deny', policy: 'x' }],
      ],
      ...[
        { tool: 'a', prompt: 'b' },
        { resource: 'a' },
        { role: 'a' },
        { role: 'a', groups: [] },
        { groups: [] },
        { effect: 'deny' },
      ],
      Array.from({ length: 1_001 }, (_, i) => `${i}`),
    ),
    fc.dictionary(fc.constantFrom(...labels), fc.constantFrom({ role: 'a' }, { tool: 'a' }), { maxKeys: 2 }),
    fc.constant(undefined),
  );
  let taken = 0;
  let refused = 0;
  for (const path of paths) {
    fc.assert(
      fc.property(odd, (value) => {
        const written = JSON.parse(JSON.stringify(withAt(good, path, value))) as unknown;
        const parsed = parseTestFile(stringify(written), 'a.yaml');
        // A schema does not say what names refer to.
        const errors =
          'errors' in parsed ? parsed.errors.filter(({ message }) => !/is not one of the |names no target/.test(message)) : [];
        t.is(
          accepts(written),
          errors.length === 0,
          `${path.join('.')}: ${JSON.stringify(value)?.slice(0, 200)} ${errors[0]?.message}`,
        );
        if (errors.length === 0) taken++;
        else refused++;
      }),
      { numRuns: 150 },
    );
  }
  t.true(taken > 200 && refused > 1_000, `${taken} taken, ${refused} refused`);
});

/** A copy with another value there; undefined: with none. */
function withAt(whole: unknown, [key, ...rest]: readonly (string | number)[], value: unknown): unknown {
  if (key === undefined) return value;
  if (Array.isArray(whole)) return whole.map((item, i) => (i === key ? withAt(item, rest, value) : item));
  const object = whole as Record<string, unknown>;
  return { ...object, [key]: withAt(object[key] ?? {}, rest, value) };
}
