/** Questions as the JSON that the rule reads. Written by hand, because it is a good part of what a decision costs. */
import type { NamedObject, PrincipalFacts } from './decision.ts';

/** Characters of JSON that one evaluation may be given. */
const MAX_INPUT = 64 * 1024;

/** Names asked for in one evaluation. */
const BATCH = 500;

export const targetInput = (principal: PrincipalFacts, target: string): string => bounded(`${caller(principal, target)}}`);

export const objectInput = (principal: PrincipalFacts, target: string, type: string, name: string): string =>
  bounded(`${caller(principal, target)},"type":${quote(type)},"name":${quote(name)}}`);

export const listInput = (principal: PrincipalFacts, target: string, type: string, names: readonly string[]): string =>
  bounded(`${caller(principal, target)},"type":${quote(type)},"names":[${names.map(quote).join(',')}]}`);

const caller = ({ sub, role, groups }: PrincipalFacts, target: string): string =>
  `{"sub":${quote(sub)},"role":${quote(role)},"groups":[${groups.map(quote).join(',')}],"target":${quote(target)}`;

const PLAIN = /^[ !#-[\]-~]*$/;

/** A text with half a character in it would be decided on as another text than the one forwarded. */
function quote(text: string): string {
  if (PLAIN.test(text)) return `"${text}"`;
  if (!text.isWellFormed()) throw new Error('The input is not well-formed Unicode');
  return JSON.stringify(text);
}

function bounded(json: string): string {
  if (json.length > MAX_INPUT) throw new Error(`The input is longer than ${MAX_INPUT} characters`);
  return json;
}

/** Objects of one type, few enough for one evaluation. A name that would be refused stands alone. */
export function* batches(objects: readonly NamedObject[]): Generator<{ type: string; places: number[] }> {
  const open = new Map<string, { places: number[]; size: number }>();
  for (const [place, { resource_type: type, resource_name: name }] of objects.entries()) {
    const batch = open.get(type);
    const size = name.length * 6;
    if (/\p{Surrogate}/u.test(name)) yield { type, places: [place] };
    else if (batch === undefined) open.set(type, { places: [place], size });
    else if (batch.places.length === BATCH || batch.size + size > MAX_INPUT / 2) {
      yield { type, places: batch.places };
      open.set(type, { places: [place], size });
    } else {
      batch.places.push(place);
      batch.size += size;
    }
  }
  for (const [type, { places }] of open) yield { type, places };
}
