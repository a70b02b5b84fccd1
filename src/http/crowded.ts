/**
 * Limits what node parses at once. One packet can hold more than a thousand requests. Node would parse all of them in one go, even
 * after the connection is closed, and 64 such connections would keep the thread from everybody for seconds.
 */
import type { Socket } from 'node:net';

/** A chunk with more empty lines may hold as many requests. Few bodies have so many, because JSON needs no empty line. */
const MAX_EMPTY_LINES = 32;
/** So many requests do not fit into fewer bytes. */
const FEW_BYTES = 1_024;
const PART_BYTES = 1_024;
/** The end of a line, and an empty line after it. */
const EMPTY_LINES = [Buffer.from('\n\r\n'), Buffer.from('\n\n')];

function isCrowded(chunk: Buffer): boolean {
  if (chunk.length <= FEW_BYTES) return false;
  let found = 0;
  for (const line of EMPTY_LINES) {
    for (let at = chunk.indexOf(line); at !== -1; at = chunk.indexOf(line, at + 1)) {
      if (++found > MAX_EMPTY_LINES) return true;
    }
  }
  return false;
}

/** Hands crowded chunks of the connection to node in parts, between which the event loop serves others. Call it for each connection. */
export function readCrowdedInParts(socket: Socket): void {
  const push = socket.push.bind(socket);
  const read = socket._read.bind(socket);
  /** What is not handed over yet. While there is any, nothing more is read. */
  const waiting: (Buffer | null)[] = [];
  let wanted: number | null = null;

  function handOver(): void {
    const [chunk] = waiting;
    if (socket.destroyed || chunk === undefined) return;
    waiting.shift();
    if (chunk !== null && chunk.length > PART_BYTES) waiting.unshift(chunk.subarray(PART_BYTES));
    push(chunk?.subarray(0, PART_BYTES) ?? null);
    if (waiting.length > 0) setImmediate(handOver);
    else if (wanted !== null) {
      const size = wanted;
      wanted = null;
      read(size);
    }
  }

  socket.push = (chunk: Buffer | null): boolean => {
    if (waiting.length === 0 && (chunk === null || !isCrowded(chunk))) return push(chunk);
    waiting.push(chunk);
    if (waiting.length === 1) handOver();
    return false;
  };
  socket._read = (size: number): void => {
    if (waiting.length === 0) read(size);
    else wanted = size;
  };
  // Otherwise node's parser would read from the socket without `push`.
  socket.on('data', () => undefined);
}
