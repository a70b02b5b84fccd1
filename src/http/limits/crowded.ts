/**
 * Limits what node parses. One packet can hold a thousand requests, or ten thousand chunks of a body. Node would parse all of them in one go,
 * even after the connection is closed, and 64 such connections would keep the thread from everybody for seconds. It would also keep them all,
 * each chunk as an object, while the request waits for something. And a thousand connections can send the last byte of a request together.
 */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { lane } from '../../base/turns/lane.ts';
import { bodyLength, LARGE_BODY } from '../body-length.ts';
import { addressGroup, peerOf } from './client-address.ts';

/** A request, a header and a chunk each take a line. Ordinary requests have fewer, and bodies in JSON end lines without CR. */
const MAX_LINES = 64;
const PART_BYTES = 1_024;
const END_OF_LINE = Buffer.from('\r\n');
/** Node skips any number of these before a request, so a client could keep the thread busy with them for ever. */
const SKIPPED = ['\r', '\n'].map((character) => Buffer.alloc(256, character));
/** Shorter packets are not searched for such runs. */
const LONG_PACKET = 4 * 1_024;

const crowded = new WeakSet<Socket>();

interface Input {
  /** For how many reasons node gets nothing more from the connection. */
  holds: number;
  /** For how many of them nothing more is read from it either. Then the gateway does not notice that the client leaves. */
  stops: number;
  /** What is not handed over yet. While there is any, nothing more is read. */
  readonly waiting: (Buffer | null)[];
  handOverAll(): Promise<void>;
}

const inputs = new WeakMap<Socket, Input>();

/**
 * Node gets nothing more of what the connection sends, until the returned function is called. `isUnread`: after at most one more packet,
 * nothing is read from the connection either.
 */
export function holdInput(socket: Socket, isUnread = false): () => void {
  const input = inputs.get(socket);
  if (input === undefined) return () => undefined;
  const stops = isUnread ? 1 : 0;
  input.holds++;
  input.stops += stops;
  let isHeld = true;
  return () => {
    if (!isHeld) return;
    isHeld = false;
    input.stops -= stops;
    if (--input.holds === 0) void input.handOverAll();
  };
}

/** Whether something that the connection has sent waits for its turn. */
export const hasInput = (socket: Socket): boolean => (inputs.get(socket)?.waiting.length ?? 0) > 0;

/** Whether the connection has sent a crowded packet. */
export const hasSentCrowded = (socket: Socket): boolean => crowded.has(socket);

/**
 * Keeps the rest of the body from node while the request waits. That of a small body takes little memory, and while it can arrive, the gateway
 * notices that its client leaves.
 */
export function holdBody(req: IncomingMessage): () => void {
  return req.complete ? () => undefined : holdInput(req.socket, (bodyLength(req) ?? Number.POSITIVE_INFINITY) > LARGE_BODY);
}

function isCrowded(packet: Buffer): boolean {
  let lines = 0;
  for (let at = packet.indexOf(END_OF_LINE); at !== -1; at = packet.indexOf(END_OF_LINE, at + 2)) {
    if (++lines > MAX_LINES) return true;
  }
  return packet.length > LONG_PACKET && SKIPPED.some((run) => packet.includes(run));
}

/** Calls `handOver`, at once or later, when node may get the next packet of the connection. */
export type InTurn = (packet: Buffer, handOver: () => void) => void;

/**
 * Hands the packets of the connection to node in turn, and crowded ones in parts. All connections of an address share the turns of one owner
 * in the lane, so that others keep most of the thread. Call it for each connection.
 */
export function readInTurns(socket: Socket, inTurn: InTurn = (_packet, handOver) => handOver()): void {
  const push = socket.push.bind(socket);
  const read = socket._read.bind(socket);
  const owner = addressGroup(peerOf(socket));
  const waiting: (Buffer | null)[] = [];
  let wanted: number | null = null;
  let isHandingOver = false;
  const input: Input = { holds: 0, stops: 0, waiting, handOverAll };
  inputs.set(socket, input);
  const isStopped = (): boolean => socket.destroyed || socket.isPaused() || input.holds > 0;

  /** Hands over one part. Returns whether there is nothing to do for now. */
  function handOver(size: number): boolean {
    // Parts that node buffers while it is paused would be parsed in one go afterwards.
    if (isStopped()) return true;
    const packet = waiting.shift();
    if (packet === undefined) return true;
    if (packet !== null && packet.length > size) waiting.unshift(packet.subarray(size));
    push(packet?.subarray(0, size) ?? null);
    return waiting.length === 0;
  }

  async function handOverAll(): Promise<void> {
    if (isHandingOver) return;
    isHandingOver = true;
    // Who lets the input go on may have more to do first.
    await null;
    while (waiting.length > 0 && !isStopped()) {
      const [packet] = waiting;
      if (packet && isCrowded(packet)) await lane.run(`crowded ${owner}`, () => handOver(PART_BYTES), true, false);
      else handOver(Number.POSITIVE_INFINITY);
    }
    isHandingOver = false;
    if (waiting.length > 0 || wanted === null || input.stops > 0) return;
    const size = wanted;
    wanted = null;
    read(size);
  }

  /** Returns whether node wants more. */
  function pushInTurn(packet: Buffer): boolean {
    let wantsMore: boolean | null = null;
    let release: (() => void) | null = null;
    inTurn(packet, () => {
      if (release === null) wantsMore = push(packet);
      else release();
    });
    if (wantsMore !== null) return wantsMore && input.stops === 0;
    release = holdInput(socket);
    waiting.push(packet);
    return false;
  }

  socket.push = (packet: Buffer | null): boolean => {
    if (packet === null && waiting.length === 0) return push(null);
    const isLarge = packet !== null && isCrowded(packet);
    if (isLarge) crowded.add(socket);
    if (packet !== null && !isLarge && waiting.length === 0 && input.holds === 0) return pushInTurn(packet);
    waiting.push(packet);
    void handOverAll();
    return false;
  };
  socket._read = (size: number): void => {
    if (waiting.length === 0 && input.stops === 0) read(size);
    else wanted = size;
  };
  socket.on('resume', () => void (waiting.length > 0 && handOverAll()));
  // Otherwise node's parser would read from the socket without `push`.
  socket.on('data', () => undefined);
}
