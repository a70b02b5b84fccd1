/**
 * Finds the fact for each part of a record. The book computes a fact once a day, and remembers it together with whether it is stored. The
 * number of remembered facts is limited.
 */
import { SET_BACK_MS } from '../../base/ids.ts';
import { entered, keep } from '../../base/kept.ts';
import { digestOfText } from '../chain/binary-form.ts';
import { type ChainKey, newSalt, personHash, timeOf } from '../chain/chain.ts';
import { dayOf, digestOf, type FactKind, type FactRows, keyOf } from '../chain/facts.ts';
import type { DecisionRecord } from './records.ts';

export interface Fact<K extends FactKind = FactKind> {
  readonly kind: K;
  readonly row: FactRows[K];
  readonly digest: Buffer;
  /** Hexadecimal digits. */
  readonly key: string;
  /** Set when a commit with this fact is durable. Until then each commit that refers to it stores it. */
  isStored: boolean;
}

/** The facts of one decision. */
export interface DecisionFacts {
  readonly principal: Fact<'principal'>;
  readonly object: Fact<'object'>;
  readonly verdict: Fact<'verdict'>;
  /** The name of the resource if the record itself has it, because the name was not used before; otherwise null. */
  readonly ownName: string | null;
}

/** The record of a decision as it will be stored. Its groups are JSON. */
export type StoredRecord = Omit<DecisionRecord, 'user_groups'> & { readonly user_groups: string };

/** How many facts of each kind are kept, and how many names are known to have been used once. */
const KEPT = 10_000;
/** How many characters the kept sets of listed names may have: a target can answer with a different long list each time. */
const KEPT_CHARACTERS = 8 * 1024 * 1024;
/** How far behind the clocks of other replicas this process may be. */
const SKEW_MS = 30_000;
/** The change feed has at most this many characters of a user id. */
export const MAX_OBJECT_ID = 64;
/** A longer text is remembered by its hash. */
const LONG = 64;

const shortOf = (text: string): string => (text.length <= LONG ? text : digestOfText(text).toString('latin1'));

export class FactBook {
  /** How often all facts were forgotten. A commit meanwhile may refer to facts that the database lacks. */
  forgotten = 0;
  readonly #key: ChainKey;
  #day = -1;
  #principals = new Map<string, Fact<'principal'>>();
  #objects = new Map<string, Fact<'object'>>();
  #verdicts = new Map<string, Fact<'verdict'>>();
  #names = new Map<string, Fact<'names'>>();
  #nameCharacters = 0;
  /**
   * Users who have changed. If the clock is late, the next fact of an erased user looks older than the erasure, so an hour later it is
   * erased too. Records use that fact for SKEW_MS only. Otherwise, the records of a whole day would lose their data.
   */
  #changed = new Map<string, true>();
  /**
   * A name gets a fact at its second use, so that a million random names make no facts. When the set is full, it becomes `#olderUsedOnce`,
   * because it takes long to remove single names from a large set.
   */
  #usedOnce = new Set<string>();
  #olderUsedOnce = new Set<string>();

  constructor(key: ChainKey) {
    this.#key = key;
  }

  decision(record: StoredRecord): DecisionFacts {
    this.#turnTo(dayOf(record.id));
    const name = record.resource_name;
    const ownName = name !== null && !this.#wasUsed(name) ? name : null;
    return {
      principal: this.#principal(record),
      object: this.#object(record, ownName === null ? name : null),
      verdict: this.#verdict(record),
      ownName,
    };
  }

  /** `names` is canonical JSON. */
  names(decisionId: string, names: string): Fact<'names'> {
    this.#turnTo(dayOf(decisionId));
    const set_hash = digestOfText(names).toString('hex');
    const known = this.#names.get(set_hash);
    if (known !== undefined) return known;
    this.#nameCharacters += names.length;
    if (this.#nameCharacters > KEPT_CHARACTERS) {
      this.#names.clear();
      this.#nameCharacters = names.length;
    }
    return keep(this.#names, set_hash, this.#fact('names', { set_hash, names }), KEPT);
  }

  /**
   * Forgets the principals with these user ids, because the data of an erased person must not be stored again. null: forgets all facts,
   * because the database may have lost commits: `gateway/audit.ts` calls this for each new connection.
   */
  forget(users: ReadonlySet<string> | null): void {
    if (users !== null) {
      for (const user of users) keep(this.#changed, user, true, KEPT);
      for (const [known, { row }] of this.#principals) {
        if (users.has(row.user_id.slice(0, MAX_OBJECT_ID))) this.#principals.delete(known);
      }
      return;
    }
    this.forgotten++;
    for (const map of [this.#principals, this.#objects, this.#verdicts, this.#names]) {
      // So a commit that is being retried stores its facts again.
      for (const fact of map.values()) fact.isStored = false;
      map.clear();
    }
  }

  #turnTo(day: number): void {
    if (day === this.#day) return;
    this.#day = day;
    this.forget(null);
  }

  #wasUsed(name: string): boolean {
    const short = shortOf(name);
    if (this.#usedOnce.has(short) || this.#olderUsedOnce.has(short)) return true;
    if (this.#usedOnce.size === KEPT) {
      this.#olderUsedOnce = this.#usedOnce;
      this.#usedOnce = new Set();
    }
    this.#usedOnce.add(short);
    return false;
  }

  #principal({ id, issuer, user_id, user_role, user_email, user_groups }: StoredRecord): Fact<'principal'> {
    const known = JSON.stringify([issuer, user_id, user_role, user_email, user_groups]);
    const user = user_id.slice(0, MAX_OBJECT_ID);
    const kept = this.#principals.get(known);
    if (kept !== undefined && timeOf(id) - kept.row.since > SKEW_MS && this.#changed.has(user)) {
      this.forget(new Set([user]));
      this.#changed.delete(user);
    }
    // The clock was set back. An erasure would leave the fact, because it looks younger than the erasure.
    if (kept !== undefined && kept.row.since - timeOf(id) > SET_BACK_MS) this.#principals.delete(known);
    const make = () => {
      const salt = newSalt();
      const person_hash = personHash(salt, user_email, user_groups, null);
      const row = { issuer, user_id, user_role, since: timeOf(id), person_hash, salt, user_email, user_groups };
      return this.#fact('principal', row);
    };
    return entered(this.#principals, known, make, KEPT);
  }

  #object({ target_id, target_name, method, resource_type }: StoredRecord, resource_name: string | null): Fact<'object'> {
    const known = JSON.stringify([target_id, target_name, method, resource_type, resource_name]);
    const make = () => this.#fact('object', { target_id, target_name, method, resource_type, resource_name });
    return entered(this.#objects, known, make, KEPT);
  }

  #verdict(record: StoredRecord): Fact<'verdict'> {
    const { effect, reason, policy_id, policy_name, policy_priority, revision, data_hash, engine_hash } = record;
    const known = JSON.stringify([effect, reason, policy_id, policy_name, policy_priority, revision, data_hash, engine_hash]);
    const row = { effect, reason, policy_id, policy_name, policy_priority, revision, data_hash, engine_hash };
    return entered(this.#verdicts, known, () => this.#fact('verdict', row), KEPT);
  }

  #fact<K extends FactKind>(kind: K, row: FactRows[K]): Fact<K> {
    const digest = digestOf(kind, row);
    return { kind, row, digest, key: keyOf(this.#key, this.#day, digest), isStored: false };
  }
}
