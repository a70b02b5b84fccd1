/** Facts as readers of the log keep them, with the values that follow from their members. Thousands of records can share a fact. Pure. */
import { entered } from '../../base/kept.ts';
import { outcomeBytes, outcomesIn } from './binary-form.ts';
import type { RecordKind, Stamp } from './chain.ts';
import { type ContentFault, factFault } from './fact-contents.ts';
import { COVERED, digestOf, FACT_MEMBERS, type FactKind, factTerms } from './facts.ts';

type Row = Readonly<Record<string, unknown>>;

/** A record of a chain with every column of its table. The record of a list also has the listed names. */
export interface ChainedRecord {
  readonly kind: RecordKind;
  readonly row: Readonly<Record<string, string | number | null>> & Stamp;
  /** The facts that a record of version 2 refers to; null: it is missing. In a line of an export their members are in the row. */
  readonly facts?: readonly (KnownFact | null)[];
  /** The outcomes in a record of version 2, as they are stored; null: they are not what the gateway writes. */
  readonly outcomes?: Buffer | null;
}

/** The facts that a record refers to. */
export const FACTS_OF = {
  decision: ['principal', 'object', 'verdict'],
  shown: ['names'],
  outcome: [],
} as const satisfies Record<RecordKind, readonly FactKind[]>;

/** The digest of a fact that the gateway never wrote. No record with it has a valid MAC. */
const NO_DIGEST = Buffer.alloc(0);

export class KnownFact {
  readonly row: Row;
  readonly #kind: FactKind;
  readonly #isForged: boolean;
  #digest: Buffer | null = null;
  #fault: ContentFault | null | undefined;
  #terms: readonly string[] | null = null;
  #text: string | null = null;

  constructor(kind: FactKind, row: Row, isForged = false) {
    this.#kind = kind;
    this.row = row;
    this.#isForged = isForged;
  }

  get digest(): Buffer {
    this.#digest ??= this.#isForged ? NO_DIGEST : digestOf(this.#kind, this.row);
    return this.#digest;
  }

  /** What is wrong with members that the digest covers by hash. */
  get fault(): ContentFault | null {
    if (this.#fault === undefined) this.#fault = factFault(this.#kind, this.row);
    return this.#fault;
  }

  /** What the index of segments has for each record with this fact. */
  get terms(): readonly string[] {
    this.#terms ??= factTerms(this.row);
    return this.#terms;
  }

  /** The members as a line of an export has them. The name of an object is in the part of the record. */
  get text(): string {
    this.#text ??= textOf(this.#kind, this.row);
    return this.#text;
  }
}

const inLine = (kind: FactKind): readonly string[] => FACT_MEMBERS[kind].filter((member) => member !== 'resource_name');
const textOf = (kind: FactKind, row: Row): string =>
  JSON.stringify(Object.fromEntries(inLine(kind).map((member) => [member, row[member] ?? null]))).slice(1, -1);

/** Returns a record as an export has it: one object, with the members of its facts. */
export function recordText({ kind, row, facts = [], outcomes }: ChainedRecord): string {
  const whole = outcomes === undefined ? row : { ...row, outcomes: outcomesIn(outcomes ?? Buffer.alloc(0)) };
  const own = `{"kind":"${kind}",${JSON.stringify(whole).slice(1)}`;
  if (facts.length === 0) return own;
  const texts = facts.map((fact, i) => fact?.text ?? textOf(FACTS_OF[kind][i] as FactKind, {}));
  return `${own.slice(0, -1)},${texts.join()}}`;
}

/** Returns the record as one row, with the members of its facts. The members of a fact that is missing are null. */
export function flatOf({ kind, row, facts = [] }: ChainedRecord): Row & ChainedRecord['row'] {
  const flat: Record<string, unknown> = {};
  facts.forEach((fact, i) => {
    if (fact !== null) Object.assign(flat, fact.row);
    else for (const member of FACT_MEMBERS[FACTS_OF[kind][i] as FactKind]) flat[member] = null;
  });
  return Object.assign(flat, row);
}

type WholeRecord = ChainedRecord & Required<Pick<ChainedRecord, 'facts'>>;

/** Facts from lines of an export, by their members. */
const known = new Map<string, KnownFact>();
const KEPT = 4_096;
/** Longer facts are not kept, because the names of a list can have 256 KiB. */
const KEPT_CHARACTERS = 4_096;

/**
 * Returns a record of version 2 with its facts. A line of an export has the members of the facts instead. A fact is missing if all members
 * that its digest covers are null.
 */
export function withFacts(record: ChainedRecord): WholeRecord {
  const { kind, row } = record;
  if (record.facts !== undefined) return record as WholeRecord;
  if (kind === 'outcome') return { ...record, facts: [], outcomes: outcomesOf(row as object) };
  const isNamed = row['named'] === 1;
  const factOf = (fact: FactKind): KnownFact | null => {
    const members = Object.fromEntries(FACT_MEMBERS[fact].map((member) => [member, row[member] ?? null]));
    if (isNamed && fact === 'object') members['resource_name'] = null;
    const isMissing = COVERED[fact].every((member) => members[member] === null);
    if (isMissing) return null;
    const text = `${fact} ${JSON.stringify(members)}`;
    const make = () => new KnownFact(fact, members);
    return text.length > KEPT_CHARACTERS ? make() : entered(known, text, make, KEPT);
  };
  return { ...record, facts: FACTS_OF[kind].map(factOf) };
}

/** Returns the outcomes of a line of an export; null: they are not what the gateway writes. */
function outcomesOf({ outcomes }: { readonly outcomes?: unknown }): Buffer | null {
  const isList = Array.isArray(outcomes) && outcomes.every((one) => typeof one === 'object' && one !== null);
  return isList ? outcomeBytes(outcomes) : null;
}
