/**
 * Connections to allowed addresses only. The rule judges the very addresses that the connection uses, so a name cannot have different ones
 * afterwards (DNS rebinding).
 */
import type { LookupAddress, LookupOptions } from 'node:dns';
import { lookup, Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { buildConnector } from 'undici';
import type { AddressRule } from './network-address.ts';

/** A refused address. The message names the address, the reason, and the setting that allows it. */
export class DeniedAddress extends Error {}

/** Returns the addresses of a name, at least one. */
type Resolve = (name: string) => Promise<LookupAddress[]>;
type LookupCallback = (error: Error | null, address: string | LookupAddress[], family?: number) => void;

/** A DNS server has not answered in time. */
const LATE = ['ETIMEOUT', 'ECANCELLED'];
const LOOKUP_MS = 3_000;

/**
 * Looks a name up in the hosts file, then in DNS under the names that `candidatesOf` returns, in this order. It takes no thread of the pool
 * that the rest of the process needs. `servers`: DNS servers instead of those of the system, for tests.
 */
const inDns =
  (
    withinMs: number,
    servers: readonly string[] | undefined,
    candidatesOf: (name: string) => Promise<readonly string[]>,
  ): Resolve =>
  async (name) => {
    const bare = name.toLowerCase().replace(/\.$/, '');
    const listed = listedIn(await readFile('/etc/hosts', 'utf8').catch(() => ''), bare);
    if (listed.length > 0) return listed;
    // A server that is down, or a packet that is lost, leaves time for the next one.
    const resolver = new Resolver({ timeout: withinMs / 3, tries: 2 });
    if (servers !== undefined) resolver.setServers(servers);
    const timer = setTimeout(() => resolver.cancel(), withinMs);
    let error: NodeJS.ErrnoException | undefined;
    try {
      for (const candidate of await candidatesOf(name)) {
        const answers = await Promise.allSettled([resolver.resolve4(candidate), resolver.resolve6(candidate)]);
        const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
        if (found.length > 0) return found.map(entryOf);
        const errors = answers.flatMap((answer) =>
          answer.status === 'rejected' ? [answer.reason as NodeJS.ErrnoException] : [],
        );
        error = errors.find(({ code }) => LATE.includes(code ?? '')) ?? errors[0];
        // The next candidate may belong to somebody else, so it counts only if this one does not exist.
        if (LATE.includes(error?.code ?? '')) break;
      }
    } finally {
      clearTimeout(timer);
    }
    throw error;
  };

/** The lookup for names that a stranger chose: exactly as written, without search domains. */
export const strangerNames = (withinMs: number, servers: readonly string[] | undefined): Resolve =>
  inDns(withinMs, servers, async (name) => [name.replace(/\.$/, '')]);

/**
 * The lookup for names that an administrator chose: in the hosts file and in DNS with search domains, then by the operating system with
 * everything else that is set up there. The system's lookup takes one of two threads and cannot be cancelled. So the gateway does not begin
 * one for a name whose DNS servers do not answer: a few of them would keep all other names waiting. `settings`: a file like
 * `/etc/resolv.conf`, for tests.
 */
export const namesWith = (servers?: readonly string[], settings = '/etc/resolv.conf'): Resolve => {
  const find = inDns(LOOKUP_MS, servers, async (name) => searched(name, await readFile(settings, 'utf8').catch(() => '')));
  return (name) =>
    find(name).catch((error: NodeJS.ErrnoException) => {
      if (LATE.includes(error.code ?? '')) throw error;
      return lookup(name, { all: true });
    });
};
const systemNames = namesWith();

/**
 * Returns the names that the operating system would ask for, in its order. In Kubernetes, `search.dev` is first a service of the cluster: the
 * name of a stranger on the internet must not get the requests for it.
 */
function searched(name: string, settings: string): string[] {
  if (name.endsWith('.')) return [name.slice(0, -1)];
  const lines = settings.split('\n').map((line) =>
    line
      .replace(/[#;].*/, '')
      .trim()
      .split(/\s+/),
  );
  const domains = lines.findLast(([keyword]) => keyword === 'search' || keyword === 'domain')?.slice(1) ?? [];
  const options = lines.flatMap(([keyword, ...some]) => (keyword === 'options' ? some : []));
  const dots = Number(options.findLast((option) => option.startsWith('ndots:'))?.slice('ndots:'.length) ?? 1);
  const longer = domains.flatMap((domain) => (domain === '.' ? [] : [`${name}.${domain.replace(/\.$/, '')}`]));
  return name.split('.').length > dots ? [name, ...longer] : [...longer, name];
}

const entryOf = (address: string): LookupAddress => ({ address, family: isIP(address) });

function listedIn(hosts: string, name: string): LookupAddress[] {
  const lines = hosts.split('\n').map((line) => line.toLowerCase().replace(/#.*/, '').trim().split(/\s+/));
  return lines.flatMap(([address = '', ...names]) => (names.includes(name) && isIP(address) !== 0 ? [entryOf(address)] : []));
}

interface ConnectorOptions {
  /** The limit for the lookup and the handshakes together, in milliseconds. */
  readonly timeout: number;
  readonly resolve?: Resolve;
  /** Certificates of authorities to trust instead of those of the system. Only tests have some. */
  readonly ca?: string | undefined;
}

/** Returns how undici opens a connection. Fails with DeniedAddress if the rule refuses all addresses of a name. */
export function guardedConnector(
  problemOf: AddressRule,
  { resolve = systemNames, ...options }: ConnectorOptions,
): buildConnector.connector {
  async function allowedOf(name: string): Promise<readonly [LookupAddress, ...LookupAddress[]]> {
    const addresses = await resolve(name);
    const [first, ...more] = addresses.filter(({ address }) => problemOf(address) === null);
    if (first === undefined) throw new DeniedAddress(`${name}: ${problemOf(addresses[0]?.address ?? '') ?? 'it has no address'}`);
    return [first, ...more];
  }
  const guarded = (name: string, { all }: LookupOptions, done: LookupCallback): void =>
    void allowedOf(name).then(
      (allowed) => (all ? done(null, [...allowed]) : done(null, allowed[0].address, allowed[0].family)),
      (error: Error) => done(error, []),
    );
  const connect = buildConnector({ ...options, lookup: guarded } as buildConnector.BuildOptions);
  return (to, callback) => {
    // Nothing looks up a host that is an address.
    const problem = problemOf(to.hostname);
    if (problem === null) connect(to, callback);
    else callback(new DeniedAddress(problem), null);
  };
}
