/** The report of a replay or a shadow, in the form of the API. */
import { timeOf } from '../../audit/chain/chain.ts';
import { recordedStore, textsIn } from '../../audit/search/recorded-store.ts';
import type { Connection } from '../../db/database.ts';
import { type PolicyRef, policyRef } from '../files/test-run.ts';
import { timestamp } from '../schema.ts';
import type { Moment } from '../sets/candidate-set.ts';
import type { PolicyChange } from '../sets/plan.ts';
import type { RecordedFlip, TallyParts, TallyState } from './tally.ts';

export type ReplayReport = Awaited<ReturnType<typeof reportOf>>;

/** The key of a change in a tally: the file, or the policy's id if it has no file. */
const keyOf = ({ file, before, after }: PolicyChange): string => file ?? (after ?? before)?.id ?? '';

/** Returns what a tally needs to know about the policy sets of its engines. */
export function tallyPartsOf({ policies, stored, changes }: Moment): Pick<TallyParts, 'refOf' | 'changed'> {
  const ids = new Set(stored.map(({ id }) => id));
  // The policies themselves are much larger, and a shadow keeps this for as long as it runs.
  const refs = new Map(policies.map((policy) => [policy.id, policyRef(policy, (id) => ids.has(id))]));
  const changed = new Map<string, string>();
  for (const change of changes) {
    for (const policy of [change.before, change.after]) if (policy !== null) changed.set(policy.id, keyOf(change));
  }
  return { changed, refOf: (id) => refs.get(id) ?? null };
}

/** Sorts the flips by frequency. It reads their users and objects from the log, where personal data can have been erased. */
export async function reportOf(
  db: Connection,
  { counts, flips, exercised }: TallyState,
  { changes, stored }: Pick<Moment, 'changes' | 'stored'>,
) {
  const ids = new Set(stored.map(({ id }) => id));
  const sorted = flips.toSorted((a, b) => b.count - a.count || (a.last < b.last ? 1 : -1));
  const known = new Set(exercised);
  const changed = changes.map((change) => ({ change, policy: change.after ?? change.before }));
  const unexercised = changed.flatMap(({ change, policy }): PolicyRef[] =>
    policy === null || known.has(keyOf(change)) ? [] : [policyRef(policy, (id) => ids.has(id))],
  );
  return {
    ...counts,
    /** In percent, rounded down to tenths; null: nothing is recorded. */
    coverage: counts.decisions === 0 ? null : Math.floor((1000 * counts.replayed) / counts.decisions) / 10,
    changes: changes.length,
    unexercised,
    flips: await flipsJson(db, sorted),
  };
}

const IDS_AT_ONCE = 500;

async function flipsJson(db: Connection, flips: readonly RecordedFlip[]) {
  const store = recordedStore(db);
  const records = new Map<string, Awaited<ReturnType<typeof store.find>>[number]>();
  for (let at = 0; at < flips.length; at += IDS_AT_ONCE) {
    const ids = flips.slice(at, at + IDS_AT_ONCE).map(({ last }) => last);
    for (const record of await store.find(ids)) records.set(record.id, record);
  }
  return flips.map((flip) => {
    const { kind, user_id, target_id, resource_type, resource_name, recorded, would_be, now, count, first, last } = flip;
    const record = records.get(last);
    const erased = record === undefined || record.user_email === '';
    return {
      kind,
      principal: {
        sub: user_id,
        email: erased ? null : record.user_email,
        role: record?.user_role ?? null,
        groups: erased ? null : textsIn(record.user_groups),
      },
      target: { id: target_id, name: record?.target_name ?? null },
      resource_type,
      resource_name,
      recorded: {
        effect: recorded,
        // A listed name has no recorded decision of its own.
        policy:
          kind === 'listed' || record === undefined || record.policy_id === null
            ? null
            : { id: record.policy_id, name: record.policy_name },
      },
      now,
      would_be,
      count,
      first: { id: first, created_at: timestamp(timeOf(first)) },
      last: { id: last, created_at: timestamp(timeOf(last)) },
    };
  });
}
