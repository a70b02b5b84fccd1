/** Questions as the JSON that the rule reads. It is written by hand, because it is a large part of the cost of a decision. */
import type { NamedObject, PrincipalFacts } from './decision.ts';

/** The maximum length of the JSON for one evaluation, in characters. */
const MAX_INPUT = 64 * 1024;

/** The maximum number of names in one evaluation. */
const BATCH = 500;

export const targetInput = (principal: PrincipalFacts, target: string): string => bounded(`${caller(principal, target)}}`);

export const objectInput = (principal: PrincipalFacts, target: string, type: string, name: string): string =>
  bounded(`${caller(principal, target)},"type":${quote(type)},"name":${quote(name)}}`);

export const listInput = (principal: PrincipalFacts, target: string, type: string, names: readonly string[]): string =>
  bounded(`${caller(principal, target)},"type":${quote(type)},"names":[${names.map(quote).join(',')}]}`);

const caller = ({ sub, role, groups }: PrincipalFacts, target: string): string =>
  `{"sub":${quote(sub)},"role":${quote(role)},"groups":[${groups.map(quote).join(',')}],"target":${quote(target)}`;

const PLAIN = /^[ !#-[\]-~]*$/;

/** Refuses text with half a surrogate pair: the rule would decide a text other than the one that is forwarded. */
function quote(text: string): string {
  if (PLAIN.test(text)) return `"${text}"`;
  if (!text.isWellFormed()) throw new Error('The input is not well-formed Unicode: it contains half a surrogate pair');
  return JSON.stringify(text);
}

function bounded(json: string): string {
  if (json.length > MAX_INPUT) throw new Error(`The input is longer than ${MAX_INPUT} characters`);
  return json;
}

/** Yields batches of objects of one type, small enough for one evaluation. A name that `quote` refuses gets its own batch. */
export function* batches(objects: readonly NamedObject[]): Generator<{ type: string; indexes: number[] }> {
  const open = new Map<string, { indexes: number[]; size: number }>();
  for (const [index, { resource_type: type, resource_name: name }] of objects.entries()) {
    const batch = open.get(type);
    const size = name.length * 6;
    if (/\p{Surrogate}/u.test(name)) yield { type, indexes: [index] };
    else if (batch === undefined) open.set(type, { indexes: [index], size });
    else if (batch.indexes.length === BATCH || batch.size + size > MAX_INPUT / 2) {
      yield { type, indexes: batch.indexes };
      open.set(type, { indexes: [index], size });
    } else {
      batch.indexes.push(index);
      batch.size += size;
    }
  }
  for (const [type, { indexes }] of open) yield { type, indexes };
}
