/**
 * One process of a target and the sessions that it serves: one, which it speaks with as with its client, or several, which
 * share it. Those see what the gateway, as the one client, passes on to each: answers to what it asked itself, and nothing
 * that another has caused.
 */
import { isObject, type JsonObject } from '../../http/json.ts';
import { readLargeJson } from '../../http/json-large.ts';
import { isUnread } from '../../http/json-steps.ts';
import type { Log } from '../../log.ts';
import type { Cancellable } from '../cancellation.ts';
import { isSessionRevision, SESSION_REVISIONS } from '../era.ts';
import {
  CODES,
  errorMessage,
  type RpcId,
  type RpcMessage,
  type RpcNotification,
  type RpcRequest,
  resultMessage,
} from '../message.ts';
import type { Located } from '../rebuild.ts';
import { TARGET_RULES } from '../selection.ts';
import { ABORTED, createCalls, type Patience } from './calls.ts';
import { createEventQueue, type EventQueue } from './events.ts';
import { type Line, printable } from './lines.ts';
import { ProcessFault, type ProcessSpec, startProcess } from './process.ts';
import type { UnreadAccount } from './unread.ts';
import type { UpstreamFault, UpstreamLimits } from './upstream.ts';

/** Characters that nobody has read yet, from which on the process of one session waits until they are. */
const UNREAD_LENGTH = 1024 * 1024;
/** Kept for a client that has no stream open. */
const HELD_MESSAGES = 64;
const HELD_LENGTH = 1024 * 1024;

export interface Host {
  /** Also of the sessions that have left. */
  readonly lastUsed: number;
  readonly startedAt: number;
  /** A stream is open: that of a request, or a standing one. */
  readonly isBusy: boolean;
  /** Requests under way. */
  readonly underWay: number;
  readonly sessions: ReadonlyMap<string, HostSession>;
  /** Shared by several sessions. */
  readonly shared: boolean;
  /** Answers `initialize`. */
  open(request: RpcRequest, located: Located, signal?: Cancellable): Promise<Opened | UpstreamFault>;
  post(session: HostSession, message: RpcMessage, located: Located, signal?: Cancellable): Posted;
  /** null: a standing stream is open already. */
  listen(session: HostSession, signal?: Cancellable): EventQueue | UpstreamFault | null;
  leave(session: HostSession): void;
  end(why: string): void;
  /** When the process is gone. */
  readonly gone: Promise<void>;
}

export interface HostSession {
  readonly id: string;
  /** Open streams. */
  streams: number;
  standing: EventQueue | null;
  lastUsed: number;
}

export interface Opened {
  readonly text: string;
  /** null: the answer opens no session. */
  readonly sessionId: string | null;
}

interface Introduction {
  readonly result: JsonObject;
}

/** The stream of an answer, a whole one, or what became of the message. `lost`: the session has ended with its process. */
export type Posted = EventQueue | { readonly text: string } | UpstreamFault | 'accepted' | 'misplaced' | 'lost';

export interface HostDeps {
  readonly limits: UpstreamLimits;
  readonly newId: () => string;
  readonly now: () => number;
  readonly log: Log;
  /** For the one process. */
  readonly unread: UnreadAccount;
}

/** `closed`: once, when its sessions have ended. `failed` says that the process ended by itself, or for what it did. */
export function startHost(
  spec: ProcessSpec & Patience,
  shared: boolean,
  deps: HostDeps,
  closed: (failed: boolean) => void,
): Host {
  const { limits, newId, now, unread: account } = deps;
  const startedAt = now();
  const sessions = new Map<string, HostSession>();
  const queues = new Set<EventQueue>();
  const held: { readonly text: string; readonly id: RpcId | null }[] = [];
  let heldLength = 0;
  let unread = 0;
  let lastUsed = startedAt;
  let isClosed = false;
  let endedFor: (why: ProcessFault) => void = () => undefined;
  const ended = new Promise<ProcessFault>((resolve) => {
    endedFor = resolve;
  });

  const process = startProcess(
    spec,
    limits.answerBytes,
    {
      line: take,
      ended(why) {
        close(true, why);
        endedFor(why);
      },
    },
    deps.log,
  );
  const calls = createCalls(process, spec, {
    createQueue,
    isCrowded: (queue) => shared && queue.pending > UNREAD_LENGTH,
    taskProgress(text) {
      for (const { standing } of sessions.values()) standing?.push(text);
    },
  });

  function close(failed: boolean, why: ProcessFault): void {
    if (isClosed) return;
    isClosed = true;
    calls.fail(why);
    for (const { standing } of sessions.values()) standing?.end();
    account.close();
    closed(failed);
    sessions.clear();
  }

  function touch(session: HostSession | undefined): void {
    lastUsed = now();
    if (session !== undefined) session.lastUsed = lastUsed;
  }

  function createQueue(owner: string, whenClosed: () => void): EventQueue {
    const session = sessions.get(owner);
    if (session !== undefined) session.streams++;
    const queue = createEventQueue({
      moved(delta) {
        unread += delta;
        relieve(account.set(unread));
      },
      closed() {
        queues.delete(queue);
        if (session !== undefined) session.streams--;
        touch(session);
        whenClosed();
      },
    });
    queues.add(queue);
    return queue;
  }

  /** Its own process waits for a session. Where too much of a target waits, the stream that is most behind is given up. */
  function relieve(fault: Error | null): void {
    if (fault !== null) fullest()?.fail(new ProcessFault('busy', fault.message));
    else if (!shared && unread > UNREAD_LENGTH) process.pause();
    else if (!shared) process.resume();
  }

  function fullest(): EventQueue | undefined {
    return [...queues].sort((a, b) => b.pending - a.pending)[0];
  }

  function take(line: Exclude<Line, { kind: 'garbage' }>): void {
    const message = line.kind === 'message' ? line.message : null;
    if (message?.kind === 'request') asked(message, line);
    else if (message?.kind === 'notification' && message.method !== 'notifications/progress') noticed(message, line);
    else calls.receive(line);
  }

  function asked({ id, method }: RpcRequest, line: Line): void {
    // The other end of the pipe is the gateway, and it is there.
    if (method === 'ping') process.send(resultMessage(id, '{}'));
    else if (shared) process.send(errorMessage(id, NO_METHOD));
    else deliver(textOf(line), id);
  }

  function noticed({ method }: RpcNotification, line: Line): void {
    if (!shared) deliver(textOf(line), null);
    if (!shared || !LIST_CHANGES.includes(method)) return;
    const text = JSON.stringify({ jsonrpc: '2.0', method });
    for (const { standing } of sessions.values()) {
      if (standing !== null && standing.pending < UNREAD_LENGTH) standing.push(text);
    }
  }

  /** To the client of the one session: on its standing stream, or on that of a request, or when it opens one. */
  function deliver(text: string, id: RpcId | null): void {
    const [session] = sessions.values();
    const stream = session === undefined ? null : (session.standing ?? calls.latest());
    if (stream !== null) {
      stream.push(text);
      return;
    }
    held.push({ text, id });
    heldLength += text.length;
    while (held.length > HELD_MESSAGES || heldLength > HELD_LENGTH) {
      const oldest = held.findIndex((message) => message.id === null);
      const [dropped] = held.splice(Math.max(0, oldest), 1);
      heldLength -= dropped?.text.length ?? 0;
      if (dropped !== undefined && dropped.id !== null) process.send(errorMessage(dropped.id, NOBODY));
    }
  }

  function handOver(queue: EventQueue): void {
    heldLength = 0;
    for (const { text } of held.splice(0)) queue.push(text);
  }

  function enter(id: string): void {
    sessions.set(id, { id, streams: 0, standing: null, lastUsed: now() });
  }

  /** The one answer to a request; why there is none, otherwise. */
  async function answerTo(request: RpcRequest, located: Located, signal?: Cancellable): Promise<string | UpstreamFault> {
    const queue = calls.ask('', request, located, signal);
    if (queue === 'gone') return faultOf(await ended);
    if ('fault' in queue) return queue;
    let last: string | null = null;
    try {
      for await (const events of queue.events) last = events.at(-1)?.data ?? last;
    } catch (cause) {
      return faultOf(cause);
    }
    return last ?? { fault: 'crashed' };
  }

  async function openOwn(request: RpcRequest, located: Located, signal?: Cancellable): Promise<Opened | UpstreamFault> {
    const text = await answerTo(request, located, signal);
    const opened = typeof text === 'string' && isSessionRevision((await readResult(text))?.protocolVersion);
    if (!opened || isClosed) {
      end('no session was opened');
      if (typeof text !== 'string') return text;
      return opened ? faultOf(await ended) : { text, sessionId: null };
    }
    const sessionId = newId();
    enter(sessionId);
    return { text, sessionId };
  }

  let introduced: Promise<Introduction | UpstreamFault> | null = null;

  /** The gateway declares no capabilities, because it could not tell whose client is meant. */
  async function introduce(): Promise<Introduction | UpstreamFault> {
    const text = await answerTo(INTRODUCTION, NOWHERE);
    if (typeof text !== 'string') {
      process.kill('it does not answer initialize');
      return text;
    }
    const result = await readResult(text);
    if (result === null || !isSessionRevision(result.protocolVersion)) {
      process.kill('it speaks no revision that the gateway speaks');
      return { fault: 'malformed', cause: new Error(`it answers initialize with ${printable(text.slice(0, 500))}`) };
    }
    process.send(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/initialized' }));
    return { result };
  }

  async function openShared({ id, params }: RpcRequest, signal?: Cancellable): Promise<Opened | UpstreamFault> {
    introduced ??= introduce();
    const introduction = await unlessAborted(introduced, signal);
    if (introduction === null) return { fault: 'aborted' };
    if ('fault' in introduction) return introduction;
    if (isClosed) return faultOf(await ended);
    const sessionId = newId();
    enter(sessionId);
    return { text: resultMessage(id, JSON.stringify(sharedResult(introduction.result, params?.protocolVersion))), sessionId };
  }

  function request(session: HostSession, message: RpcRequest, located: Located, signal?: Cancellable): Posted {
    if (message.method === 'initialize') return 'misplaced';
    if (shared && (UNSHARED.includes(message.method) || message.method.startsWith('tasks/')))
      return { text: errorMessage(message.id, NO_METHOD) };
    const queue = calls.ask(session.id, shared ? withoutTask(message) : message, located, signal);
    if (queue === 'gone') return 'lost';
    if (!('fault' in queue) && session.standing === null) handOver(queue);
    return queue;
  }

  function end(why: string): void {
    close(false, new ProcessFault('crashed', `the process is ended: ${why}`));
    process.end(why);
  }

  return {
    get lastUsed() {
      return lastUsed;
    },
    startedAt,
    get isBusy() {
      return queues.size > 0;
    },
    get underWay() {
      return calls.underWay;
    },
    sessions,
    shared,
    open: (message, located, signal) => (shared ? openShared(message, signal) : openOwn(message, located, signal)),
    post(session, message, located, signal) {
      touch(session);
      if (message.kind === 'request') return request(session, message, located, signal);
      if (message.kind === 'notification' && message.method === 'notifications/cancelled') {
        calls.cancel(session.id, message);
        return 'accepted';
      }
      if (shared) return 'accepted';
      const sent = process.send(located.text);
      if (sent === 'closed') return 'lost';
      return sent === 'sent' ? 'accepted' : { fault: 'busy' };
    },
    listen(session, signal) {
      touch(session);
      if (signal?.aborted) return { fault: 'aborted' };
      if (session.standing !== null) return null;
      const abort = (): void => queue.fail(ABORTED);
      const queue = createQueue(session.id, () => {
        signal?.removeEventListener('abort', abort);
        session.standing = null;
      });
      signal?.addEventListener('abort', abort, { once: true });
      session.standing = queue;
      handOver(queue);
      return queue;
    },
    leave(session) {
      touch(session);
      if (!shared) return end('its session has ended');
      calls.leave(session.id);
      session.standing?.end();
      sessions.delete(session.id);
    },
    end,
    gone: process.gone,
  };
}

const NO_METHOD = { code: CODES.methodNotFound, message: 'Method not found' };
const NOBODY = { code: CODES.internal, message: 'The client is not there' };
const LIST_CHANGES = ['tools', 'prompts', 'resources'].map((list) => `notifications/${list}/list_changed`);
/** What one session would change for all. */
const UNSHARED = ['logging/setLevel', 'resources/subscribe', 'resources/unsubscribe'];

const INTRODUCTION: RpcRequest = {
  kind: 'request',
  id: 'portcullis',
  method: 'initialize',
  params: { protocolVersion: SESSION_REVISIONS[0], capabilities: {}, clientInfo: { name: 'portcullis', version: '0' } },
};
/** Of a message that was never a text. */
const NOWHERE: Located = { text: '', span: { start: 0, end: 0, members: null, items: null } };

/** Without what a session that shares the process cannot have, in a revision that it speaks. */
function sharedResult(result: JsonObject, requested: JsonObject[string] | undefined): JsonObject {
  const capabilities = isObject(result.capabilities) ? result.capabilities : {};
  const { logging: _logging, tasks: _tasks, resources, ...kept } = capabilities;
  if (isObject(resources)) {
    const { subscribe: _subscribe, ...rest } = resources;
    kept.resources = rest;
  }
  const { protocolVersion } = result;
  // Revisions are dates. Later ones add what an earlier client passes over.
  const older = isSessionRevision(requested) && typeof protocolVersion === 'string' && requested < protocolVersion;
  return { ...result, capabilities: kept, ...(older ? { protocolVersion: requested } : {}) };
}

/** A shared process offers none: their ids would be all that keeps those of one session from another. */
function withoutTask(message: RpcRequest): RpcRequest {
  if (message.params?.task === undefined) return message;
  const { task: _task, ...params } = message.params;
  return { ...message, params };
}

/** `text` is the answer to a request, and has been read before. */
async function readResult(text: string): Promise<JsonObject | null> {
  const reading = await readLargeJson(text, TARGET_RULES, 'initialize');
  const result = reading.ok && isObject(reading.value) ? reading.value.result : undefined;
  return isObject(result) && !Object.values(result).some(isUnread) ? result : null;
}

function textOf(line: Line): string {
  return line.kind === 'message' ? line.located.text : '';
}

function faultOf(cause: unknown): UpstreamFault {
  if (cause === ABORTED) return { fault: 'aborted' };
  return { fault: cause instanceof ProcessFault ? cause.fault : 'unreachable', cause };
}

/** null: aborted before. */
async function unlessAborted<T>(promise: Promise<T>, signal?: Cancellable): Promise<T | null> {
  if (signal === undefined) return promise;
  if (signal.aborted) return null;
  let abort: () => void = () => undefined;
  const aborted = new Promise<null>((resolve) => {
    abort = () => resolve(null);
  });
  signal.addEventListener('abort', abort, { once: true });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', abort);
  }
}
