/** Addresses that the gateway never connects to, unless an operator allows them. */
import { BlockList, isIP } from 'node:net';

/** The metadata services of clouds, which give out credentials: link-local addresses, and addresses of particular clouds. */
const DENIED = blockListOf([
  '169.254.0.0/16',
  'fe80::/10',
  // Alibaba, Oracle and Azure.
  '100.100.100.200',
  '192.0.0.192',
  '168.63.129.16',
  // AWS (instances, pods) and Google.
  'fd00:ec2::254',
  'fd00:ec2::23',
  'fd20:ce::254',
]);

/**
 * Returns why the gateway does not connect to an address; null: it may. `address` is a resolved address, or the host of a URL.
 */
export type AddressRule = (address: string) => string | null;

/** `allowed` has addresses and networks (`10.0.0.0/8`) that take precedence over the denied ones. */
export function createAddressRule(allowed: readonly string[]): AddressRule {
  const list = blockListOf(allowed);
  return (address) => {
    const bare = bareAddress(address);
    if (bare === null || matches(list, bare)) return null;
    const denied = [bare, ...embedded(bare)].find((form) => matches(DENIED, form) && !matches(list, form));
    if (denied === undefined) return null;
    return `${bare} is a link-local or metadata address. The gateway connects to it only if UPSTREAM_ALLOWED_ADDRESSES names it`;
  };
}

/** Addresses that only hosts of the same network reach, and addresses that are no address of a host. */
const INSIDE = blockListOf([
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.0.0.0/24'],
  ...['192.0.2.0/24', '192.168.0.0/16', '198.18.0.0/15', '198.51.100.0/24', '203.0.113.0/24', '224.0.0.0/3'],
  ...['::/128', '::1/128', '64:ff9b:1::/48', '100::/64', '2001:db8::/32', 'fc00::/7', 'fe80::/10', 'fec0::/10', 'ff00::/8'],
]);

/** Whether an address is in a private network, or is the machine itself. `address` is a resolved address, or the host of a URL. */
export function isInside(address: string): boolean {
  const bare = bareAddress(address);
  return bare !== null && [bare, ...embedded(bare)].some((form) => matches(INSIDE, form));
}

/** Like `createAddressRule`, for URLs that a stranger chose: also refuses addresses of private networks and of the machine itself. */
export function createPublicAddressRule(allowed: readonly string[]): AddressRule {
  const rule = createAddressRule(allowed);
  const list = blockListOf(allowed);
  return (address) => {
    const problem = rule(address);
    const bare = bareAddress(address);
    if (problem !== null || bare === null || matches(list, bare) || !isInside(bare)) return problem;
    return `${bare} is an address of a private network. The gateway connects to it only if UPSTREAM_ALLOWED_ADDRESSES names it`;
  };
}

/** Networks that are not part of the public internet (IANA registries of special-purpose addresses). */
const SPECIAL = blockListOf([
  ...[
    '0.0.0.0/8',
    '10.0.0.0/8',
    '100.64.0.0/10',
    '127.0.0.0/8',
    '169.254.0.0/16',
    '172.16.0.0/12',
    '192.0.0.0/24',
    '192.0.2.0/24',
  ],
  ...['192.31.196.0/24', '192.52.193.0/24', '192.88.99.0/24', '192.168.0.0/16', '192.175.48.0/24', '198.18.0.0/15'],
  ...['198.51.100.0/24', '203.0.113.0/24', '224.0.0.0/3', '168.63.129.16'],
]);
/** The part of IPv6 that is assigned to the public internet, and what is special in it. */
const GLOBAL_V6 = blockListOf(['2000::/3']);
const SPECIAL_V6 = blockListOf(['2001::/23', '2001:db8::/32', '2002::/16', '2620:4f:8000::/48', '3fff::/20']);

/** Returns whether an address belongs to the public internet, or to a network in `allowed`. Other texts do not. */
export function isPublicAddress(allowed: readonly string[]): (address: string) => boolean {
  const list = blockListOf(allowed);
  return (address) => {
    const bare = bareAddress(address);
    if (bare === null) return false;
    if (matches(list, bare)) return true;
    if (isIP(bare) === 4) return !matches(SPECIAL, bare);
    // An address of a translator or tunnel leads to the IPv4 address in it.
    return matches(GLOBAL_V6, bare) && !matches(SPECIAL_V6, bare) && embedded(bare).every((inner) => !matches(SPECIAL, inner));
  };
}

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
