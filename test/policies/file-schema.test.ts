import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv } from 'ajv';
import test from 'ava';
import fc from 'fast-check';
import { stringify } from 'yaml';
import { policyFileSchema } from '../../src/policies/file-schema.ts';
import { parsePolicyFile } from '../../src/policies/yaml.ts';

test('policies/policy.schema.json is the schema', (t) => {
  const text = readFileSync(join(import.meta.dirname, '../../policies/policy.schema.json'), 'utf8');
  t.deepEqual(JSON.parse(text), JSON.parse(JSON.stringify(policyFileSchema())));
});

test('editors accept what the gateway reads, and nothing else', (t) => {
  const accepts = new Ajv({ strict: true, strictTypes: false }).compile(policyFileSchema());
  const word = fc.constantFrom<unknown>(
    ...['', 'a', 'everything', 'Not a name', 'a\tb', 'a\u0085b', 'é'.repeat(256), 'é'.repeat(257), '\u{1f600}'.repeat(256)],
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
