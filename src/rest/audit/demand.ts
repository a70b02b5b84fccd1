/** `GET /api/logs/demand`: what was denied, added up by what was asked for. */
import Joi from 'joi';
import { timeOf } from '../../audit/chain/chain.ts';
import type { AuditEntry, AuditPage } from '../../audit/search/entries.ts';
import { type LogFilter, readFilter } from '../../audit/search/filter.ts';
import { invalidRequest } from '../../base/errors.ts';
import { validate } from '../../base/validate.ts';
import { timestamp } from '../../policies/schema.ts';
import { type DemandJson, demandMembers, MOST_DENIALS } from './contract.ts';

const WEEK_MS = 7 * 24 * 60 * 60_000;
/** How long one answer reads. */
const READ_MS = 1_000;
const MOST_SHOWN = 100;
const USERS_SHOWN = 10;

const schema = Joi.object<{ readonly from?: number; readonly to?: number; readonly most?: string }>(demandMembers).required();

export interface DemandQuery {
  readonly filter: LogFilter;
  /** Milliseconds since the epoch. */
  readonly from: number;
  readonly to: number;
  readonly most: number;
}

/** Throws AppError `invalid_request`. */
export function readDemand(query: Readonly<Record<string, unknown>>, now: number): DemandQuery {
  const { from = now - WEEK_MS, to = now, most = MOST_DENIALS } = validate(schema, { ...query });
  const filter = readFilter({ ...query, from: timestamp(from), effect: 'deny', id: undefined });
  if (Array.isArray(filter)) throw invalidRequest(filter);
  return { filter: filter as LogFilter, from, to, most: Math.min(Number(most), MOST_DENIALS) };
}

interface Wish {
  /** The newest denial, which comes first. */
  readonly last: AuditEntry;
  denials: number;
  readonly users: Map<string, { readonly id: string; readonly email: string; denials: number }>;
}

const wishOf = ({ target_id, target_name, resource_type, resource_name }: AuditEntry): string =>
  JSON.stringify([target_id ?? target_name, resource_type, resource_name]);

/** `read` returns a page of the log before a cursor. */
export async function demandOf(
  read: (filter: LogFilter, cursor: string | null) => Promise<AuditPage>,
  { filter, from, to, most }: DemandQuery,
): Promise<DemandJson> {
  const wishes = new Map<string, Wish>();
  const began = performance.now();
  let [denials, cursor]: [number, string | null] = [0, null];
  do {
    const page: AuditPage = await read(filter, cursor);
    const taken = page.entries.slice(0, most - denials);
    for (const entry of taken) add(wishes, entry);
    denials += taken.length;
    cursor = taken.length < page.entries.length ? (taken.at(-1)?.id ?? null) : page.next;
  } while (cursor !== null && denials < most && performance.now() - began < READ_MS);
  const ordered = [...wishes.values()].sort((a, b) => b.denials - a.denials || (a.last.id < b.last.id ? 1 : -1));
  return {
    ...{ from: timestamp(from), to: timestamp(to), denials },
    read_to: cursor === null ? null : timestamp(timeOf(cursor)),
    demand: ordered.slice(0, MOST_SHOWN).map(wishJson),
    more: ordered.length > MOST_SHOWN,
  };
}

function add(wishes: Map<string, Wish>, entry: AuditEntry): void {
  const key = wishOf(entry);
  const wish = wishes.get(key) ?? { last: entry, denials: 0, users: new Map() };
  wishes.set(key, wish);
  wish.denials++;
  const { user_id: id, user_email: email } = entry;
  const user = wish.users.get(id) ?? { id, email, denials: 0 };
  user.denials++;
  wish.users.set(id, user);
}

function wishJson({ last, denials, users }: Wish): DemandJson['demand'][number] {
  const { target_id, target_name, resource_type, resource_name, policy_id, policy_name, reason } = last;
  const byCount = [...users.values()].sort((a, b) => b.denials - a.denials || (a.id < b.id ? -1 : 1));
  return {
    ...{ target_id, target_name, resource_type, resource_name, denials },
    user_count: users.size,
    users: byCount.slice(0, USERS_SHOWN),
    last: { id: last.id, created_at: timestamp(last.created_at), reason, policy_id, policy_name },
  };
}
