/** Keeps connections away from refused addresses, also if a name resolves to one of them. */
import { type LookupAddress, type LookupOptions, lookup } from 'node:dns';
import type { AddressRule } from './network-address.ts';

/** A refused address. The message names the address, the reason, and the setting that allows it. */
export class DeniedAddress extends Error {}

type LookupCallback = (error: Error | null, address: string | LookupAddress[], family?: number) => void;

/** A DNS lookup that drops refused addresses. The check happens in the lookup that the connection itself uses. */
export function guardedLookup(problemOf: AddressRule) {
  return (hostname: string, options: LookupOptions, done: LookupCallback): void =>
    lookup(hostname, { ...options, all: true }, (error, addresses) => {
      if (error) return done(error, []);
      const allowed = addresses.filter(({ address }) => problemOf(address) === null);
      const [first] = allowed;
      if (first === undefined) return done(new DeniedAddress(`${hostname}: ${problemOf(addresses[0]?.address ?? '')}`), []);
      if (options.all) done(null, allowed);
      else done(null, first.address, first.family);
    });
}
