/**
 * What the headers of a request say. A client repeats its headers with each request of a session, so what follows from them is found once
 * for consecutive requests with the same headers on one connection.
 */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';

/** Requests with the same headers on the same connection have the same head. */
export interface Head {
  /** As in IncomingMessage.rawHeaders. Only the value of Content-Length may differ between the requests. */
  readonly raw: readonly string[];
}

/** `latest`: the headers of the last request that has this head. */
const heads = new WeakMap<Socket, { readonly head: Head; latest: readonly string[] }>();

export function headOf({ socket, rawHeaders }: IncomingMessage): Head {
  const known = heads.get(socket);
  if (known !== undefined && (known.latest === rawHeaders || isSame(known.latest, rawHeaders))) {
    known.latest = rawHeaders;
    return known.head;
  }
  const head: Head = { raw: rawHeaders };
  heads.set(socket, { head, latest: rawHeaders });
  return head;
}

function isSame(before: readonly string[], now: readonly string[]): boolean {
  if (before.length !== now.length) return false;
  for (let at = 0; at < now.length; at++) {
    if (now[at] !== before[at] && !(at % 2 === 1 && now[at - 1]?.toLowerCase() === 'content-length')) return false;
  }
  return true;
}

/** Returns every value of the header. Node itself keeps only the first, or joins them. `name`: in lower case. */
export function valuesOf({ raw }: Head, name: string): string[] {
  const values: string[] = [];
  for (let at = 0; at + 1 < raw.length; at += 2) {
    const sent = raw[at] ?? '';
    if (sent.length === name.length && sent.toLowerCase() === name) values.push(raw[at + 1] ?? '');
  }
  return values;
}
