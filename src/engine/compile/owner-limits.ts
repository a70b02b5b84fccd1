/** Limits of what the policies of an owner take: all owners share the engine. */
import { formIn, type PatternReading, readPattern } from './pattern.ts';
import { type Policy, typesOf } from './policy.ts';
import { ABOVE, type Amount, type Limit, type OwnedPolicy, overShares, ownerOf, type SetProblem } from './shares.ts';

/**
 * How many entries the policies of one owner, and of all owners, may take in the engine: one for each subject (at least one), type and fixed
 * text, more for a long text, and some for each subject at a target that has texts, because it has tables of its own. With so many of one owner, a change takes
 * about half a second of the gateway's processor time, in slices.
 */
const MAX_OWNER_ENTRIES = 50_000;
const MAX_ENTRIES = 100_000;
/** No change can bring more. */
export const MOST_ENTRIES = ABOVE.ofNobody * MAX_ENTRIES;
const ENTRIES_OF_TABLES = 4;
/** The bytes of a text, in UTF-8, for which the engine takes one entry. */
const ENTRY_BYTES = 40;

/**
 * The memory of stored policies, in bytes, also if they are disabled: their texts in UTF-8, and what the objects around them take. Each replica
 * keeps some copies of all, and each change makes others wait for what it stores.
 */
const MAX_OWNER_BYTES = 12 * 1024 * 1024;
const MAX_ALL_BYTES = 24 * 1024 * 1024;
const BYTES_OF_POLICY = 300;
const BYTES_OF_SUBJECT = 100;

/**
 * The work of the distinct patterns of one owner, and of all owners. A gateway that has just started finds it out again, which takes a second or
 * two for so much.
 */
const MAX_OWNER_WORK = 25_000_000;
const MAX_ALL_WORK = 50_000_000;
/** One policy can be about a thousand subjects. */
export const PLACED_AT_ONCE = 100;
const SUBJECTS_AT_ONCE = 1_000;

/** The work of each pattern of an owner. */
export interface OwnWork {
  readonly patterns: Map<string, number>;
  readonly policyIds: string[];
}

export function addWork(works: Map<string | null, OwnWork>, policy: OwnedPolicy, pattern: string, work: number): void {
  const owner = ownerOf(policy);
  const own: OwnWork = works.get(owner) ?? { patterns: new Map(), policyIds: [] };
  works.set(owner, own);
  own.patterns.set(pattern, work);
  own.policyIds.push(policy.id);
}

const WORK: Limit = {
  ...{ name: 'work', member: 'resource_pattern', ofOwner: MAX_OWNER_WORK, ofAll: MAX_ALL_WORK },
  say: (whose, amount, over) =>
    `The patterns ${whose || 'of no owner'} have too many states: it takes ${amount} steps to make them, ${over}. Use * or + instead of repetitions with numbers.`,
};

export function workProblems(works: ReadonlyMap<string | null, OwnWork>): SetProblem[] {
  const amounts = [...works].map(([owner, { patterns, policyIds }]) => {
    const amount = [...patterns.values()].reduce((sum, work) => sum + work, 0);
    return [owner, { amount, policyIds }] as const;
  });
  return ofOwners(new Map(amounts), WORK);
}

function ofOwners(owners: ReadonlyMap<string | null, Amount>, limit: Limit): SetProblem[] {
  const total = [...owners.values()].reduce((sum, { amount }) => sum + amount, 0);
  return overShares(owners, total, limit);
}

const ENTRIES: Limit = {
  ...{ name: 'entries', member: 'subjects', ofOwner: MAX_OWNER_ENTRIES, ofAll: MAX_ENTRIES },
  say: (whose, amount, over) =>
    `The policies ${whose || 'of no owner'} take ${amount} entries in the engine, ${over}. A policy takes one for each subject, type of resource and fixed text of its pattern, and more for long texts. Use fewer subjects, or a group instead of many roles or users.`,
};

export function* entryProblems(policies: readonly OwnedPolicy[]): Generator<undefined, SetProblem[]> {
  const owners = new Map<string | null, { entries: number; readonly tables: Set<string>; readonly policyIds: string[] }>();
  let placed = 0;
  for (const [i, policy] of policies.entries()) {
    if (i % 20 === 19) yield;
    if (!policy.enabled) continue;
    const owner = ownerOf(policy);
    const own = owners.get(owner) ?? { entries: 0, tables: new Set(), policyIds: [] };
    owners.set(owner, own);
    own.entries += entriesOf(policy);
    // Above the limit, the tables make no difference, and there can be millions of them.
    if (own.entries <= MAX_OWNER_ENTRIES) {
      for (const table of tablesOf(policy)) {
        own.tables.add(table);
        if (++placed % PLACED_AT_ONCE === 0) yield;
      }
    }
    own.policyIds.push(policy.id);
  }
  const amounts = [...owners].map(
    ([owner, { entries, tables, policyIds }]) =>
      [owner, { amount: entries + ENTRIES_OF_TABLES * tables.size, policyIds }] as const,
  );
  return ofOwners(new Map(amounts), ENTRIES);
}

const BYTES: Limit = {
  ...{ name: 'bytes', member: 'subjects', ofOwner: MAX_OWNER_BYTES, ofAll: MAX_ALL_BYTES },
  say: (whose, amount, over) =>
    `The policies ${whose || 'of no owner'} take ${amount} bytes of memory, also those that are disabled, ${over}. Delete some, or use shorter descriptions and fewer subjects.`,
};

export function* byteProblems(policies: readonly OwnedPolicy[]): Generator<undefined, SetProblem[]> {
  const owners = new Map<string | null, { amount: number; descriptions: number; readonly policyIds: string[] }>();
  let placed = 0;
  for (const [i, policy] of policies.entries()) {
    if (i % PLACED_AT_ONCE === PLACED_AT_ONCE - 1) yield;
    const owner = ownerOf(policy);
    const own = owners.get(owner) ?? { amount: 0, descriptions: 0, policyIds: [] };
    owners.set(owner, own);
    own.descriptions += bytesOf(policy.description ?? '');
    own.amount +=
      bytesOf(policy.description ?? '') + bytesOf(policy.name) + bytesOf(policy.resource_pattern ?? '') + BYTES_OF_POLICY;
    for (const { subject_value } of policy.subjects) {
      if (++placed % SUBJECTS_AT_ONCE === 0) yield;
      own.amount += BYTES_OF_SUBJECT + bytesOf(subject_value ?? '');
    }
    own.policyIds.push(policy.id);
  }
  const amounts = [...owners].map(([owner, own]) => {
    const described = 2 * own.descriptions > own.amount;
    return [owner, described ? { ...own, member: 'description' as const } : own] as const;
  });
  return ofOwners(new Map(amounts), BYTES);
}

/** The tables of texts in the engine that the policy needs. Others may need the same. */
function* tablesOf(policy: Policy): Generator<string> {
  const reading = policy.resource_pattern === null ? null : readPattern(policy.resource_pattern);
  if (reading === null || typeof reading === 'string' || reading.kind === 'exact') return;
  for (const { subject_type, subject_value } of policy.subjects)
    for (const type of typesOf(policy)) yield JSON.stringify([policy.target_id, type, subject_type, subject_value]);
}

function entriesOf(policy: Policy): number {
  const { resource_pattern: pattern, subjects } = policy;
  const reading = pattern === null ? null : readPattern(pattern);
  const texts = pattern === null || reading === null || typeof reading === 'string' ? 1 : entriesOfTexts(pattern, reading);
  // Each change also reads the patterns of policies without subjects.
  return Math.max(1, subjects.length) * typesOf(policy).length * Math.max(1, texts);
}

/** A text that is looked up at an edge is there twice. A regular expression is there with each of its texts. */
function entriesOfTexts(pattern: string, reading: PatternReading): number {
  const { shapes, screen } = formIn(reading);
  const lengths =
    shapes === null
      ? (screen.guard?.texts ?? ['']).map((text) => bytesOf(text) + bytesOf(screen.needs) + bytesOf(pattern))
      : shapes.map(({ kind, text }) => (kind === 'exact' ? 1 : 2) * bytesOf(text));
  return lengths.reduce((sum, length) => sum + Math.max(1, Math.ceil(length / ENTRY_BYTES)), 0);
}

const bytesOf = (text: string): number => Buffer.byteLength(text);
