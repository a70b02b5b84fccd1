/** Policy tests as files that people write, review and keep in git: principals, requests, and the expected answers. Pure. */
import Joi from 'joi';
import { text } from '../../base/validate.ts';
import { EFFECTS, type Effect, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../engine/decision.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { POLICY_LIMITS } from '../schema.ts';
import { type PolicyFileError, readStrictYaml, type StrictYaml } from './yaml.ts';

export interface Expectation {
  readonly effect: Effect;
  /** The name of the policy that must decide, or of its file without `.yaml`; null: no policy may match; undefined: any. */
  readonly policy?: string | null;
}

/** One principal with one request. */
export interface TestCase {
  readonly file: string;
  /** The line of the expectation, or of the test if no expectation covers this case; from 1. */
  readonly line: number;
  readonly column: number;
  readonly test: string;
  /** The name that the file uses. */
  readonly principal: string;
  readonly request: string;
  readonly facts: PrincipalFacts;
  /** The name of the target. */
  readonly target: string;
  /** null: may the principal use the target at all? */
  readonly object: NamedObject | null;
  readonly expected: Expectation;
}

export const CASES_PER_FILE = 10_000;
/** More errors would not help. */
const ERRORS_IN_FILE = 200;
/** The maximum number of principals, requests, tests and expectations each. */
const MAX_ITEMS = 1_000;

interface WrittenPrincipal {
  role: string;
  groups?: string[];
  user?: string;
}

type WrittenRequest = { target?: string } & Partial<Record<(typeof RESOURCE_TYPES)[number], string>>;

interface WrittenExpectation {
  principals?: string[];
  requests?: string[];
  effect: Effect;
  policy?: string | null;
}

interface WrittenTest {
  name: string;
  principals?: string[];
  requests?: string[];
  expect?: WrittenExpectation[];
}

interface Written {
  target?: string;
  principals: Record<string, WrittenPrincipal>;
  requests: Record<string, WrittenRequest>;
  tests: WrittenTest[];
}

/** The maximum lengths that requests accept. */
const NAME_MAX = 256;
export const URI_MAX = 2_048;

/** The form of the names that a file gives to its principals and requests. */
const LABEL = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}$/;
const labels = Joi.array().items(Joi.string()).min(1).max(MAX_ITEMS).unique();
const labelsOfFile = labels.description('Default: all of the file.');
const labelsOfTest = labels.description('Default: all of the test.');
const byLabel = (item: Joi.Schema) =>
  Joi.object().pattern(LABEL, item).min(1).max(MAX_ITEMS).required().messages({
    'object.unknown':
      'is not an allowed name: use at most 63 letters, digits, spaces, ".", "_" and "-", and begin with a letter or digit',
  });
const target = Joi.string().pattern(TARGET_NAME).messages({ 'string.pattern.base': 'must be the name of a target' });
const value = text(POLICY_LIMITS.subjectValue);

const principal = Joi.object<WrittenPrincipal>({
  role: value.required().description('The role of the caller.'),
  groups: Joi.array().items(value).max(MAX_ITEMS).unique().description('The groups of the caller.'),
  user: value.description('The user id of the caller. Default: an id that no policy names.'),
});
const requestForms = 'must name a tool, a resource or a prompt, or only a `target` to ask whether it may be used at all';
const request = Joi.object<WrittenRequest>({
  target: target.description('The name of a target. Without an object, the test asks whether the target may be used at all.'),
  tool: text(NAME_MAX).description('The name of a tool.'),
  resource: text(URI_MAX).description('The URI of a resource.'),
  prompt: text(NAME_MAX).description('The name of a prompt.'),
})
  .oxor(...RESOURCE_TYPES)
  .or('target', ...RESOURCE_TYPES)
  .messages({ 'object.oxor': requestForms, 'object.missing': requestForms })
  .meta({
    minProperties: 1,
    allOf: RESOURCE_TYPES.flatMap((one, i) => RESOURCE_TYPES.slice(i + 1).map((other) => ({ not: { required: [one, other] } }))),
  });
const expectation = Joi.object<WrittenExpectation>({
  principals: labelsOfTest,
  requests: labelsOfTest,
  effect: Joi.valid(...EFFECTS)
    .required()
    .description('What the engine must answer.'),
  policy: text(POLICY_LIMITS.name)
    .allow(null)
    .description('The policy that must decide: its name, or the name of its file without .yaml. null: no policy matches.'),
});
export const testFileForm = Joi.object<Written>({
  target: target.description('The target of every request that does not name one.'),
  principals: byLabel(principal).description('Callers, under names that you choose.'),
  requests: byLabel(request).description('The requests, under names that you choose.'),
  tests: Joi.array()
    .items(
      Joi.object<WrittenTest>({
        name: text(POLICY_LIMITS.name).required().description('What the test is about.'),
        principals: labelsOfFile,
        requests: labelsOfFile,
        expect: Joi.array()
          .items(expectation)
          .max(MAX_ITEMS)
          .description('Every principal makes every request. A request without an expectation here must be denied.'),
      }),
    )
    .min(1)
    .max(MAX_ITEMS)
    .required()
    .description('Tables of principals and requests.'),
})
  .required()
  .messages({
    'object.base': 'must be a test file with the keys principals, requests and tests',
    'object.unknown': 'is not an allowed key',
  });

type Path = readonly (string | number)[];

/** As strict as `parsePolicyFile`. A case without an expectation must be denied, by any policy or by none. */
export function parseTestFile(
  text: string,
  file: string,
): { readonly cases: readonly TestCase[] } | { readonly errors: readonly PolicyFileError[] } {
  const read = readStrictYaml(text, file, testFileForm, 'only one set of tests per file is allowed');
  if ('errors' in read) return read;
  const wrong = wrongRequests(read);
  if (wrong.length > 0) return { errors: wrong };
  const errors: PolicyFileError[] = [];
  const cases: TestCase[] = [];
  const all = { principals: Object.keys(read.value.principals), requests: Object.keys(read.value.requests) };
  // Wrong tests count, too: to find their errors takes as long.
  let left = CASES_PER_FILE;
  for (const [i, written] of read.value.tests.entries()) {
    if (errors.length >= ERRORS_IN_FILE) break;
    const { principals, requests } = { ...all, ...written };
    const size = principals.length * requests.length;
    if (size > left) {
      errors.push(read.errorAt(['tests', i], `makes more than ${CASES_PER_FILE} cases in this file (principals times requests)`));
      continue;
    }
    left -= size;
    const made = casesOf(written, ['tests', i], file, read);
    for (const each of 'errors' in made ? made.errors : []) errors.push(each);
    for (const each of 'cases' in made ? made.cases : []) cases.push(each);
  }
  return errors.length > 0 ? { errors } : { cases };
}

/** Each request is checked once: a file can have a thousand tests of all its requests. */
function wrongRequests({ value: whole, errorAt }: StrictYaml<Written>): PolicyFileError[] {
  const used = new Set(whole.tests.flatMap(({ requests = Object.keys(whole.requests) }) => requests));
  return Object.entries(whole.requests)
    .filter(([name, { target = whole.target }]) => target === undefined && used.has(name))
    .map(([name]) => errorAt(['requests', name], 'names no target, and the file has no default target'));
}

function casesOf(
  written: WrittenTest,
  path: Path,
  file: string,
  { value: whole, errorAt }: StrictYaml<Written>,
): { readonly cases: readonly TestCase[] } | { readonly errors: readonly PolicyFileError[] } {
  const errors: PolicyFileError[] = [];
  /** Returns the names in this list; without a list, all names. */
  function named(
    kind: 'principals' | 'requests',
    list: readonly string[] | undefined,
    at: Path,
    all: readonly string[],
  ): string[] {
    if (list === undefined) return [...all];
    const known = new Set(all);
    for (const [i, name] of list.entries()) {
      if (errors.length >= ERRORS_IN_FILE) break;
      if (!known.has(name)) errors.push(errorAt([...at, kind, i], `${JSON.stringify(name)} is not one of the ${kind}`));
    }
    return [...list];
  }
  const principals = named('principals', written.principals, path, Object.keys(whole.principals));
  const requests = named('requests', written.requests, path, Object.keys(whole.requests));

  const key = (who: string, what: string): string => JSON.stringify([who, what]);
  const expected = new Map<string, { readonly expected: Expectation; readonly location: PolicyFileError }>();
  for (const [i, { effect, policy, ...of }] of (written.expect ?? []).entries()) {
    const at = [...path, 'expect', i];
    const location = errorAt(at, '');
    const what = named('requests', of.requests, at, requests);
    const whom = named('principals', of.principals, at, principals);
    if (errors.length > 0) continue;
    for (const who of whom) {
      for (const name of what) {
        if (expected.has(key(who, name))) {
          return { errors: [errorAt(at, `repeats the expectation for ${who} with ${name}`)] };
        }
        expected.set(key(who, name), { expected: policy === undefined ? { effect } : { effect, policy }, location });
      }
    }
  }
  if (errors.length > 0) return { errors };

  const here = errorAt(path, '');
  return {
    cases: principals.flatMap((who) => {
      const facts = factsOf(whole.principals[who]);
      return requests.map((what): TestCase => {
        const { expected: wanted = { effect: 'deny' } as const, location = here } = expected.get(key(who, what)) ?? {};
        const { target = whole.target ?? '', ...object } = whole.requests[what] ?? {};
        return {
          ...{ file, line: location.line, column: location.column, test: written.name, principal: who, request: what },
          ...{ facts, target, object: objectOf(object), expected: wanted },
        };
      });
    }),
  };
}

const factsOf = (written: WrittenPrincipal | undefined): PrincipalFacts => ({
  sub: written?.user ?? '',
  role: written?.role ?? '',
  groups: written?.groups ?? [],
});

function objectOf(written: Omit<WrittenRequest, 'target'>): NamedObject | null {
  for (const type of RESOURCE_TYPES) {
    const name = written[type];
    if (name !== undefined) return { resource_type: type, resource_name: name };
  }
  return null;
}
