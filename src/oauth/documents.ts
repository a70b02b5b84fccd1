/**
 * Reads the metadata documents of clients. Their addresses come from strangers, so the gateway connects to public addresses only, follows
 * no redirect, and waits a limited time. The caller limits the size.
 */
import { type LookupAddress, type LookupOptions, lookup } from 'node:dns';
import { Agent, type buildConnector, fetch } from 'undici';
import { isPublicAddress } from '../base/network-address.ts';

const TIMEOUT_MS = 5_000;

export interface DocumentRules {
  /** Networks that the gateway may read documents from although they are not public. */
  readonly allowed: readonly string[];
  /** Certificates of authorities to trust besides those of the system. Only tests have some. */
  readonly ca?: string;
}

class PrivateAddress extends Error {}

type LookupCallback = (error: Error | null, address: string | LookupAddress[], family?: number) => void;

export type FetchDocument = (url: string | URL) => Promise<Response>;

export function createDocuments({ allowed, ca }: DocumentRules) {
  const isAllowed = isPublicAddress(allowed);
  const refusal = (host: string): PrivateAddress =>
    new PrivateAddress(`${host} has no public address. OAUTH_DOCUMENT_ADDRESSES can allow others`);

  /** The check happens in the lookup that the connection itself uses, so a name cannot have a different address afterwards. */
  const guarded = (hostname: string, options: LookupOptions, done: LookupCallback): void =>
    lookup(hostname, { ...options, all: true }, (error, addresses) => {
      if (error) return done(error, []);
      const [first] = addresses;
      // One private address among several is a sign of an attack: none is used.
      if (first === undefined || !addresses.every(({ address }) => isAllowed(address))) return done(refusal(hostname), []);
      if (options.all) done(null, addresses);
      else done(null, first.address, first.family);
    });

  const agent = new Agent({
    connect: { timeout: TIMEOUT_MS, lookup: guarded, ...(ca === undefined ? {} : { ca }) } as buildConnector.BuildOptions,
    connections: 4,
    pipelining: 0,
    headersTimeout: TIMEOUT_MS,
    bodyTimeout: TIMEOUT_MS,
  });

  return {
    /** Rejects if the address is not public. A redirect is answered as it is. */
    async fetch(url: string | URL): Promise<Response> {
      const { protocol, hostname } = new URL(url);
      const literal = hostname.replace(/^\[|\]$/g, '');
      // Nothing looks a literal address up.
      if (protocol !== 'https:') throw new PrivateAddress('Only https addresses are read');
      if (isLiteral(literal) && !isAllowed(literal)) throw refusal(hostname);
      const answer = await fetch(url, {
        headers: { accept: 'application/json', 'user-agent': 'portcullis' },
        redirect: 'manual',
        signal: AbortSignal.timeout(TIMEOUT_MS),
        dispatcher: agent,
      });
      return answer as unknown as Response;
    },
    close: (): Promise<void> => agent.destroy(),
  };
}

const isLiteral = (host: string): boolean => /^[0-9.]+$/.test(host) || host.includes(':');
