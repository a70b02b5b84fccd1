/**
 * Opens connections to targets within time limits, and never to the addresses where clouds serve the credentials of a machine.
 */

import { subscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { Agent, type DiagnosticsChannel, type Dispatcher } from 'undici';
import { guardedConnector } from '../../base/network/guarded-connect.ts';
import type { AddressRule } from '../../base/network/network-address.ts';
import { readInTurns } from './reading-turns.ts';
import type { Reach } from './upstream.ts';

/** The sources that pay for reading answers, see `reading-turns.ts`: by request, and by the connection that carries it. */
const sourceOfRequest = new WeakMap<DiagnosticsChannel.Request, string>();
const sourceOfSocket = new WeakMap<Socket, string>();
/** The source of the request that undici is creating. */
let creating: string | null = null;

// undici does not tell in another way which of its connections a request takes.
subscribe('undici:request:create', (message) => {
  if (creating !== null) sourceOfRequest.set((message as DiagnosticsChannel.RequestCreateMessage).request, creating);
});
subscribe('undici:client:sendHeaders', (message) => {
  const { request, socket } = message as DiagnosticsChannel.ClientSendHeadersMessage;
  const source = sourceOfRequest.get(request);
  if (source !== undefined) sourceOfSocket.set(socket, source);
});

/** Runs `send`, which begins a request. `source`: the account that pays for reading the answer. */
function paidBy<T>(source: string, send: () => T): T {
  creating = source;
  try {
    return send();
  } finally {
    creating = null;
  }
}

/** A connection that no request has taken yet is read at the cost of its target. */
export function createAgent(connectTimeoutMs: number, problemOf: AddressRule, targetId: string): Agent {
  const connect = guardedConnector(problemOf, { timeout: connectTimeoutMs });
  return new Agent({
    connect: (options, callback) =>
      connect(options, (...[error, socket]) =>
        error === null
          ? callback(null, contained(readInTurns(patient(socket), (own) => sourceOfSocket.get(own) ?? targetId)))
          : callback(error, null),
      ),
  });
}

/** Connections to targets with separate accounts: one that costs much must not delay others behind the same host and port. */
export function createAgents(connectTimeoutMs: number, problemOf: AddressRule) {
  const agents = new Map<string, Agent>();
  function of(targetId: string): Agent {
    const known = agents.get(targetId);
    if (known !== undefined) return known;
    const agent = createAgent(connectTimeoutMs, problemOf, targetId);
    agents.set(targetId, agent);
    return agent;
  }
  return {
    dispatch(targetId: string, user: string, options: Agent.DispatchOptions, handler: Dispatcher.DispatchHandler): void {
      paidBy(sourceOf(targetId, user), () => of(targetId).dispatch(options, handler));
    },
    request: (targetId: string, user: string, options: Dispatcher.RequestOptions): Promise<Dispatcher.ResponseData> =>
      paidBy(sourceOf(targetId, user), () => of(targetId).request(options)),
    async destroy(): Promise<void> {
      await Promise.all([...agents.values()].map((agent) => agent.destroy()));
    },
  };
}

/** The account that pays for reading what a target sends to a user, so that it does not delay what it sends to others. */
export const sourceOf = (targetId: string, user: string): string => `${user} at ${targetId}`;

export const sourceAt = ({ target, access }: Reach): string => sourceOf(target.id, access.user);

/**
 * Delays the end of the connection until undici asks for more bytes. A paused undici parser asks for none and would treat the end
 * as an error: the unread part of an answer that ends with its connection would be lost.
 */
function patient<S extends Socket>(socket: S): S {
  const push = socket.push.bind(socket);
  const read = socket.read.bind(socket);
  let endWaits = false;
  socket.push = (chunk: unknown, encoding?: BufferEncoding): boolean => {
    if (chunk !== null) return push(chunk, encoding);
    endWaits = true;
    socket.emit('readable');
    return false;
  };
  socket.read = (size?: number): unknown => {
    // Node's own reads pass a size.
    if (endWaits && size === undefined && socket.readableLength === 0) {
      endWaits = false;
      push(null);
    }
    return read(size);
  };
  return socket;
}

/**
 * Keeps an exception that undici throws in a listener from ending the process. undici throws if an answer breaks off while its
 * reader has paused it. Here the exception ends only the connection.
 */
function contained<S extends Socket>(socket: S): S {
  const emit = socket.emit.bind(socket) as (event: string | symbol, ...args: unknown[]) => boolean;
  socket.emit = (event: string | symbol, ...args: unknown[]): boolean => {
    try {
      return emit(event, ...args);
    } catch (fault) {
      if (socket.destroyed) return emit('error', fault);
      socket.destroy(fault as Error);
      return true;
    }
  };
  return socket;
}
