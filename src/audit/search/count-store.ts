/** The counts of decisions by hour, effect, policy and target. They are derived from the log, and no MAC covers them. */
import { deleteOldest } from '../../db/batches.ts';
import type { Connection } from '../../db/database.ts';
import { isDuplicate } from '../../db/statement.ts';
import type { Effect } from '../../engine/compile/policy.ts';
import { LEGACY_VERSION } from '../chain/chain.ts';
import { TAIL } from '../chain/tables/chain-store.ts';
import { tailOf } from '../chain/tables/log-tables.ts';

export const HOUR_MS = 60 * 60_000;

/** A chain with decisions that are not counted yet. */
export interface Uncounted {
  readonly chain_id: string;
  readonly version: number;
  /** The number of the last counted decision. */
  readonly counted: number;
  /** The time of the first decision that is not counted. */
  readonly since: number;
}

export interface Count {
  readonly hour: number;
  readonly effect: Effect;
  /** Empty: no policy decided. */
  readonly policy_id: string;
  /** Empty: the target did not exist. */
  readonly target_id: string;
  readonly decisions: number;
}

/** The next decisions of a chain as counts, and the number of the last of them. */
export interface Part {
  readonly upTo: number;
  /** How many decisions were read. */
  readonly size: number;
  readonly counts: readonly Count[];
}

interface Row {
  readonly at: string;
  readonly seq: number;
  readonly effect: Effect | null;
  readonly policy_id: string | null;
  readonly target_id: string | null;
}

const COUNT_KEY = ['hour', 'effect', 'policy_id', 'target_id'] as const;

/** What `sums` can group the counts by, with the column of each. */
export const COUNT_KEYS = { hour: 'hour', policy: 'policy_id', target: 'target_id' } as const;
export type CountedBy = keyof typeof COUNT_KEYS;
export const COUNTED_BY = Object.keys(COUNT_KEYS) as CountedBy[];

export interface CountFilter {
  readonly policies?: readonly string[];
  readonly target_id?: string;
}

export interface Sum {
  readonly key: string | number;
  readonly effect: Effect;
  readonly decisions: number;
  /** How many of them no policy decided. */
  readonly unmatched: number;
}

/** The time in an id, as the filters `from` and `to` of the log read it. `id`: hexadecimal digits, also with hyphens. */
const timeIn = (id: string): number => Number.parseInt(id.replaceAll('-', '').slice(0, 12), 16);

export function countStore(db: Connection) {
  return {
    async uncounted(): Promise<Uncounted[]> {
      const counted = 'coalesce(k.seq, 0)';
      const legacy = db('audit_decisions as t')
        .where('t.chain_id', db.ref('c.chain_id'))
        .whereRaw(`t.chain_seq > ${counted}`)
        .orderBy('t.chain_seq')
        .limit(1)
        .select('t.id');
      const log = db('log_decisions as t')
        .whereRaw(`t.chain = ${TAIL} and t.seq > ${counted}`)
        .orderBy('t.seq')
        .limit(1)
        .select(db.raw('hex(t.id)'));
      const rows: { chain_id: string; version: number; counted: number; legacy: string | null; log: string | null }[] = await db(
        'audit_chains as c',
      )
        .leftJoin('log_counted as k', 'k.chain_id', 'c.chain_id')
        .select('c.chain_id', 'c.version', db.raw(`${counted} as counted`), legacy.as('legacy'), log.as('log'));
      return rows.flatMap(({ chain_id, version, counted: seq, ...first }) => {
        const id = version === LEGACY_VERSION ? first.legacy : first.log;
        return id === null ? [] : [{ chain_id, version, counted: Number(seq), since: timeIn(id) }];
      });
    },

    /** Reads up to `limit` decisions of a chain. A decision whose facts are missing is not counted, because no page shows it. */
    async part({ chain_id, version, counted }: Uncounted, limit: number): Promise<Part> {
      const rows: Row[] =
        version === LEGACY_VERSION
          ? await db('audit_decisions')
              .where('chain_id', chain_id)
              .andWhere('chain_seq', '>', counted)
              .orderBy('chain_seq')
              .limit(limit)
              .select('id as at', 'chain_seq as seq', 'effect', 'policy_id', 'target_id')
          : await db('log_decisions as d')
              .leftJoin('log_verdicts as v', 'v.id', 'd.verdict')
              .leftJoin('log_objects as o', 'o.id', 'd.object')
              .whereRaw(`d.chain = x'${tailOf(chain_id)}'`)
              .andWhere('d.seq', '>', counted)
              .orderBy('d.seq')
              .limit(limit)
              .select(db.raw('hex(d.id) as at'), 'd.seq', 'v.effect', 'v.policy_id', 'o.target_id');
      const counts = new Map<string, Count>();
      for (const { at, effect, policy_id, target_id } of rows) {
        if (effect === null) continue;
        const key = { hour: Math.floor(timeIn(at) / HOUR_MS), effect, policy_id: policy_id ?? '', target_id: target_id ?? '' };
        const text = Object.values(key).join(' ');
        counts.set(text, { ...key, decisions: (counts.get(text)?.decisions ?? 0) + 1 });
      }
      const inOrder = [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, count]) => count);
      return { upTo: Number(rows.at(-1)?.seq ?? counted), size: rows.length, counts: inOrder };
    },

    /** Adds a part to the counts. Returns false and adds nothing if another replica has counted these decisions. Needs a transaction. */
    async add({ chain_id, counted }: Uncounted, { upTo, counts }: Part): Promise<boolean> {
      if (counted === 0) {
        try {
          await db('log_counted').insert({ chain_id, seq: upTo });
        } catch (error) {
          if (isDuplicate(error)) return false;
          throw error;
        }
      } else if ((await db('log_counted').where({ chain_id, seq: counted }).update({ seq: upTo })) !== 1) return false;
      if (counts.length === 0) return true;
      const added = db.client.dialect === 'mysql' ? 'values(decisions)' : 'excluded.decisions';
      await db('log_counts')
        .insert(counts)
        .onConflict([...COUNT_KEY])
        .merge({ decisions: db.raw(`log_counts.decisions + ${added}`) });
      return true;
    },

    /** Removes counts of the oldest hours before `hour`, at most `limit`. Returns whether there may be more. */
    removeBefore: (hour: number, limit: number): Promise<boolean> =>
      deleteOldest(db, { table: 'log_counts', key: COUNT_KEY, time: 'hour', before: hour }, limit),

    /** Adds up the counts of the hours from `from` to before `to`. */
    async sums(by: CountedBy, from: number, to: number, { policies, target_id }: CountFilter): Promise<Sum[]> {
      const key = COUNT_KEYS[by];
      const query = db('log_counts').where('hour', '>=', from).andWhere('hour', '<', to);
      if (policies !== undefined) query.whereIn('policy_id', policies);
      if (target_id !== undefined) query.where({ target_id });
      // The primary key begins with hour and effect, so the database adds up the hours as it reads them, without sorting.
      const rows: Sum[] = await query
        .groupBy(key, 'effect')
        .select(`${key} as key`, 'effect')
        .sum({ decisions: 'decisions', unmatched: db.raw("case when policy_id = '' then decisions else 0 end") });
      return rows.map(({ decisions, unmatched, ...row }) => ({
        ...row,
        decisions: Number(decisions),
        unmatched: Number(unmatched),
      }));
    },
  };
}
