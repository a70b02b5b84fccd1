/**
 * Limits the open connections of one sender. A connection costs tens of kilobytes while its request is incomplete, without any token, so a
 * few thousand of them would take the memory of all others.
 */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { ERRORS } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { addressGroup, peerOf } from './client-address.ts';
import { hasInput, holdInput } from './crowded.ts';

export interface ConnectionLimits {
  /** How many connections one principal may have. */
  readonly ofPrincipal: number;
  /** How many connections the strangers of one address may have. */
  readonly ofAddress: number;
  /** How many connections all strangers may have. */
  readonly ofStrangers: number;
  /** A sender with no more than so many is not the one who has too many. Browsers open six at once. */
  readonly few: number;
  /** How many surplus connections are kept unread for a while before they are closed. */
  readonly mostLeaving: number;
}

const LIMITS: ConnectionLimits = { ofPrincipal: 1_024, ofAddress: 512, ofStrangers: 1_024, few: 8, mostLeaving: 1_024 };
/**
 * A client whose connection is closed opens the next one at once, and connections of users wait behind it. The time varies up to twice as long,
 * so that these clients spread.
 */
const CLOSED_AFTER_MS = 2_000;
/** Behind a proxy: how long the body may arrive after its request was answered, and how many such connections there may be. */
const BODY_AFTER_ANSWER_MS = 5_000;
const MOST_UNFINISHED = 512;
/** How long closed connections are counted for one line of the log. */
const LOGGED_AFTER_MS = 60_000;

/** Who has sent a packet. */
export interface PacketSender {
  /** The principal, or the address of a stranger. */
  readonly sender: string;
  readonly isStranger: boolean;
  /** Whether the packet belongs to the body of a request that has begun. */
  readonly isBody: boolean;
  readonly isHealth: boolean;
}

interface Connection {
  readonly socket: Socket;
  /** The principal, or the address of a stranger. Empty: behind a proxy, the first request has not come yet. */
  sender: string;
  isStranger: boolean;
  /** Whether a request has been answered on it. */
  wasAnswered: boolean;
  /** Whether it was closed because its sender had too many. */
  wasClosed: boolean;
  /**
   * The last request, and its answer, until that is closed and the whole body has arrived. `isAhead`: it was sent before the answer to the one
   * before it.
   */
  last: { readonly req: IncomingMessage; readonly res: ServerResponse; readonly isAhead: boolean } | null;
}

const SURPLUS = JSON.stringify({
  type: 'urn:portcullis:problem:too_many_requests',
  title: ERRORS.too_many_requests.title,
  status: ERRORS.too_many_requests.status,
  detail:
    'Too many requests of your address or user are open at once, so the gateway has ended this one. It may have been carried out.',
  code: 'too_many_requests',
});
const REFUSAL = [
  `HTTP/1.1 ${ERRORS.too_many_requests.status} Too Many Requests`,
  ...['Content-Type: application/problem+json', 'Cache-Control: no-store', 'Retry-After: 1'],
  ...[`Content-Length: ${SURPLUS.length}`, 'Connection: close', '', SURPLUS],
].join('\r\n');

interface Found {
  oldest: Connection | null;
  count: number;
}

interface Senders {
  /** Returns the principal if its token was admitted the last time. */
  readonly principalOf: (req: IncomingMessage) => string | null;
  readonly addressOf: (req: IncomingMessage) => string;
}

/** Whether the gateway works on a complete request of the connection, or lets one wait before it looks at it. */
const isServing = ({ last, socket }: Connection): boolean =>
  (last?.req.complete === true && !last.res.closed) || hasInput(socket);

/**
 * A stranger is a sender whose token was not admitted the last time, or who has none. At its limit, a principal loses its oldest connection
 * on which no request is being answered, or gets no more. At their limits, the strangers of an address lose their oldest connection with such
 * a request or without, whichever they have more of: a user's new connection is also that of a stranger until its token is read, and must not
 * be the one that is lost, whether the others keep their requests open or send none. At the limit of all strangers, the address with most
 * connections loses one. Behind a proxy, only connections with an open request count.
 */
export function limitConnections(
  { principalOf, addressOf }: Senders,
  trustProxy: boolean,
  log: Pick<Log, 'warn'>,
  limits: ConnectionLimits = LIMITS,
) {
  const bySocket = new WeakMap<Socket, Connection>();
  /** The connections of each principal and of each stranger's address, oldest first. */
  const principals = new Map<string, Set<Connection>>();
  const strangers = new Map<string, Set<Connection>>();
  /** Behind a proxy, the requests that were answered before their bodies arrived, each with the function that ends its connection, oldest first. */
  const unfinished = new Map<IncomingMessage, () => void>();
  let ofStrangers = 0;
  let closed = 0;
  let leaving = 0;

  function uncount(connection: Connection): void {
    const { isStranger, sender } = connection;
    const senders = isStranger ? strangers : principals;
    const own = senders.get(sender);
    if (own?.delete(connection) !== true) return;
    if (own.size === 0) senders.delete(sender);
    if (isStranger) ofStrangers--;
  }

  function assign(connection: Connection, sender: string, isStranger: boolean): void {
    const senders = isStranger ? strangers : principals;
    const own = senders.get(sender) ?? new Set();
    if (own.has(connection) || connection.wasClosed) return;
    uncount(connection);
    connection.sender = sender;
    connection.isStranger = isStranger;
    senders.set(sender, own.add(connection));
    if (isStranger) ofStrangers++;
    if (own.size > (isStranger ? limits.ofAddress : limits.ofPrincipal)) closeOne(own, connection);
    else if (isStranger && ofStrangers > limits.ofStrangers) {
      const all = [...strangers.values()];
      const most = all.reduce((largest, others) => (others.size > largest.size ? others : largest));
      // If no address has many, the one that came first loses a connection. A user can open several at once, and others can have many addresses.
      closeOne(most.size > limits.few ? most : (all[0] ?? most), connection);
    }
  }

  /**
   * After the answer, a proxy can use its connection for the request of anybody, as soon as it has sent the body. To close it then would lose
   * that request. What the proxy has sent may still wait for its turn here.
   */
  function giveBack(connection: Connection, req: IncomingMessage): void {
    uncount(connection);
    if (req.complete || req.socket.destroyed) return;
    const { socket } = req;
    let timer: NodeJS.Timeout | undefined;
    const endLater = (): void => {
      timer = setTimeout(end, BODY_AFTER_ANSWER_MS).unref();
      unfinished.set(req, end);
    };
    const end = (): void => {
      clearTimeout(timer);
      unfinished.delete(req);
      // In between, the event loop reads what has arrived.
      setImmediate(() => {
        if (req.complete || socket.destroyed) return;
        if (hasInput(socket)) endLater();
        else socket.destroy();
      });
    };
    endLater();
    req.once('close', () => {
      clearTimeout(timer);
      unfinished.delete(req);
    });
    const [oldest] = unfinished.values();
    if (unfinished.size > MOST_UNFINISHED) oldest?.();
  }

  function assignBy(connection: Connection, req: IncomingMessage): void {
    const principal = principalOf(req);
    assign(connection, principal ?? addressOf(req), principal === null);
  }

  /** The request of a stranger whose token has been admitted since it began; null: there is none. */
  const knownOn = ({ last, isStranger }: Connection): IncomingMessage | null =>
    isStranger && last !== null && principalOf(last.req) !== null ? last.req : null;

  function closeOne(own: ReadonlySet<Connection>, newest: Connection): void {
    const serving: Found = { oldest: null, count: 0 };
    const idle: Found = { oldest: null, count: 0 };
    for (const connection of own) {
      if (connection === newest) continue;
      const isIdle = !isServing(connection);
      const known = isIdle ? null : knownOn(connection);
      if (known !== null) {
        assignBy(connection, known);
        return;
      }
      const found = isIdle ? idle : serving;
      found.oldest ??= connection;
      found.count++;
    }
    close((newest.isStranger && serving.count > idle.count ? serving : idle).oldest ?? newest, own.size > limits.few);
  }

  /**
   * Behind a proxy, its request is refused: a proxy can take a gateway that closes connections for broken, and send it nothing for a while.
   * Returns whether the refusal could be sent.
   */
  function refuse({ socket, last }: Connection): boolean {
    if (last !== null && (last.isAhead || last.res.headersSent)) return false;
    socket.end(REFUSAL);
    return true;
  }

  /** `mayStay`: its sender has many. */
  function close(connection: Connection, mayStay: boolean): void {
    uncount(connection);
    connection.wasClosed = true;
    const { socket } = connection;
    // A browser would send its next request on a connection that was answered.
    const isUnused = connection.isStranger && !connection.wasAnswered && !isServing(connection);
    if ((trustProxy ? refuse(connection) : mayStay && isUnused) && leaving < limits.mostLeaving) {
      leaving++;
      holdInput(socket, true);
      setTimeout(() => socket.destroy(), CLOSED_AFTER_MS * (1 + Math.random())).unref();
      socket.once('close', () => leaving--);
    } else socket.destroy();
    if (closed++ > 0) return;
    setTimeout(() => {
      log.warn({ closed, ...limits }, 'connections were closed, because their senders had too many');
      closed = 0;
    }, LOGGED_AFTER_MS).unref();
  }

  return {
    /** Whose next packet it is. null: it begins a request, which can be that of a proxy, or the first one of a user. */
    senderOf(socket: Socket): PacketSender | null {
      const connection = bySocket.get(socket);
      if (connection === undefined) return null;
      const { sender, isStranger, last } = connection;
      const isBody = last?.req.complete === false;
      return isBody || !(trustProxy || isStranger) ? { sender, isStranger, isBody, isHealth: false } : null;
    },

    /** Closes a connection whose request waits, because too many of its sender do. */
    refuse(socket: Socket): void {
      const connection = bySocket.get(socket);
      if (connection === undefined) socket.destroy();
      else close(connection, true);
    },

    /** Call it for each new connection. */
    note(socket: Socket): void {
      const connection: Connection = { socket, sender: '', isStranger: true, wasAnswered: false, wasClosed: false, last: null };
      bySocket.set(socket, connection);
      socket.once('close', () => uncount(connection));
      if (!trustProxy) assign(connection, addressGroup(peerOf(socket)), true);
    },

    /** Notes whose connection it is, before `handle` gets the request. */
    noting:
      (handle: RequestListener): RequestListener =>
      (req, res) => {
        const connection = bySocket.get(req.socket);
        // After its end it must not be counted again: nothing would take it away.
        if (connection !== undefined && !req.socket.destroyed) {
          const last = { req, res, isAhead: connection.last?.res.closed === false };
          connection.last = last;
          // A head takes up to 30 KB, and there can be thousands of connections.
          res.once('close', () => {
            connection.wasAnswered = true;
            if (connection.last === last && req.complete) connection.last = null;
            if (trustProxy) giveBack(connection, req);
          });
          assignBy(connection, req);
          if (connection.wasClosed) return;
        }
        handle(req, res);
      },
  };
}
