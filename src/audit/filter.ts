/** What rows of the log are asked for: from query parameters to conditions. Pure. */
import Joi from 'joi';
import type { FieldError } from '../errors.ts';
import { EFFECTS, RESOURCE_TYPES } from '../policies/document.ts';
import { firstIdOf, resourceKey } from './chain.ts';
import { AUDIT_REASONS } from './event.ts';

/** Every condition must hold. Names are compared byte for byte. */
export interface LogFilter {
  /** Ids from here on, and before here: they begin with the time. */
  readonly since?: string;
  readonly before?: string;
  readonly id?: string;
  readonly user_id?: string;
  readonly target_id?: string;
  readonly target_name?: string;
  readonly method?: string;
  readonly resource_type?: string;
  readonly resource_name?: string;
  readonly resource_name_prefix?: string;
  readonly effect?: string;
  readonly policy_id?: string;
  readonly reason?: string;
}

interface Query extends Omit<LogFilter, 'since' | 'before'> {
  readonly from?: number;
  readonly to?: number;
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?(Z|[+-]\d\d:\d\d)$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const time = Joi.string().custom((value: string, helpers) => {
  const ms = TIME.test(value) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(ms) ? helpers.message({ custom: 'must be a time such as 2026-01-31T12:00:00Z' }) : ms;
});
const uuid = Joi.string().pattern(UUID).messages({ 'string.pattern.base': 'must be a lower-case UUID' });
const text = (max: number) => Joi.string().min(1).max(max);

const schema = Joi.object<Query>({
  from: time,
  to: time,
  id: uuid,
  user_id: text(256),
  target_id: uuid,
  target_name: text(63),
  method: text(256),
  resource_type: Joi.valid(...RESOURCE_TYPES),
  resource_name: text(2048),
  resource_name_prefix: text(2048),
  effect: Joi.valid(...EFFECTS),
  policy_id: uuid,
  reason: Joi.valid(...AUDIT_REASONS),
});

/** The query parameters that there are. */
export const FILTER_NAMES = [
  ...['from', 'to', 'id', 'user_id', 'target_id', 'target_name', 'method', 'resource_type', 'resource_name'],
  ...['resource_name_prefix', 'effect', 'policy_id', 'reason'],
] as const;

/** What is asked for, or what is wrong with it, by parameter. Other members of `query` are not looked at. */
export function readFilter(query: Readonly<Record<string, unknown>>): LogFilter | readonly FieldError[] {
  const given = Object.fromEntries(FILTER_NAMES.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
  const { error, value } = schema.validate(given, { abortEarly: false, convert: false });
  if (error) {
    return error.details.map(({ path, message }) => ({ path: path.join('.'), message: message.replace(/^"[^"]*" /, '') }));
  }
  const { from, to, ...rest } = value as Query;
  return {
    ...rest,
    ...(from === undefined ? {} : { since: firstIdOf(from) }),
    ...(to === undefined ? {} : { before: firstIdOf(to) }),
  };
}

/** An index that gives the rows in the order of their ids, and what it is asked for. */
export interface Driver {
  readonly index: string | null;
  readonly where: Readonly<Record<string, string>>;
  readonly names: readonly (keyof LogFilter)[];
}

type Condition = readonly [column: string, operator: '=' | '>=' | '<', value: string];

/** From what is rare as a rule to what is common. */
const INDEXES = [
  ['user_id', 'audit_decisions_user'],
  ['policy_id', 'audit_decisions_policy'],
  ['resource_name', 'audit_decisions_resource'],
  ['target_name', 'audit_decisions_target'],
  ['reason', 'audit_decisions_reason'],
  ['effect', 'audit_decisions_effect'],
] as const;

/** The one condition that the rows are found by; null: by time alone. */
export function driverOf(filter: LogFilter): Driver | null {
  if (filter.id !== undefined) return { index: null, where: { id: filter.id }, names: ['id'] };
  for (const [name, index] of INDEXES) {
    const value = filter[name];
    if (value === undefined) continue;
    if (name !== 'resource_name') return { index, where: { [name]: value }, names: [name] };
    // Of the name itself only its hash is in an index; that two names share one is not in question.
    return { index, where: { resource_key: resourceKey(value) ?? '' }, names: [name] };
  }
  return null;
}

const EQUAL = [
  ...['user_id', 'target_id', 'target_name', 'method', 'resource_type', 'resource_name', 'effect', 'policy_id', 'reason'],
] as (keyof LogFilter)[];

/** What the rows that are found are then held to. */
export function remainder(filter: LogFilter, driver: Driver | null): Condition[] {
  const conditions: Condition[] = EQUAL.flatMap((name) => {
    const value = filter[name];
    return value === undefined || driver?.names.includes(name) ? [] : [[name, '=', value] as const];
  });
  const prefix = filter.resource_name_prefix;
  if (prefix !== undefined) conditions.push(['resource_name', '>=', prefix], ['resource_name', '<', `${prefix}\u{10ffff}`]);
  return conditions;
}
