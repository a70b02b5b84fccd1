import test from 'ava';
import Joi from 'joi';
import { asTimestamp, instant, lines, model, text, uuid } from '../../../src/base/validate.ts';
import { queryOf, schemaOf } from '../../../src/rest/openapi/from-joi.ts';
import { NAMED } from '../../../src/rest/openapi/schema.ts';

test('the schema of a member has the limits that joi checks', (t) => {
  const notControl = '[^\\u0000-\\u001f\\u007f-\\u009f]';
  const pattern = '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$';
  for (const [member, schema] of [
    [Joi.string(), { type: 'string', minLength: 1 }],
    [Joi.string().allow(''), { type: 'string' }],
    [Joi.string().min(2).max(3), { type: 'string', minLength: 2, maxLength: 3 }],
    [text(4), { type: 'string', minLength: 1, maxLength: 4, pattern: `^${notControl}*$` }],
    [lines(5).allow(null, ''), { type: ['string', 'null'], maxLength: 5, pattern: `^(?:${notControl}|\\r?\\n|\\t)*$` }],
    [uuid(), { type: 'string', pattern }],
    [instant(), { type: 'string', format: 'date-time' }],
    [asTimestamp(Joi.string()), { type: 'string', format: 'date-time' }],
    [Joi.number(), { type: 'number' }],
    [Joi.number().integer().min(0).max(9).allow(null), { type: ['integer', 'null'], minimum: 0, maximum: 9 }],
    [Joi.boolean(), { type: 'boolean' }],
    [Joi.valid('a', 'b'), { type: 'string', enum: ['a', 'b'] }],
    [Joi.valid('a', null), { anyOf: [{ type: 'string', const: 'a' }, { type: 'null' }] }],
    [Joi.valid(true), { type: 'boolean', const: true }],
    [
      Joi.array().items(Joi.boolean()).min(1).max(2).unique(),
      { type: 'array', items: { type: 'boolean' }, minItems: 1, maxItems: 2, uniqueItems: true },
    ],
    [
      Joi.object().pattern(Joi.string(), Joi.boolean()).min(1),
      { type: 'object', additionalProperties: { type: 'boolean' }, minProperties: 1 },
    ],
    [Joi.any().meta({ as: Joi.boolean() }), { type: 'boolean' }],
    [
      Joi.string().description('Said.').meta({ pattern: '^x' }),
      { type: 'string', minLength: 1, pattern: '^x', description: 'Said.' },
    ],
  ] as const) {
    t.deepEqual(schemaOf(member), schema);
  }
});

test('an object has its members, and no member that is forbidden', (t) => {
  const members = { a: Joi.boolean().required(), b: Joi.boolean(), c: Joi.forbidden() };
  const schema = {
    type: 'object',
    properties: { a: { type: 'boolean' }, b: { type: 'boolean' } },
    required: ['a'],
    additionalProperties: false,
  };
  t.deepEqual(schemaOf(Joi.object(members)), schema);
  const named = schemaOf(model('Thing', members).required().description('A thing.'));
  t.deepEqual(
    { ...named, [NAMED]: undefined },
    { $ref: '#/components/schemas/Thing', description: 'A thing.', [NAMED]: undefined },
  );
  t.deepEqual(named[NAMED], ['Thing', schema]);
});

test('alternatives begin with the case to which no condition applies', (t) => {
  const [one, two] = [Joi.boolean(), Joi.number()];
  // biome-ignore lint/suspicious/noThenProperty: joi's word for it
  const conditional = Joi.alternatives().conditional(Joi.object({ a: 1 }), { then: one, otherwise: two });
  t.deepEqual(schemaOf(conditional), { anyOf: [{ type: 'number' }, { type: 'boolean' }] });
  // biome-ignore lint/suspicious/noThenProperty: joi's word for it
  const partial = Joi.object({ a: two, b: Joi.when('a', { switch: [{ is: 1, then: one }] }) });
  t.throws(() => schemaOf(partial), { message: /needs `as`/ });
  t.deepEqual(schemaOf(Joi.alternatives(one, two).match('one')), { oneOf: [{ type: 'boolean' }, { type: 'number' }] });
});

test('query parameters have their descriptions outside of their schemas', (t) => {
  t.deepEqual(queryOf({ a: Joi.boolean().required().description('Why.') }), [
    { in: 'query', name: 'a', schema: { type: 'boolean' }, description: 'Why.', required: true },
  ]);
});
