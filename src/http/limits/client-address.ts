/** Determines the client address of a request. */

import type { IncomingMessage } from 'node:http';
import { BlockList, isIP, type Socket } from 'node:net';
import { groupsOf, isLoopbackName } from '../../base/network/network-address.ts';

const loopback = new BlockList();
loopback.addSubnet('127.0.0.0', 8, 'ipv4');
loopback.addAddress('::1', 'ipv6');

const plain = (address: string): string => address.replace(/^::ffff:(?=[0-9.]+$)/i, '');

/** Returns the IP address of the other end: a client or its proxy. */
export const peerOf = ({ remoteAddress }: Socket): string => plain(remoteAddress ?? '');

/**
 * Returns the client's IP address. Behind a trusted proxy it is the last entry of X-Forwarded-For: only that entry is written by
 * the proxy.
 */
export function addressOf({ socket, headersDistinct }: IncomingMessage, trustProxy: boolean): string {
  return trustProxy ? forwardedAddress(headersDistinct['x-forwarded-for']?.join(','), socket) : peerOf(socket);
}

/** The same for the value of X-Forwarded-For. */
export function forwardedAddress(forwardedFor: string | undefined, socket: Socket): string {
  const last = plain(forwardedFor?.slice(forwardedFor.lastIndexOf(',') + 1).trim() ?? '');
  return isIP(last) === 0 ? peerOf(socket) : last;
}

/** Returns the address, or for IPv6 its /64 network, to count requests by. An IPv6 client can choose any address in its /64. */
export const addressGroup = (address: string): string => network(address, 4);

/**
 * Returns the address, or for IPv6 its /48 network, to count by what stays stored, or waits for a check of a password. A provider gives a
 * customer up to a /48, which has 65,536 networks for `addressGroup`.
 */
export const addressSite = (address: string): string => network(address, 3);

function network(address: string, groups: number): string {
  if (isIP(address) !== 6) return address;
  const first = groupsOf(address.replace(/%.*$/, '')).slice(0, groups);
  return `${first.map((group) => group.toString(16)).join(':')}::/${groups * 16}`;
}

/**
 * Whether the request certainly comes from this host. A request forwarded by a proxy on this host does not: it says so, or it names the host that
 * its client asked for.
 */
export function isLocal(req: IncomingMessage): boolean {
  const address = peerOf(req.socket);
  const family = isIP(address);
  const carried = ['x-forwarded-for', 'x-real-ip', 'forwarded', 'via'].some((name) => req.headers[name] !== undefined);
  return !carried && namesLoopback(req.headers.host) && family !== 0 && loopback.check(address, family === 6 ? 'ipv6' : 'ipv4');
}

function namesLoopback(host: string | undefined): boolean {
  const url = `http://${host ?? ''}`;
  return URL.canParse(url) && isLoopbackName(new URL(url).hostname);
}
