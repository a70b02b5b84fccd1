/** Addresses that the gateway never connects to, unless an operator allows them. */
import { BlockList, isIP } from 'node:net';

/** The metadata services of clouds, which give out credentials: link-local addresses, and addresses of particular clouds. */
const DENIED = blockListOf([
  '169.254.0.0/16',
  'fe80::/10',
  // Alibaba, Oracle, Azure, Volcengine and UCloud.
  '100.100.100.200',
  '192.0.0.192',
  '168.63.129.16',
  '100.96.0.96',
  '100.80.80.80',
  // AWS (instances, pods), Google, Oracle, Scaleway, Akamai and Alibaba.
  'fd00:ec2::254',
  'fd00:ec2::23',
  'fd20:ce::254',
  'fd00:c1::a9fe:a9fe',
  'fd00:42::42',
  'fd00:a9fe:a9fe::1',
  'fd00:100::100:200',
]);

/**
 * Returns why the gateway does not connect to an address; null: it may. `address` is a resolved address, or the host of a URL. A name is
 * judged by the addresses that it has when the connection is made, so the rule has nothing to say about the name itself.
 */
export type AddressRule = (address: string) => string | null;

/**
 * The rule for addresses that an administrator chose. `allowed` has addresses and networks (`10.0.0.0/8`) that take precedence over the
 * denied ones. `setting`: where an operator allows more.
 */
export function createAddressRule(allowed: readonly string[], setting = 'UPSTREAM_ALLOWED_ADDRESSES'): AddressRule {
  const list = blockListOf(allowed);
  return (address) => {
    const bare = bareAddress(address);
    if (bare === null || matches(list, bare)) return null;
    const denied = [bare, ...embedded(bare)].find((form) => matches(DENIED, form) && !matches(list, form));
    if (denied === undefined) return null;
    return `${bare} is a link-local or metadata address. The gateway connects to it only if ${setting} names it`;
  };
}

/** Networks of IPv4 that are not part of the public internet (IANA registry of special-purpose addresses). */
const SPECIAL = blockListOf([
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.0.0.0/24'],
  ...['192.0.2.0/24', '192.31.196.0/24', '192.52.193.0/24', '192.88.99.0/24', '192.168.0.0/16', '192.175.48.0/24'],
  ...['198.18.0.0/15', '198.51.100.0/24', '203.0.113.0/24', '224.0.0.0/3', '168.63.129.16'],
]);
/** The part of IPv6 that is assigned to the public internet, and the addresses by which NAT64 reaches the IPv4 internet (RFC 6052). */
const GLOBAL_V6 = blockListOf(['2000::/3', '64:ff9b::/96']);
const SPECIAL_V6 = blockListOf(['2001::/23', '2001:db8::/32', '2002::/16', '2620:4f:8000::/48', '3fff::/20']);

function isPublic(address: string): boolean {
  if (isIP(address) === 4) return !matches(SPECIAL, address);
  // An address of a translator or tunnel leads to the IPv4 address in it.
  return matches(GLOBAL_V6, address) && !matches(SPECIAL_V6, address) && embedded(address).every(isPublic);
}

/** The rule for addresses that a stranger chose: only those of the public internet, and those in `allowed`. */
export function createPublicAddressRule(allowed: readonly string[], setting = 'UPSTREAM_ALLOWED_ADDRESSES'): AddressRule {
  const rule = createAddressRule(allowed, setting);
  const list = blockListOf(allowed);
  return (address) => {
    const bare = bareAddress(address);
    if (bare === null || matches(list, bare)) return null;
    const problem = `${bare} is not an address of the public internet. The gateway connects to it only if ${setting} names it`;
    return rule(bare) ?? (isPublic(bare) ? null : problem);
  };
}

/** Whether the host of a URL is this machine itself, by its name. */
export const isLoopbackName = (hostname: string): boolean =>
  hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname);

/** Whether `createAddressRule` accepts the text. */
export function isNetwork(text: string): boolean {
  const [address = '', bits, ...more] = text.split('/');
  const family = isIP(address);
  if (family === 0 || address.includes('%') || more.length > 0) return false;
  return bits === undefined || (/^(0|[1-9][0-9]{0,2})$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128));
}

function blockListOf(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const network of networks) {
    const [address = '', bits] = network.split('/');
    const family = isIP(address) === 4 ? 'ipv4' : 'ipv6';
    if (bits === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(bits), family);
  }
  return list;
}

function bareAddress(address: string): string | null {
  const bare = address.replace(/^\[|\]$/g, '').replace(/%.*$/, '');
  return isIP(bare) === 0 ? null : bare;
}

const matches = (list: BlockList, address: string): boolean => list.check(address, isIP(address) === 4 ? 'ipv4' : 'ipv6');

/** Returns the IPv4 addresses that an IPv6 address may contain, in the formats of translators and tunnels. */
function embedded(address: string): string[] {
  if (isIP(address) !== 6) return [];
  const bytes = groupsOf(address).flatMap((group) => [group >> 8, group & 0xff]);
  const at = (...indexes: number[]): string => indexes.map((index) => bytes[index]).join('.');
  const begins = (...prefix: number[]): boolean => prefix.every((byte, index) => bytes[index] === byte);
  const last = at(12, 13, 14, 15);
  // RFC 4291: compatible and mapped. RFC 2765: translated (SIIT). RFC 6052: NAT64.
  if (bytes.slice(0, 8).every((byte) => byte === 0) || begins(0, 0x64, 0xff, 0x9b, 0, 0)) return [last];
  // RFC 8215: the operator of the translator chooses the length of the prefix (RFC 6052, 2.2).
  if (begins(0, 0x64, 0xff, 0x9b, 0, 1)) return [at(6, 7, 9, 10), at(7, 9, 10, 11), at(9, 10, 11, 12), last];
  // RFC 3056: 6to4.
  if (begins(0x20, 0x02)) return [at(2, 3, 4, 5)];
  // RFC 4380: a Teredo address has the server's address, and the client's address with all bits inverted.
  if (begins(0x20, 0x01, 0, 0))
    return [
      at(4, 5, 6, 7),
      bytes
        .slice(12)
        .map((byte) => byte ^ 0xff)
        .join('.'),
    ];
  // RFC 5214: ISATAP, under any prefix.
  const isIsatap = ((bytes[8] ?? 0) & 0xfd) === 0 && bytes[9] === 0 && bytes[10] === 0x5e && bytes[11] === 0xfe;
  return isIsatap ? [last] : [];
}

/** The eight groups of an IPv6 address in any notation. */
export function groupsOf(address: string): number[] {
  const canonical = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const [first = [], second = []] = canonical.split('::').map((part) => (part === '' ? [] : part.split(':')));
  const zeros = Array.from({ length: 8 - first.length - second.length }, () => '0');
  return [...first, ...zeros, ...second].map((group) => Number.parseInt(group, 16));
}
