/** What a client declares about itself in `initialize`, as far as it is kept. Pure. */
import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';

/** These members of the protocol are never used for decisions. */
export interface ClientHello {
  readonly capabilities: JsonObject;
  readonly clientInfo: JsonObject;
}

const MAX_LENGTH = 4 * 1024;
const MAX_NAME_LENGTH = 256;
const MAX_CAPABILITIES = 16;

/** Returns the part of `initialize` that is kept. Icons may be large, and a target does not need them. */
export function helloOf({ capabilities, clientInfo }: JsonObject): ClientHello {
  const told = { capabilities: isObject(capabilities) ? capabilities : {}, clientInfo: isObject(clientInfo) ? clientInfo : {} };
  if (isWithin(told, MAX_LENGTH)) return told;
  const short = (value: JsonValue | undefined): string => (typeof value === 'string' ? value.slice(0, MAX_NAME_LENGTH) : '');
  const { name, version } = told.clientInfo;
  const offered = Object.entries(told.capabilities).filter(
    ([member, value]) => member.length <= MAX_NAME_LENGTH && isObject(value) && isWithin(value, MAX_NAME_LENGTH),
  );
  const kept = {
    capabilities: Object.fromEntries(offered.slice(0, MAX_CAPABILITIES)),
    clientInfo: { name: short(name), version: short(version) },
  };
  // A copy: a part of a string keeps the whole string in memory.
  return JSON.parse(JSON.stringify(kept)) as ClientHello;
}

/** Whether the value has at most about so many characters as JSON. It looks at no more than these, so a large value costs little. */
function isWithin(value: JsonValue, characters: number): boolean {
  let left = characters;
  const fits = (one: JsonValue): boolean => {
    left -= typeof one === 'string' ? one.length + 2 : 2;
    if (left < 0) return false;
    if (Array.isArray(one)) return one.length <= left && one.every(fits);
    if (!isObject(one)) return true;
    for (const name in one) {
      left -= name.length + 3;
      if (left < 0 || !fits(one[name] ?? null)) return false;
    }
    return true;
  };
  return fits(value);
}
