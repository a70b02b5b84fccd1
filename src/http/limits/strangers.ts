/** The turns of requests that begin only in spare time: those that anybody can send, and those of crowded addresses. */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { AppError } from '../../base/errors.ts';
import { starts } from '../../base/turns/caller-turns.ts';
import { createSpareTurns, type SpareTurns } from '../../base/turns/spare-turns.ts';
import { addressGroup } from './client-address.ts';
import type { PacketSender } from './connections.ts';
import { holdBody } from './crowded.ts';
import { HEAD_END } from './first-look.ts';

const LIMITS = { mostUnderWay: 2, longestRestMs: 25, mostWaiting: 100, mostAtOnce: 1 };
/** A request whose body has not arrived gives its turn back soon: its work has not begun, and its sender may be slow on purpose. */
const BODY_MS = 10;
/** Requests without a known token are never refused here: they can be those of a load balancer, or the first ones of a user. */
const UNKNOWN = {
  mostUnderWay: Number.POSITIVE_INFINITY,
  longestRestMs: 5,
  mostWaiting: Number.POSITIVE_INFINITY,
  mostAtOnce: 8,
};
/** How many packets of one address may wait. Behind a proxy, nothing counts the connections of an address whose requests wait. */
const MOST_PACKETS = 1_024;
const PACKETS = { most: Number.POSITIVE_INFINITY, partOf: null };
const unknown = createSpareTurns(UNKNOWN);
/** Health checks of a load balancer do not wait behind other requests: there can be thousands of addresses. */
const checks = createSpareTurns(UNKNOWN);
const strangers = createSpareTurns(LIMITS);
const crowds = createSpareTurns(LIMITS);

async function come(turns: SpareTurns, key: string, whose: string, res: ServerResponse, rank = 0): Promise<void> {
  const release = holdBody(res.req);
  const end = await turns.come(key, () => res.closed, rank);
  release();
  if (end === null)
    throw new AppError('too_many_requests', `Too many requests of your ${whose} wait. Try again in 1 s.`, { retryAfter: 1 });
  if (res.closed) end();
  else res.once('close', end);
  if (!res.req.complete) setTimeout(end, BODY_MS).unref();
}

/** The connections whose next request has had its turn. */
const hadTurn = new WeakSet<Socket>();

/**
 * Begins a request without a token that was admitted before. The first request of a packet had its turn with the packet. Requests behind it wait
 * for the turn of their address. If its client leaves, a request does not begin.
 */
export async function beginUnknown(req: IncomingMessage, res: ServerResponse, address: string, begin: () => void): Promise<void> {
  if (hadTurn.delete(req.socket)) return begin();
  const release = holdBody(req);
  const end = await unknown.come(address, () => res.closed || !req.socket.writable);
  release();
  if (end !== null) begin();
}

interface Packet {
  /** The sender, if the connection tells. */
  readonly known: PacketSender | null;
  /** Finds the sender in the packet. */
  readonly look: () => PacketSender;
  readonly handOver: () => void;
  /** Called instead if too many packets of the address wait. */
  readonly refuse: () => void;
}

/** Who sends the head that has begun on a connection and is not complete. */
const inHead = new WeakMap<Socket, PacketSender>();

/** Put it around what gets the requests: their heads are complete. */
export const endingHeads =
  (handle: RequestListener): RequestListener =>
  (req, res) => {
    inHead.delete(req.socket);
    handle(req, res);
  };

/**
 * Hands over a packet when it is the turn of its sender, because its last byte can begin work. Packets of strangers wait for spare time, unless
 * they only begin a head: a thousand addresses that do so must not keep others waiting.
 */
export function packetInTurn(socket: Socket, packet: Buffer, { known, look, handOver, refuse }: Packet): void {
  const from = known ?? inHead.get(socket) ?? look();
  const isPart = !from.isBody && !packet.includes(HEAD_END);
  if (isPart) inHead.set(socket, from);
  else inHead.delete(socket);
  if (from.isStranger && !isPart) {
    const turns = from.isHealth ? checks : unknown;
    if (turns.waitingOf(from.sender) >= MOST_PACKETS) {
      refuse();
      return;
    }
    void turns
      .come(from.sender, () => socket.destroyed)
      .then(() => {
        if (!from.isBody) hadTurn.add(socket);
        handOver();
      });
    return;
  }
  const work = (end: () => void): void => {
    handOver();
    end();
  };
  starts.run(`packets of ${from.sender}`, work, PACKETS, from.isStranger ? null : from.sender);
}

/** Resolves when it is the turn of the address. Throws AppError `too_many_requests` if too many of its requests wait already, or if the client is gone. */
export const turnOfStranger = (res: ServerResponse, address: string): Promise<void> =>
  come(strangers, addressGroup(address), 'address', res);

/** The same for a principal whose address has used up its limit. Every other turn is that of who has sent fewest requests in this minute (`uses`). */
export const turnInCrowd = (res: ServerResponse, principal: string, uses: number): Promise<void> =>
  come(crowds, principal, 'user', res, uses);
