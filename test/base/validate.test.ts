import test from 'ava';
import Joi from 'joi';
import { AppError } from '../../src/base/errors.ts';
import { instant, readOnlyErrors, text, validate } from '../../src/base/validate.ts';

for (const [text, ms] of [
  ['2026-01-31T12:00:00Z', Date.UTC(2026, 0, 31, 12)],
  ['2028-02-29T00:00+01:00', Date.UTC(2028, 1, 28, 23)],
  ['2026-12-31T23:59:59.999Z', Date.UTC(2026, 11, 31, 23, 59, 59, 999)],
  ['2026-12-31T23:59:59.999000+00:00', Date.UTC(2026, 11, 31, 23, 59, 59, 999)],
] as const) {
  test(`a time: ${text}`, (t) => t.is(validate<unknown>(instant(), text), ms));
}

for (const text of [
  ...['2027-02-29T12:00:00Z', '2026-02-30T12:00:00Z', '2026-04-31T12:00:00Z', '2026-01-00T12:00:00Z', '2026-13-01T12:00:00Z'],
  ...['2026-01-31T25:00:00Z', '2026-01-31', '2026-01-31T12:00:00', '2026-01-31 12:00:00Z', 'now', ''],
]) {
  test(`no time: ${JSON.stringify(text)}`, (t) => {
    t.is(t.throws(() => validate(instant(), text), { instanceOf: AppError })?.code, 'invalid_request');
  });
}

test('a time that was read may be sent back in a different form', (t) => {
  const shown = { created_at: '2026-11-28T11:51:12.119Z', id: 'x' };
  const wrong = (given: object): string[] => readOnlyErrors(['created_at', 'id'], given, shown).map(({ path }) => path);
  t.deepEqual(wrong({ created_at: '2026-11-28T11:51:12.119000+00:00', id: 'x' }), []);
  t.deepEqual(wrong({ created_at: '2026-11-28T11:51:12.118Z', id: '2026-11-28T11:51:12.119Z' }), ['created_at', 'id']);
  t.deepEqual(wrong({ created_at: null }), ['created_at']);
});

test('each mistake of a body is named, but only the first of a body with very many values', (t) => {
  const schema = Joi.object({ kept: Joi.array().items(Joi.number()) });
  const errorsOf = (body: object) =>
    t.throws(() => validate(schema, body), { instanceOf: AppError })?.errors?.map(({ path }) => path);
  const members = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, at) => [`m${at}`, 0]));
  t.is(errorsOf(members(1_000))?.length, 1_000);
  t.deepEqual(errorsOf(members(1_001)), ['m0']);
  t.deepEqual(errorsOf({ kept: Array.from({ length: 9_000 }, () => 'x') }), ['kept.0']);
  const long = Joi.object({ a: text(10).pattern(/^b/), c: Joi.number() });
  const wrong = (length: number) => t.throws(() => validate(long, { a: 'a'.repeat(length), c: 'd' }))?.message;
  t.regex(wrong(1_000) ?? '', /a: must have at most 10 characters; a: .*; c: must be a number/);
  t.regex(
    wrong(1_000_000) ?? '',
    /^a: must have at most 10 characters$/,
    'nor is a very long text looked at by more than one rule',
  );
  t.is(validate<{ kept: number[] }>(schema, { kept: Array.from({ length: 9_000 }, () => 1) }).kept.length, 9_000);
});
