/** `GET /api/logs/counts`. */
import Joi from 'joi';
import { COUNT_KEYS, type CountedBy, type CountFilter, type countStore, HOUR_MS } from '../../audit/search/count-store.ts';
import { invalidRequest } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import { timestamp } from '../../policies/schema.ts';
import { type CountsJson, countMembers } from './contract.ts';

const DAY_HOURS = 24;
const MAX_HOURS = 31 * DAY_HOURS;
/** How many hours a read covers at least. The number is small because calls may wait for the read. */
const READ_HOURS = 4;
/** After a read that was faster than this, the next one covers twice as many hours. */
const FAST_MS = 3;
/** After a read that was slower than this, the next one covers half as many. */
const SLOW_MS = 10;
const MOST_KEYS = 1_000;

export interface CountsQuery {
  readonly by: CountedBy;
  /** Hours since the epoch; `to` is not included. */
  readonly from: number;
  readonly to: number;
  readonly filter: CountFilter;
  readonly now: number;
}

interface Given {
  readonly by: CountedBy;
  readonly from?: number;
  readonly to?: number;
  readonly policies?: string;
  readonly target_id?: string;
}

const schema = Joi.object<Given>(countMembers).required();

/** Throws AppError `invalid_request`. */
export function readCounts(query: object, now: number): CountsQuery {
  const { by, policies, target_id, ...given } = validate(schema, { ...query });
  const to = Math.ceil(Math.min(given.to ?? now, now) / HOUR_MS);
  const from = given.from === undefined ? to - DAY_HOURS : Math.floor(given.from / HOUR_MS);
  if (from >= to) throw invalidRequest([{ path: 'from', message: 'must be before `to`, and in the past' }]);
  if (to - from > MAX_HOURS) throw invalidRequest([{ path: 'from', message: 'must be at most 31 days before `to`' }]);
  const filter = {
    ...(policies === undefined ? {} : { policies: policies.split(',') }),
    ...(target_id === undefined ? {} : { target_id }),
  };
  return { by, from, to, filter, now };
}

type Sums = Record<'allowed' | 'denied' | 'unmatched', number>;
const total = ({ allowed, denied, unmatched }: Sums): number => allowed + denied + unmatched;

/** `inTurn` runs one read at a time. */
export async function countsOf(
  store: Pick<ReturnType<typeof countStore>, 'sums' | 'uncounted'>,
  { by, from, to, filter, now }: CountsQuery,
  inTurn: <T>(work: () => Promise<T>) => Promise<T>,
): Promise<CountsJson> {
  // Read the watermark first, so that the counts have at least what it promises.
  const uncounted = await inTurn(() => store.uncounted());
  const found = new Map<string | number, Sums>();
  for (let [at, hours] = [from, READ_HOURS]; at < to; ) {
    const end = Math.min(at + hours, to);
    const { sums, ms } = await inTurn(async () => {
      const began = performance.now();
      return { sums: await store.sums(by, at, end, filter), ms: performance.now() - began };
    });
    for (const { key, effect, decisions, unmatched } of sums) {
      const known = found.get(key) ?? { allowed: 0, denied: 0, unmatched: 0 };
      if (effect === 'allow') known.allowed += decisions;
      else {
        known.denied += decisions - unmatched;
        known.unmatched += unmatched;
      }
      found.set(key, known);
    }
    at = end;
    if (ms < FAST_MS) hours *= 2;
    else if (ms > SLOW_MS) hours = Math.max(READ_HOURS, hours / 2);
  }
  const ordered = [...found].sort(([a, one], [b, other]) =>
    by === 'hour' ? Number(a) - Number(b) : total(other) - total(one) || (a < b ? -1 : 1),
  );
  const none = { hour: null, policy_id: null, target_id: null };
  return {
    from: timestamp(from * HOUR_MS),
    to: timestamp(Math.min(to * HOUR_MS, now)),
    counted_to: timestamp(Math.min(now, ...uncounted.map(({ since }) => since))),
    counts: ordered.slice(0, MOST_KEYS).map(([key, sums]) => ({
      ...none,
      [COUNT_KEYS[by]]: by === 'hour' ? timestamp(Number(key) * HOUR_MS) : key === '' ? null : String(key),
      ...sums,
    })),
    more: ordered.length > MOST_KEYS,
  };
}
