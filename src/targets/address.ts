/** Addresses that the gateway never connects to. */
import { BlockList, isIP } from 'node:net';

const LINK_LOCAL = new BlockList();
LINK_LOCAL.addSubnet('169.254.0.0', 16, 'ipv4');
LINK_LOCAL.addSubnet('fe80::', 10, 'ipv6');
// The same IPv4 network as a NAT64 gateway, a 6to4 relay and the old IPv4-compatible form name it, and the IPv6 name of a cloud's metadata service.
LINK_LOCAL.addSubnet('64:ff9b::a9fe:0', 112, 'ipv6');
LINK_LOCAL.addSubnet('2002:a9fe::', 32, 'ipv6');
LINK_LOCAL.addSubnet('::a9fe:0', 112, 'ipv6');
LINK_LOCAL.addAddress('fd00:ec2::254', 'ipv6');

/**
 * Where clouds keep the credentials of their machines. `address` is what a name resolved to, or the host of a URL; IPv4
 * addresses written as IPv6 ones (`::ffff:169.254.1.1`) count, which BlockList maps back.
 */
export function isLinkLocal(address: string): boolean {
  const bare = address.replace(/^\[|\]$/g, '').replace(/%.*$/, '');
  const family = isIP(bare);
  return family !== 0 && LINK_LOCAL.check(bare, family === 4 ? 'ipv4' : 'ipv6');
}
