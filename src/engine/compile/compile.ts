/**
 * Compiles policies to the document that the Rego in `rego/` reads. Pure and canonical: the same policies give the same bytes, in
 * any order. The head of `rego/gateway.rego` describes the form of the document.
 */
import { createHash } from 'node:crypto';
import { atOnce, sortedInSteps } from '../../base/turns/slices.ts';
import { edgeOf, type Screen, type Shape } from './lower.ts';
import { formIn, type PatternCheck, readPattern } from './pattern.ts';
import {
  EFFECTS,
  type Effect,
  type Policy,
  type PolicyResourceType,
  type PolicySubject,
  RESOURCE_TYPES,
  type ResourceType,
  SUBJECT_TYPES,
  type SubjectType,
} from './policy.ts';

/** A policy as `rego/reference.rego` reads it. */
export interface ReadPolicy {
  readonly effect: Effect;
  readonly id: string;
  readonly name: string;
  readonly pattern: string | null;
  readonly priority: number;
  /** `["everyone"]`, or type and value. */
  readonly subjects: readonly (readonly string[])[];
  readonly target: string | null;
  readonly type: PolicyResourceType;
}

/** The position of a policy in the order of evaluation, from 0. The matching policy with the least rank decides. */
export type Rank = number;
type Table<T> = Record<string, T>;

export interface Bucket {
  any?: Rank;
  exact?: Table<Rank>;
  /** Groups by length. */
  edges?: EdgeGroup[];
  tests?: NameTest[];
}

/**
 * `[least rank, length, table]`. The table leads from characters to the tests of the names that begin with them, or that end with
 * them if the length is negative.
 */
export type EdgeGroup = readonly [Rank, length: number, Table<NameTest[]>];

/** A test of a name. Every name that matches contains the text. Lists of tests are sorted by rank. */
export type NameTest = readonly [Rank, PlainForm, text: string] | RegexTest;
export type RegexTest = readonly [Rank, 'regex', text: string, pattern: string];
type PlainForm = `${'' | 'line '}${Exclude<Shape['kind'], 'exact'>}`;

export type BySubject<T> = Readonly<Record<SubjectType, Table<T>>>;
export type IndexNode = { readonly use: BySubject<Rank> } & Readonly<Record<ResourceType, BySubject<Bucket>>>;

export interface CompiledDocument {
  readonly index: { readonly every: IndexNode; readonly targets: Readonly<Table<IndexNode>> };
  /** Effect and id by rank. */
  readonly order: readonly (readonly [Effect, string])[];
  /** The policies by rank. The reference rule reads only these. */
  readonly policies: readonly ReadPolicy[];
  /** One more than the last rank: no policy matches. */
  readonly unmatched: Rank;
}

/** A problem in a stored policy that the API would have refused. Decisions continue, with its strictest possible meaning. */
export interface Finding {
  readonly policyId: string;
  readonly policyName: string;
  readonly message: string;
}

export interface Compiled {
  readonly document: CompiledDocument;
  /** Canonical JSON: sorted members, no white space. */
  readonly json: string;
  /** SHA-256 (hex) of `json`. */
  readonly hash: string;
  /** In the order of ids. */
  readonly findings: readonly Finding[];
}

/** How much is done between two pauses. Placing a subject of a policy can take 64 texts. */
const POLICIES_AT_ONCE = 50;
const SUBJECTS_AT_ONCE = 20;
const SUBJECTS_READ_AT_ONCE = 1_000;

export interface CompileOptions {
  /** Asks the engine that will run the patterns, as the API does. */
  readonly checkPattern: PatternCheck;
}

export function compile(policies: readonly Policy[], options: CompileOptions): Compiled {
  return atOnce(compileInSteps(policies, options));
}

/** Like `compile`, but pauses every few hundred policies so that the caller can let other work run. */
export function* compileInSteps(policies: readonly Policy[], { checkPattern }: CompileOptions): Generator<undefined, Compiled> {
  const findings: Finding[] = [];
  const read = yield* readInSteps(policies, (policy) =>
    readStrictly(policy, checkPattern, (message) => findings.push({ policyId: policy.id, policyName: policy.name, message })),
  );

  const index = { every: newNode(), targets: newTable<IndexNode>() };
  for (const [rank, policy] of read.entries()) {
    if (rank % POLICIES_AT_ONCE === 0) yield;
    let node = index.every;
    if (policy.target !== null) {
      node = index.targets[policy.target] ?? newNode();
      index.targets[policy.target] = node;
    }
    yield* insert(node, policy, rank);
  }
  const document: CompiledDocument = {
    index,
    order: read.map(({ effect, id }) => [effect, id]),
    policies: read,
    unmatched: read.length,
  };
  yield;

  const hash = createHash('sha256');
  let json = '';
  let part = '';
  for (const piece of canonicalPieces(document)) {
    if (piece === undefined) {
      yield;
      continue;
    }
    part += piece;
    if (part.length < PART_LENGTH) continue;
    json += part;
    hash.update(part);
    part = '';
    yield;
  }
  json += part;
  hash.update(part);
  return { document, json, hash: hash.digest('hex'), findings: findings.sort((a, b) => compareText(a.policyId, b.policyId)) };
}

/** Returns the enabled policies in the order of evaluation. Pauses like `compileInSteps`. `read` returns null if a policy grants nothing. */
export function* readInSteps(
  policies: readonly Policy[],
  read: (policy: Policy) => ReadPolicy | null,
): Generator<undefined, readonly ReadPolicy[]> {
  const found: ReadPolicy[] = [];
  let subjects = 0;
  for (const [i, policy] of policies.entries()) {
    subjects += policy.subjects.length;
    if (i % POLICIES_AT_ONCE === POLICIES_AT_ONCE - 1 || subjects > SUBJECTS_READ_AT_ONCE) {
      subjects = 0;
      yield;
    }
    const reading = policy.enabled ? read(policy) : null;
    if (reading !== null) found.push(reading);
  }
  yield;
  return yield* sortedInSteps(found, (a, b) => byReadingOrder(a, b) < 0);
}

/**
 * Returns the policy as the rules will read it. Each unreadable part is a finding. A deny then covers everything that it could
 * have meant. An allow then grants nothing: the function returns null, or omits the unreadable subject.
 */
export function readStrictly(
  policy: Policy,
  checkPattern: PatternCheck,
  report: (message: string) => void = () => {},
): ReadPolicy | null {
  let whole = true;
  const isKnown = EFFECTS.includes(policy.effect);
  if (!isKnown) report('The effect is neither allow nor deny, so it counts as deny.');
  const effect = isKnown ? policy.effect : 'deny';
  /** Returns `value` if it is good, otherwise the widest possible value. */
  function widen<T>(good: boolean, value: T, widest: T, what: string): T {
    if (good) return value;
    whole = false;
    report(
      `${what} ${effect === 'deny' ? 'It is a deny, so it covers everything that it could mean.' : 'It is an allow, so it grants nothing.'}`,
    );
    return widest;
  }

  const { priority, resource_type, resource_pattern, target_id } = policy;
  const problem = resource_pattern === null ? null : checkPattern(resource_pattern);
  const reading: ReadPolicy = {
    effect,
    id: wellFormed(policy.id),
    name: wellFormed(policy.name),
    pattern: widen(problem === null, resource_pattern, null, `The pattern cannot be compiled. ${problem}`),
    priority: widen((priority | 0) === priority, priority, 0x7fffffff, 'The priority is not a 32-bit integer.'),
    subjects: [],
    target: widen(target_id === null || isText(target_id), target_id, null, 'The target is not a valid id.'),
    type: widen(
      resource_type === 'all' || RESOURCE_TYPES.includes(resource_type),
      resource_type,
      'all',
      'The resource type is unknown.',
    ),
  };
  if (!whole && effect === 'allow') return null;

  const subjects = new Map<string, string[]>();
  for (const subject of policy.subjects) {
    const key = widen(isSubject(subject), subjectKey(subject), ['everyone'], 'A subject is invalid.');
    if (effect === 'deny' || isSubject(subject)) subjects.set(JSON.stringify(key), key);
  }
  return { ...reading, subjects: [...subjects.keys()].sort(compareText).map((key) => subjects.get(key) ?? []) };
}

function isSubject({ subject_type, subject_value }: PolicySubject): boolean {
  return subject_type === 'everyone' ? subject_value === null : SUBJECT_TYPES.includes(subject_type) && isText(subject_value);
}

const subjectKey = ({ subject_type, subject_value }: PolicySubject): string[] =>
  subject_value === null ? [subject_type] : [subject_type, subject_value];

const isText = (value: unknown): value is string => typeof value === 'string' && !/\p{Surrogate}/u.test(value);
const wellFormed = (text: string): string => text.replace(/\p{Surrogate}/gu, '\ufffd');

/** Law 1: the order of evaluation. */
export function inReadingOrder(a: ReadingOrder, b: ReadingOrder): number {
  if (a.priority !== b.priority) return b.priority - a.priority;
  if (a.effect !== b.effect) return a.effect === 'deny' ? -1 : 1;
  return compareText(a.id, b.id);
}

type ReadingOrder = Pick<ReadPolicy, 'priority' | 'effect' | 'id'>;

/** Ids are unique. Whole policies are compared only so that a table without unique ids cannot change the order. */
const byReadingOrder = (a: ReadPolicy, b: ReadPolicy): number => inReadingOrder(a, b) || compareText(canonical(a), canonical(b));

const compareText = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** The table has no prototype, so that names such as `__proto__` are ordinary keys. */
const newTable = <T>(): Table<T> => Object.create(null) as Table<T>;
const newSubjects = <T>(): BySubject<T> => ({ everyone: newTable(), group: newTable(), role: newTable(), user: newTable() });
const newNode = (): IndexNode => ({ prompt: newSubjects(), resource: newSubjects(), tool: newSubjects(), use: newSubjects() });

/** Call this in the order of evaluation: what a node already contains decides first. */
function* insert(node: IndexNode, policy: ReadPolicy, rank: Rank): Generator<undefined, void> {
  const places = placesOf(policy.pattern, rank);
  const speaksOfTarget = policy.effect === 'allow' || (policy.type === 'all' && policy.pattern === null);
  const types = policy.type === 'all' ? RESOURCE_TYPES : [policy.type];
  for (const [at, [kind, value = '']] of (policy.subjects as readonly [SubjectType, string?][]).entries()) {
    if (at % SUBJECTS_AT_ONCE === SUBJECTS_AT_ONCE - 1) yield;
    if (speaksOfTarget) node.use[kind][value] ??= rank;
    for (const type of types) {
      node[type][kind][value] ??= {};
      const bucket = node[type][kind][value];
      if (bucket.any === undefined) for (const place of places) put(bucket, place, rank);
    }
  }
}

/** Where a pattern is in a bucket. It is the same for all subjects of a policy, which can be a thousand. */
type Place =
  | { readonly in: 'any' }
  | { readonly in: 'exact'; readonly text: string }
  | { readonly in: 'tests'; readonly test: NameTest }
  | { readonly in: 'edges'; readonly length: number; readonly key: string; readonly test: NameTest };

function placesOf(pattern: string | null, rank: Rank): readonly Place[] {
  if (pattern === null) return [{ in: 'any' }];
  const reading = readPattern(pattern);
  // This cannot happen: `readStrictly` has already accepted the pattern.
  if (typeof reading === 'string') throw new Error(reading);
  const { shapes, screen } = formIn(reading);
  return shapes === null ? placesOfRegex(pattern, screen, rank) : shapes.map((shape) => placeOf(shape, rank));
}

function placeOf({ kind, text, oneLine }: Shape, rank: Rank): Place {
  if (kind === 'exact') return { in: 'exact', text };
  if (text === '' && !oneLine) return { in: 'any' };
  const test: NameTest = [rank, oneLine ? `line ${kind}` : kind, text];
  if (kind === 'contains' || text === '') return { in: 'tests', test };
  return { in: 'edges', ...edgeOf(text, kind === 'prefix' ? 'start' : 'end'), test };
}

function placesOfRegex(pattern: string, { guard, needs }: Screen, rank: Rank): readonly Place[] {
  const test = [rank, 'regex', needs, pattern] as const;
  if (guard === null) return [{ in: 'tests', test }];
  return guard.texts.map((text) => ({ in: 'edges', ...edgeOf(text, guard.side), test }));
}

function put(bucket: Bucket, place: Place, rank: Rank): void {
  switch (place.in) {
    case 'any':
      bucket.any ??= rank;
      return;
    case 'exact':
      bucket.exact ??= newTable();
      bucket.exact[place.text] ??= rank;
      return;
    case 'tests':
      bucket.tests ??= [];
      addTest(bucket.tests, place.test);
      return;
    case 'edges': {
      bucket.edges ??= [];
      let group = bucket.edges.find((known) => known[1] === place.length);
      if (group === undefined) {
        group = [rank, place.length, newTable()];
        bucket.edges.push(group);
      }
      group[2][place.key] ??= [];
      addTest(group[2][place.key] as NameTest[], place.test);
    }
  }
}

/** The tests of each long list, without their ranks. */
const held = new WeakMap<NameTest[], Set<string>>();
/** Shorter lists are searched. */
const LONG = 16;

/** The same test with a later rank could never decide. */
function addTest(list: NameTest[], test: NameTest): void {
  if (list.length < LONG) {
    if (!list.some((known) => known[1] === test[1] && known[2] === test[2] && known[3] === test[3])) list.push(test);
    return;
  }
  const known = held.get(list) ?? new Set(list.map(keyOf));
  held.set(list, known);
  const key = keyOf(test);
  if (!known.has(key)) list.push(test);
  known.add(key);
}

const keyOf = (test: NameTest): string => test.slice(1).join('\0');

/** So many characters are hashed at once. */
const PART_LENGTH = 16 * 1024;

/** JSON with members sorted by code unit and without white space (RFC 8785, as far as integers and well-formed texts need it). */
function canonical(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  let json = '';
  if (Array.isArray(value)) {
    for (const element of value) json += `${json === '' ? '[' : ','}${canonical(element)}`;
    return json === '' ? '[]' : `${json}]`;
  }
  const members = value as Readonly<Record<string, unknown>>;
  // Without a function, `sort` compares code units.
  for (const key of Object.keys(members).sort())
    json += `${json === '' ? '{' : ','}${JSON.stringify(key)}:${canonical(members[key])}`;
  return json === '' ? '{}' : `${json}}`;
}

/** Yields `canonical(document)` in pieces, and undefined for a pause. */
function* canonicalPieces({ index, order, policies, unmatched }: CompiledDocument): Generator<string | undefined> {
  yield '{"index":';
  yield* piecesOf(index);
  yield ',"order":';
  yield* piecesOf(order);
  yield ',"policies":';
  yield* piecesOf(policies);
  yield `,"unmatched":${unmatched}}`;
}

/** Yields `canonical(value)` in pieces: one policy can apply to a thousand subjects, and one subject can have all policies. */
function* piecesOf(value: unknown): Generator<string | undefined> {
  if (typeof value !== 'object' || value === null) return yield canonical(value);
  const isList = Array.isArray(value);
  yield isList ? '[' : '{';
  if (isList) {
    for (const [i, element] of value.entries()) yield `${i === 0 ? '' : ','}${canonical(element)}`;
  } else {
    const members = value as Readonly<Record<string, unknown>>;
    // `Object.entries` takes several times as long as `Object.keys`.
    const keys = yield* sortedInSteps(Object.keys(members), (a, b) => a < b);
    for (const [i, key] of keys.entries()) {
      yield `${i === 0 ? '' : ','}${JSON.stringify(key)}:`;
      yield* piecesOf(members[key]);
    }
  }
  yield isList ? ']' : '}';
}
