/**
 * Limits the open connections of one sender. A connection costs tens of kilobytes while its request is incomplete, without any token, so a
 * few thousand of them would take the memory of all others.
 */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Log } from '../../base/log.ts';
import { addressGroup, peerOf } from './client-address.ts';

export interface ConnectionLimits {
  /** How many connections one principal may have. */
  readonly ofPrincipal: number;
  /** How many connections the strangers of one address may have. */
  readonly ofAddress: number;
  /** How many connections all strangers may have. */
  readonly ofStrangers: number;
}

const LIMITS: ConnectionLimits = { ofPrincipal: 1_024, ofAddress: 512, ofStrangers: 2_048 };
/** How long closed connections are counted for one line of the log. */
const LOGGED_AFTER_MS = 60_000;

interface Connection {
  readonly socket: Socket;
  /** The principal, or the address of a stranger. Empty: behind a proxy, the first request has not come yet. */
  sender: string;
  isStranger: boolean;
  /** The last request, and its answer. */
  last: { readonly req: IncomingMessage; readonly res: ServerResponse } | null;
}

interface Senders {
  /** Returns the principal if its token was admitted the last time. */
  readonly principalOf: (req: IncomingMessage) => string | null;
  readonly addressOf: (req: IncomingMessage) => string;
}

/** Whether the gateway works on a complete request of the connection. */
const isServing = ({ last }: Connection): boolean => last?.req.complete === true && !last.res.closed;

/**
 * A stranger is a sender whose token was not admitted the last time, or who has none. At a limit, the oldest connection of the sender is
 * closed on which no request is being answered; if there is none, the new connection.
 */
export function limitConnections(
  { principalOf, addressOf }: Senders,
  trustProxy: boolean,
  log: Pick<Log, 'warn'>,
  limits: ConnectionLimits = LIMITS,
) {
  const bySocket = new WeakMap<Socket, Connection>();
  /** The connections of each sender, oldest first. */
  const bySender = new Map<string, Set<Connection>>();
  const strangers = new Set<Connection>();
  let closed = 0;

  function leave(connection: Connection): void {
    strangers.delete(connection);
    const own = bySender.get(connection.sender);
    if (own?.delete(connection) && own.size === 0) bySender.delete(connection.sender);
  }

  function assign(connection: Connection, sender: string, isStranger: boolean): void {
    if (connection.sender === sender) return;
    leave(connection);
    connection.sender = sender;
    connection.isStranger = isStranger;
    const own = bySender.get(sender) ?? new Set();
    bySender.set(sender, own.add(connection));
    if (isStranger) strangers.add(connection);
    if (own.size > (isStranger ? limits.ofAddress : limits.ofPrincipal)) closeOne(own, connection);
    else if (strangers.size > limits.ofStrangers) closeOne(strangers, connection);
  }

  function assignBy(connection: Connection, req: IncomingMessage): void {
    const principal = principalOf(req);
    assign(connection, principal ?? addressOf(req), principal === null);
  }

  function closeOne(among: Iterable<Connection>, newest: Connection): void {
    for (const connection of among) {
      const { last, isStranger } = connection;
      if (isServing(connection)) {
        // Its token may have been admitted since its last request began.
        if (!isStranger || last === null || principalOf(last.req) === null) continue;
        assignBy(connection, last.req);
      } else close(connection);
      return;
    }
    close(newest);
  }

  function close(connection: Connection): void {
    leave(connection);
    connection.socket.destroy();
    if (closed++ > 0) return;
    setTimeout(() => {
      log.warn({ closed, ...limits }, 'connections were closed, because their senders had too many');
      closed = 0;
    }, LOGGED_AFTER_MS).unref();
  }

  return {
    /** Call it for each new connection. */
    note(socket: Socket): void {
      const connection: Connection = { socket, sender: '', isStranger: true, last: null };
      bySocket.set(socket, connection);
      socket.once('close', () => leave(connection));
      if (!trustProxy) assign(connection, addressGroup(peerOf(socket)), true);
    },

    /** Notes whose connection it is, before `handle` gets the request. */
    noting:
      (handle: RequestListener): RequestListener =>
      (req, res) => {
        const connection = bySocket.get(req.socket);
        // After its end it must not be counted again: nothing would take it away.
        if (connection !== undefined && !req.socket.destroyed) {
          connection.last = { req, res };
          assignBy(connection, req);
        }
        handle(req, res);
      },
  };
}
