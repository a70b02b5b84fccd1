/** Random policy sets and requests that match: names come from the patterns, callers and targets from the policies. */
import fc from 'fast-check';
import { EFFECTS, type Policy, type PolicySubject, RESOURCE_TYPES } from '../../src/engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../src/engine/decision.ts';
import type { Matches } from './oracle.ts';

/** A pattern in RE2's syntax, the same in JavaScript's, and a name that it matches or nearly does. */
export interface Pattern {
  readonly re2: string;
  readonly js: string;
  readonly sample: string;
}

const piece = (re2: string, sample: string, js = re2): Pattern => ({ re2, js, sample });
const join = (parts: readonly Pattern[], by = ''): Pattern => ({
  re2: parts.map((part) => part.re2).join(by),
  js: parts.map((part) => part.js).join(by),
  sample: by === '|' ? (parts.at(-1)?.sample ?? '') : parts.map((part) => part.sample).join(''),
});
const around = (before: string, part: Pattern, after: string, sample = part.sample): Pattern => ({
  re2: before + part.re2 + after,
  js: before + part.js + after,
  sample,
});

const WORDS = ['get', 'list', 'delete', 'a', 'b', 'issue', '_', '-', '.', '/', ':', '9', 'k', 's', 'K', 'é', 'ß', '日', '😀'];
const escapeText = (text: string): string => text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&');
const word = fc.constantFrom(...WORDS).map((text) => piece(escapeText(text), text));
const DOT = '[^\\n]';
const special = fc.constantFrom(
  piece('.', 'x', DOT),
  piece('.', '\u2028', DOT),
  piece('.*', '', `${DOT}*`),
  piece('.*', 'x_y', `${DOT}*`),
  piece('.*?', 'z', `${DOT}*?`),
  piece('.+', 'q', `${DOT}+`),
  piece('(?s:.*)', 'x\ny', '[^]*'),
  piece('(?s:.)', '\n', '[^]'),
  piece('[a-c]', 'b'),
  piece('[^a-c]', 'd'),
  piece('[^a]', '\n'),
  piece('[_.-]', '-'),
  piece('[[:alpha:]]', 'g', '[A-Za-z]'),
  piece('\\d', '4'),
  piece('\\w', 'w'),
  piece('\\W', '-'),
  piece('[\\d_]', '_'),
  piece('\\s', '\n', '[\\t\\n\\f\\r ]'),
  piece('\\n', '\n'),
  piece('\\x61', 'a'),
  piece('\\x{65E5}', '日', '\\u{65E5}'),
  piece('\\Qa.b\\E', 'a.b', 'a\\.b'),
  piece('(?:)', ''),
  piece('\\b', '', '(?:(?<![A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<=[A-Za-z0-9_])(?![A-Za-z0-9_]))'),
  piece('^', ''),
  piece('$', ''),
  piece('(?m:^)', '\n', '(?<![^\\n])'),
  piece('(?m:$)', '\n', '(?![^\\n])'),
  piece('\\A', '', '^'),
  piece('\\z', '', '$'),
);

/** Repeats a part without an upper bound, unless its length varies: JavaScript could then backtrack almost without end. */
function unbounded(part: Pattern, times: string, sample: string): Pattern {
  const varies = /[*+?{|]/.test(part.js.replaceAll('(?:', '('));
  return around('(?:', part, varies ? ')?' : `)${times}`, varies ? part.sample : sample);
}

const { tree } = fc.letrec<{ tree: Pattern; atom: Pattern; sequence: Pattern }>((tie) => ({
  atom: fc.oneof(
    { maxDepth: 3, depthSize: 'small' },
    { arbitrary: word, weight: 6 },
    { arbitrary: special, weight: 2 },
    { arbitrary: tie('tree').map((part) => around('(?:', part, ')')), weight: 1 },
    { arbitrary: tie('tree').map((part) => around('(', part, ')')), weight: 1 },
    { arbitrary: tie('tree').map((part) => around('(?:', part, ')?', '')), weight: 1 },
    { arbitrary: tie('tree').map((part) => unbounded(part, '*', part.sample + part.sample)), weight: 1 },
    { arbitrary: tie('tree').map((part) => unbounded(part, '+?', part.sample)), weight: 1 },
    { arbitrary: tie('tree').map((part) => around('(?:', part, '){1,2}')), weight: 1 },
    { arbitrary: tie('tree').map((part) => around('(?:', part, '){2}', part.sample + part.sample)), weight: 1 },
  ),
  sequence: fc.array(tie('atom'), { maxLength: 4 }).map((parts) => join(parts)),
  tree: fc.oneof(
    { maxDepth: 3, depthSize: 'small' },
    { arbitrary: tie('sequence'), weight: 4 },
    { arbitrary: fc.array(tie('sequence'), { minLength: 2, maxLength: 3 }).map((parts) => join(parts, '|')), weight: 1 },
  ),
}));

/** Parts between an anchor and a text. Some match any text, and others only seem to. */
const filler = fc.constantFrom(
  piece('.*', '', `${DOT}*`),
  piece('(?s:.*)', 'x\ny', '[^]*'),
  piece('.+', 'q', `${DOT}+`),
  piece('.?', '', `${DOT}?`),
  piece('.{0,2}', 'q', `${DOT}{0,2}`),
  piece('[a-c]*', 'b'),
  piece('[^a]*', '\n'),
  piece('(?m:^)', '', '(?<![^\\n])'),
  piece('(?m:$)', '', '(?![^\\n])'),
);

const FOLDED = piece('(?i)', '', '(?i)');
const anyText = fc.array(word, { minLength: 1, maxLength: 3 }).map((parts) => join(parts));

/** Typical patterns, and arbitrary ones. */
export const pattern: fc.Arbitrary<Pattern> = fc
  .oneof(
    { arbitrary: anyText.map((part) => around('^', part, '$')), weight: 3 },
    { arbitrary: anyText.map((part) => around('^', part, '')), weight: 2 },
    { arbitrary: anyText.map((part) => around('', part, '$')), weight: 1 },
    { arbitrary: anyText, weight: 2 },
    { arbitrary: anyText.map((part) => join([piece('^', ''), part, piece('.*', 'x', `${DOT}*`), piece('$', '')])), weight: 2 },
    { arbitrary: anyText.map((part) => join([piece('^', ''), piece('.*', 'x', `${DOT}*`), part, piece('$', '')])), weight: 1 },
    { arbitrary: anyText.map((part) => join([piece('^', ''), piece('.*', 'x', `${DOT}*`), part])), weight: 1 },
    {
      arbitrary: fc.array(anyText, { minLength: 2, maxLength: 3 }).map((parts) => around('^(?:', join(parts, '|'), ')$')),
      weight: 2,
    },
    {
      arbitrary: fc.array(anyText, { minLength: 2, maxLength: 3 }).map((parts) => around('^(', join(parts, '|'), ')')),
      weight: 1,
    },
    { arbitrary: fc.tuple(filler, anyText).map((parts) => around('^', join(parts), '$')), weight: 1 },
    { arbitrary: fc.tuple(anyText, filler).map((parts) => around('^', join(parts), '$')), weight: 1 },
    { arbitrary: fc.tuple(filler, anyText, filler).map((parts) => join(parts)), weight: 1 },
    { arbitrary: filler.map((part) => around('^', part, '$')), weight: 1 },
    { arbitrary: fc.tuple(anyText, special).map((parts) => around('^', join(parts), '$')), weight: 1 },
    { arbitrary: anyText.map((part) => around('^(?:', part, '){2}$', part.sample + part.sample)), weight: 1 },
    { arbitrary: tree, weight: 4 },
    { arbitrary: tree.map((part) => around('^(?:', part, ')$')), weight: 2 },
    { arbitrary: anyText.map((part) => around('^', join([FOLDED, part]), '$')), weight: 1 },
  )
  .filter(({ re2, js }) => re2 !== '' && (!js.includes('(?i)') || isAscii(re2)));

const isAscii = (text: string): boolean => [...text].every((character) => character <= '\u007f');

/** Matches generated patterns with the regular expressions of JavaScript. */
export function matcher(patterns: readonly Pattern[]): Matches {
  const compiled = new Map(
    patterns.map(({ re2, js }) => [re2, new RegExp(js.replaceAll('(?i)', ''), js.includes('(?i)') ? 'iu' : 'u')] as const),
  );
  return (re2, name) => {
    const regex = compiled.get(re2);
    if (regex === undefined) throw new Error(`No reading of ${re2}`);
    return regex.test(name);
  };
}

export const TARGETS = ['t1', 't1', '__proto__'] as const;
const NAMES = ['dev', 'dev', '__proto__', 'Dev'] as const;

export const subject: fc.Arbitrary<PolicySubject> = fc.oneof(
  fc.constant<PolicySubject>({ id: 's', subject_type: 'everyone', subject_value: null }),
  fc.record<PolicySubject>({
    id: fc.constant('s'),
    subject_type: fc.constantFrom('role', 'group', 'user'),
    subject_value: fc.constantFrom(...NAMES),
  }),
);

export const principal: fc.Arbitrary<PrincipalFacts> = fc.record({
  sub: fc.constantFrom(...NAMES),
  role: fc.constantFrom(...NAMES),
  groups: fc.array(fc.constantFrom(...NAMES), { maxLength: 3 }),
});

const policy = (pool: readonly Pattern[], id: string): fc.Arbitrary<Policy> =>
  fc.record({
    id: fc.constant(id),
    name: fc.constantFrom('one', 'two'),
    description: fc.constant(null),
    target_id: fc.constantFrom(null, null, ...TARGETS),
    resource_type: fc.constantFrom('all', 'tool', 'tool', 'resource', 'prompt'),
    resource_pattern: fc.constantFrom(null, ...pool.map(({ re2 }) => re2)),
    effect: fc.constantFrom(...EFFECTS),
    priority: fc.constantFrom(0, 0, 1, 2, -1, -2_147_483_648, 2_147_483_647),
    enabled: fc.constantFrom(true, true, true, true, false),
    subjects: fc.oneof(
      { arbitrary: fc.array(subject, { minLength: 1, maxLength: 3 }), weight: 9 },
      { arbitrary: fc.constant([]), weight: 1 },
    ),
    created_at: fc.constant(0),
    updated_at: fc.constant(0),
  });

export interface Request {
  readonly principal: PrincipalFacts;
  readonly target: string;
  readonly object: NamedObject;
}

export interface World {
  readonly patterns: readonly Pattern[];
  readonly policies: readonly Policy[];
  readonly requests: readonly Request[];
}

const request = (pool: readonly Pattern[]): fc.Arbitrary<Request> => {
  const sampled = fc.constantFrom(...pool.map(({ sample }) => sample));
  const changed = fc.tuple(fc.constantFrom('', '', 'x', '\n'), sampled, fc.constantFrom('', '', 'y', '\n', '\n\n'));
  const name = fc.oneof(
    sampled,
    changed.map((parts) => parts.join('')),
    sampled.map((text) => text.toUpperCase()),
    fc.constantFrom('', 'get_issue', 'K', 'ſ', '\u212a', '\0'),
  );
  return fc.record({
    principal,
    target: fc.constantFrom(...TARGETS, 't2'),
    object: fc.record({ resource_type: fc.constantFrom('tool' as const, ...RESOURCE_TYPES), resource_name: name }),
  });
};

export const world = (size: { maxPolicies: number; requests: number }): fc.Arbitrary<World> =>
  fc.array(pattern, { minLength: 1, maxLength: 5 }).chain((patterns) =>
    fc.integer({ min: 0, max: size.maxPolicies }).chain((count) =>
      fc.record({
        patterns: fc.constant(patterns),
        policies: fc.tuple(
          ...Array.from({ length: count }, (_, i) => policy(patterns, `p${String.fromCharCode(97 + ((i * 7) % 26))}${i}`)),
        ),
        requests: fc.array(request(patterns), { minLength: size.requests, maxLength: size.requests }),
      }),
    ),
  );
