/** From filters to conditions on rows. Pure. */
import { UUID } from '../base/validate.ts';
import { type Column, type Condition, nameKey } from '../providers/directory-store.ts';
import { invalid } from './errors.ts';
import { type Comparison, type Filter, readFilter } from './filter.ts';

interface Attribute {
  readonly column: Column;
  /** `name`: compared without regard to case. `exact`: only whole values are compared. */
  readonly type: 'name' | 'exact' | 'id' | 'boolean';
}

const USERS: Readonly<Record<string, Attribute>> = {
  id: { column: 'user_id', type: 'id' },
  username: { column: 'name_key', type: 'name' },
  externalid: { column: 'external_id', type: 'exact' },
  active: { column: 'active', type: 'boolean' },
};
const GROUPS: Readonly<Record<string, Attribute>> = {
  id: { column: 'id', type: 'id' },
  displayname: { column: 'name_key', type: 'name' },
  externalid: { column: 'external_id', type: 'exact' },
  members: { column: 'member', type: 'id' },
  'members.value': { column: 'member', type: 'id' },
};

/** Shown in refusals. */
const NAMES = { users: 'id, userName, externalId and active', groups: 'id, displayName, externalId and members.value' };

/** Returns the condition of the filter; null: there is no filter. Throws ScimError `invalidFilter`. */
export function conditionOf(kind: 'users' | 'groups', filter: string | null): Condition | null {
  return filter === null ? null : translate(kind, readFilter(filter));
}

function translate(kind: 'users' | 'groups', filter: Filter): Condition {
  if ('and' in filter) return { all: filter.and.map((part) => translate(kind, part)) };
  if ('or' in filter) return { any: filter.or.map((part) => translate(kind, part)) };
  if ('not' in filter) return { not: translate(kind, filter.not) };
  return compared(kind, filter);
}

const PARTS = { co: 'contains', sw: 'starts', ew: 'ends' } as const;

function compared(kind: 'users' | 'groups', { path, operator, value }: Comparison): Condition {
  const known = kind === 'users' ? USERS : GROUPS;
  const attribute = Object.hasOwn(known, path) ? known[path] : undefined;
  if (attribute === undefined)
    throw invalid('invalidFilter', `Filters can use the attributes ${NAMES[kind]}, and not ${path.slice(0, 100)}.`);
  const { column, type } = attribute;
  const refuse = (what: string) => invalid('invalidFilter', `The filter is not valid: ${what}.`);
  if (operator === 'pr') {
    if (column === 'member') throw refuse(`${path} takes only eq`);
    return { not: { column, is: 'equal', value: null } };
  }
  if (type === 'boolean') {
    const isActive = typeof value === 'string' ? value.toLowerCase() : String(value);
    if (isActive !== 'true' && isActive !== 'false') throw refuse(`${path} is compared with true or false`);
    if (operator !== 'eq' && operator !== 'ne') throw refuse(`${path} takes only eq, ne and pr`);
    return { column, is: 'equal', value: (isActive === 'true') === (operator === 'eq') };
  }
  if (typeof value !== 'string') throw refuse(`${path} is compared with a text in double quotes`);
  const text = type === 'name' ? nameKey(value) : value;
  if (operator === 'eq' || operator === 'ne') {
    // A value that no id has is compared with no column, whose collation may not take it.
    const equal: Condition =
      (type === 'id' && !UUID.test(text)) || !text.isWellFormed() ? noneOf(kind) : { column, is: 'equal', value: text };
    if (operator === 'eq') return equal;
    if (column === 'member') throw refuse(`${path} takes only eq`);
    return { not: equal };
  }
  if (type !== 'name') throw refuse(`${path} takes only eq, ne and pr`);
  if (operator !== 'co' && operator !== 'sw' && operator !== 'ew') throw refuse(`${path} takes eq, ne, co, sw, ew and pr`);
  return text.isWellFormed() ? { column, is: PARTS[operator], value: text } : noneOf(kind);
}

/** A condition that no row meets. */
const noneOf = (kind: 'users' | 'groups'): Condition => ({
  column: kind === 'users' ? 'user_id' : 'id',
  is: 'equal',
  value: '',
});
