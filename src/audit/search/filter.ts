/** Reads the query parameters that filter the log, and turns them into SQL conditions. Pure. */
import Joi from 'joi';
import type { FieldError } from '../../base/errors.ts';
import { instant, uuid } from '../../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { firstIdOf, resourceKey } from '../chain/chain.ts';
import { AUDIT_REASONS } from '../records/records.ts';

const text = (max: number) => Joi.string().min(1).max(max);

/** The query parameters of a filter. */
export const filterMembers = {
  from: instant().description('Decisions at or after this time.'),
  to: instant().description('Decisions before this time.'),
  id: uuid().description('The decision id.'),
  user_id: text(256).description('Decisions for this user.'),
  target_id: uuid().description('Decisions about this target.'),
  target_name: text(63).description('Decisions about the target with this name.'),
  method: text(256).description('The JSON-RPC method.'),
  resource_type: Joi.valid(...RESOURCE_TYPES).description('The type of the requested object.'),
  resource_name: text(2048).description('The name or URI of the requested object.'),
  resource_name_prefix: text(2048).description('The beginning of the name or URI.'),
  effect: Joi.valid(...EFFECTS).description('The effect of the decision.'),
  policy_id: uuid().description('The policy that decided.'),
  reason: Joi.valid(...AUDIT_REASONS).description('The reason of the decision.'),
};
const schema = Joi.object(filterMembers);
export const FILTER_NAMES = Object.keys(filterMembers);

type Member = Exclude<keyof typeof filterMembers, 'from' | 'to'>;
/**
 * A row matches if it meets every condition. Names are compared byte for byte. `since` is the lowest id, `before` the first id
 * beyond the range: ids begin with the time.
 */
export type LogFilter = { readonly [Name in Member | 'since' | 'before']?: string };

/** Returns the filter, or the errors by parameter. Ignores other members of `query`. */
export function readFilter(query: Readonly<Record<string, unknown>>): LogFilter | readonly FieldError[] {
  const given = Object.fromEntries(FILTER_NAMES.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
  const { error, value } = schema.validate(given, { abortEarly: false, convert: false });
  if (error) {
    return error.details.map(({ path, message }) => ({ path: path.join('.'), message: message.replace(/^"[^"]*" /, '') }));
  }
  const { from, to, ...rest }: Partial<Record<Member, string>> & { from?: number; to?: number } = value;
  return {
    ...rest,
    ...(from === undefined ? {} : { since: firstIdOf(from) }),
    ...(to === undefined ? {} : { before: firstIdOf(to) }),
  };
}

/**
 * Returns the bounds of the ids: from `low`, before `high`; null: no bound. Each side has one bound, because SQLite uses only one of several and
 * reads all rows up to the others.
 */
export function boundsOf(
  { since, before }: LogFilter,
  floor: string | null,
  cursor: string | null,
): { readonly low: string | null; readonly high: string | null } {
  const given = (bounds: readonly (string | null | undefined)[]): string[] => bounds.filter((bound) => bound != null).sort();
  return { low: given([since, floor]).at(-1) ?? null, high: given([before, cursor])[0] ?? null };
}

export type Condition = readonly [column: string, operator: '=' | '>=' | '<', value: string];

/** An index, and the conditions that it answers. */
export interface Driver {
  /** null: the primary key. */
  readonly index: string | null;
  readonly conditions: readonly Condition[];
}

/** All rows, by time only. */
export const ALL: Driver = { index: null, conditions: [] };

/** Each index keeps the ids of equal values in order. The list begins with the conditions that usually match the fewest rows. */
const INDEXES = [
  ['user_id', 'audit_decisions_user'],
  ['policy_id', 'audit_decisions_policy'],
  ['resource_name', 'audit_decisions_resource'],
  ['target_id', 'audit_decisions_target_id'],
  ['target_name', 'audit_decisions_target'],
  ['reason', 'audit_decisions_reason'],
  ['method', 'audit_decisions_method'],
  ['effect', 'audit_decisions_effect'],
] as const;

/** Returns the index for each condition that has one. Each yields its rows in the order of their ids. */
export function driversOf(filter: LogFilter): Driver[] {
  const drivers: Driver[] = INDEXES.flatMap(([name, index]) => {
    const value = filter[name];
    if (value === undefined) return [];
    // Only the hash of the name is indexed. Two names do not share a hash in practice.
    const condition: Condition = name === 'resource_name' ? ['resource_key', '=', resourceKey(value) ?? ''] : [name, '=', value];
    return [{ index, conditions: [condition] }];
  });
  return filter.id === undefined ? drivers : [{ index: null, conditions: [['id', '=', filter.id]] }, ...drivers];
}

/** No recorded name has more characters. */
const LONGEST_NAME = 2_048;

/** Returns a text above all names that begin with this prefix, and below all other names above it. */
export const above = (prefix: string): string => prefix + '\u{10ffff}'.repeat(LONGEST_NAME);

/** Returns the conditions for which an index would cost more than it helps. Rows from other indexes are checked against them. */
export function unindexedOf({ resource_type: type, resource_name_prefix: prefix }: LogFilter): Condition[] {
  return [
    ...(type === undefined ? [] : [['resource_type', '=', type] as const]),
    ...(prefix === undefined ? [] : [['resource_name', '>=', prefix] as const, ['resource_name', '<', above(prefix)] as const]),
  ];
}
