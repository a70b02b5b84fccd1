/**
 * One process of a target and the sessions that it serves. Either one session uses the process as its only client, or several sessions
 * share it. With a shared process, the gateway is the one client. Each session gets the answers to its own requests, and nothing that
 * another session caused.
 */

import { setImmediate } from 'node:timers/promises';
import { type Cancellable, unlessAborted } from '../../../base/cancellation.ts';
import type { JsonObject } from '../../../base/json/json.ts';
import type { Log } from '../../../base/log.ts';
import { deferred } from '../../../base/promises.ts';
import { pause } from '../../../base/turns/slices.ts';
import {
  CODES,
  errorMessage,
  type RpcId,
  type RpcMessage,
  type RpcNotification,
  type RpcRequest,
  resultMessage,
} from '../../../protocol/message.ts';
import { isSessionRevision } from '../../../protocol/mode.ts';
import type { Located } from '../../../protocol/rebuild.ts';
import { jsonAnswer, statusAnswer, streamAnswer } from '../answers.ts';
import { createEventQueue, type EventQueue } from '../events.ts';
import { faultOf } from '../http.ts';
import type { UnreadAccount } from '../unread.ts';
import { ProcessFault, type UpstreamAnswer, type UpstreamFault, type UpstreamLimits } from '../upstream.ts';
import { ABORTED, type Calls, createCalls, type Patience } from './calls.ts';
import { createHeldMessages, type HeldMessages } from './held-messages.ts';
import type { Line } from './lines.ts';
import { type ProcessSpec, startProcess, type TargetProcess } from './process.ts';
import { INTRODUCTION, NOWHERE, PING, readResult, sharedResult, withoutTask } from './sharing.ts';

/** The process of a single session is paused while more unread characters than this wait. */
const UNREAD_LENGTH = 1024 * 1024;
/** Each session of a shared process gets the answer to `initialize`. A longer one is refused. */
const MAX_INTRODUCTION = 1024 * 1024;
/** How long a shared process may be silent after a ping, if it has not answered a request in time: at most so many times that time. */
const PING_MS = 30_000;
const PING_SILENCES = 6;

export interface SharedProcessSession {
  readonly id: string;
  /** The input of the process has a limit for each user. */
  readonly user: string;
  streams: number;
  standing: EventQueue | null;
  lastUsed: number;
}

interface Introduction {
  readonly result: JsonObject;
}

type Answered = UpstreamAnswer | UpstreamFault;

/** The session ended with its process. */
const lost = (): UpstreamAnswer => statusAnswer(404);

export interface SharedProcessDeps {
  readonly limits: UpstreamLimits;
  readonly newId: () => string;
  readonly now: () => number;
  readonly log: Log;
  readonly unread: UnreadAccount;
}

/** A process and the sessions that it serves. */
export class SharedProcess {
  /** Whether several sessions may share the process. */
  readonly shared: boolean;
  readonly startedAt: number;
  /** When the process was last used, including by sessions that have left. */
  lastUsed: number;
  readonly sessions = new Map<string, SharedProcessSession>();
  readonly gone: Promise<void>;
  private readonly source: string;
  private readonly deps: SharedProcessDeps;
  private readonly pingMs: number;
  private readonly closed: (failed: boolean) => void;
  private readonly process: TargetProcess;
  private readonly calls: Calls;
  private readonly queues = new Set<EventQueue>();
  /** The standalone streams of a shared process, each with the news that wait in it. */
  private readonly listeners = new Map<EventQueue, Set<string>>();
  /** The news that the sessions of a shared process are still to be told. */
  private readonly news = new Set<string>();
  private isTelling = false;
  private readonly held: HeldMessages;
  private unread = 0;
  /** The bytes of lines that wait for their end, or to be read. */
  private lineBytes = 0;
  private isClosed = false;
  private isOpened = false;
  private isProbed = false;
  /** How many messages the process has sent. */
  private lines = 0;
  private introduced: Promise<Introduction | UpstreamFault> | null = null;
  private readonly ended = deferred<ProcessFault>();

  /**
   * Starts the process. `closed` is called once, when its sessions have ended. `failed` is true if the process ended by itself
   * or was killed for misbehaving.
   */
  constructor(spec: ProcessSpec & Patience, shared: boolean, deps: SharedProcessDeps, closed: (failed: boolean) => void) {
    this.shared = shared;
    this.source = spec.source;
    this.deps = deps;
    this.pingMs = Math.min(PING_MS, PING_SILENCES * spec.silenceMs);
    this.closed = closed;
    this.startedAt = deps.now();
    this.lastUsed = this.startedAt;
    this.held = createHeldMessages((id) => this.process.send(errorMessage(id, NOBODY)));
    const line = this.take.bind(this);
    const waiting = (bytes: number): Error | null => {
      this.lineBytes = bytes;
      return deps.unread.set(this.unread + bytes);
    };
    const ended = (why: ProcessFault): void => {
      this.close(true, why);
      this.ended.resolve(why);
    };
    this.process = startProcess(spec, deps.limits.answerBytes, { line, ended, waiting }, deps.log);
    this.gone = this.process.gone;
    const userOf = (session: string): string => this.sessions.get(session)?.user ?? '';
    this.calls = createCalls((text, session) => this.process.send(text, userOf(session)), spec, {
      createQueue: this.createQueue.bind(this),
      isCrowded: (queue) => shared && queue.pending > UNREAD_LENGTH,
      expired: () => void this.probe(),
      taskProgress: (text) => {
        for (const { standing } of this.sessions.values()) standing?.push(text);
      },
    });
  }

  /** Whether any stream is open, of a request or a standalone stream, or the first session is still to come. */
  get isBusy(): boolean {
    return this.queues.size > 0 || !this.isOpened;
  }

  get underWay(): number {
    return this.calls.underWay;
  }

  /** Opens a session and answers `initialize`. */
  open(user: string, message: RpcRequest, located: Located, signal?: Cancellable): Promise<Answered> {
    this.isOpened = true;
    return this.shared ? this.openShared(user, message, signal) : this.openOwn(user, message, located, signal);
  }

  post(session: SharedProcessSession, message: RpcMessage, located: Located, signal?: Cancellable): Answered {
    this.touch(session);
    if (message.kind === 'request') return this.request(session, message, located, signal);
    if (message.kind === 'notification' && message.method === 'notifications/cancelled') {
      this.calls.cancel(session.id, message);
      return statusAnswer(202);
    }
    const sent = this.shared ? 'sent' : this.process.send(located.text, session.user);
    if (sent === 'closed') return lost();
    return sent === 'sent' ? statusAnswer(202) : { fault: 'busy' };
  }

  /** Opens the standalone stream, if none is open yet. */
  listen(session: SharedProcessSession, signal?: Cancellable): Answered {
    this.touch(session);
    if (signal?.aborted) return { fault: 'aborted' };
    if (session.standing !== null) return statusAnswer(409);
    const abort = (): void => queue.fail(ABORTED);
    const queue = this.createQueue(session.id, () => {
      signal?.removeEventListener('abort', abort);
      session.standing = null;
      this.listeners.delete(queue);
    });
    signal?.addEventListener('abort', abort, { once: true });
    session.standing = queue;
    if (this.shared) this.listeners.set(queue, new Set());
    this.handOver(queue);
    return streamAnswer(queue.events, queue.close);
  }

  /** `cause`: with what its requests in flight fail. */
  leave(session: SharedProcessSession, cause: Error = ABORTED): void {
    this.touch(session);
    if (this.shared) {
      this.calls.leave(session.id, cause);
      session.standing?.end();
      this.sessions.delete(session.id);
    } else this.end('its session ended');
  }

  end(why: string): void {
    this.close(false, new ProcessFault('crashed', `the process was ended: ${why}`));
    this.process.end(why);
  }

  private close(failed: boolean, why: ProcessFault): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.calls.fail(why);
    for (const { standing } of this.sessions.values()) standing?.end();
    this.deps.unread.close();
    this.closed(failed);
    this.sessions.clear();
  }

  private touch(session: SharedProcessSession | undefined): void {
    this.lastUsed = this.deps.now();
    if (session !== undefined) session.lastUsed = this.lastUsed;
  }

  private createQueue(owner: string, whenClosed: () => void): EventQueue {
    const session = this.sessions.get(owner);
    if (session !== undefined) session.streams++;
    const queue = createEventQueue(this.source, {
      moved: (delta) => {
        this.unread += delta;
        this.relieve(this.deps.unread.set(this.unread + this.lineBytes));
      },
      closed: () => {
        this.queues.delete(queue);
        if (session !== undefined) session.streams--;
        this.touch(session);
        whenClosed();
      },
    });
    this.queues.add(queue);
    return queue;
  }

  /**
   * Pauses the process of a single session that reads slowly. If too much of the target is unread, the stream with the most
   * unread data is abandoned.
   */
  private relieve(fault: Error | null): void {
    if (fault !== null) this.fullest()?.fail(new ProcessFault('busy', fault.message));
    else if (!this.shared && this.unread > UNREAD_LENGTH) this.process.pause();
    else if (!this.shared) this.process.resume();
  }

  private fullest(): EventQueue | undefined {
    return [...this.queues].sort((a, b) => b.pending - a.pending)[0];
  }

  private take(line: Exclude<Line, { kind: 'garbage' }>): void {
    this.lines++;
    const message = line.kind === 'message' ? line.message : null;
    if (message?.kind === 'request') this.asked(message, line);
    else if (message?.kind === 'notification' && message.method !== 'notifications/progress') this.noticed(message, line);
    else this.calls.receive(line);
  }

  private asked({ id, method }: RpcRequest, line: Line): void {
    // The ping is for the other end of the pipe, which is the gateway.
    if (method === 'ping') this.process.send(resultMessage(id, '{}'));
    else if (this.shared) this.process.send(errorMessage(id, NO_METHOD));
    else this.deliver(textOf(line), id);
  }

  private noticed({ method }: RpcNotification, line: Line): void {
    if (!this.shared) this.deliver(textOf(line), null);
    if (!this.shared || !LIST_CHANGES.includes(method)) return;
    this.news.add(method);
    if (!this.isTelling) void this.tell();
  }

  /** Tells all sessions that lists have changed. A process can say it thousands of times in one turn of the event loop. */
  private async tell(): Promise<void> {
    this.isTelling = true;
    while (this.news.size > 0) {
      await setImmediate();
      const news = [...this.news];
      this.news.clear();
      for (const [queue, waiting] of this.listeners) {
        if (queue.pending === 0) waiting.clear();
        for (const method of news) {
          if (waiting.has(method)) continue;
          queue.push(JSON.stringify({ jsonrpc: '2.0', method }));
          if (queue.pending > 0) waiting.add(method);
        }
        await pause();
      }
    }
    this.isTelling = false;
  }

  /**
   * Delivers a message to the client of the only session: on its standalone stream, on the stream of its newest request, or when
   * it opens one.
   */
  private deliver(text: string, id: RpcId | null): void {
    const [session] = this.sessions.values();
    const stream = session === undefined ? null : (session.standing ?? this.calls.latest());
    if (stream !== null) {
      stream.push(text);
      return;
    }
    this.held.hold(text, id);
  }

  private handOver(queue: EventQueue): void {
    for (const text of this.held.takeAll()) queue.push(text);
  }

  /** Makes a session and returns its id. */
  private enter(user: string): string {
    const id = this.deps.newId();
    this.sessions.set(id, { id, user, streams: 0, standing: null, lastUsed: this.deps.now() });
    return id;
  }

  private async answerTo(
    request: RpcRequest,
    located: Located,
    signal?: Cancellable,
    withinMs?: number,
  ): Promise<string | UpstreamFault> {
    const queue = this.calls.ask('', request, located, signal, withinMs);
    if (queue === 'gone') return faultFrom(await this.ended.promise);
    if ('fault' in queue) return queue;
    let last: string | null = null;
    try {
      for await (const events of queue.events) last = events.at(-1)?.data ?? last;
    } catch (cause) {
      return faultFrom(cause);
    }
    return last ?? { fault: 'crashed' };
  }

  private async openOwn(user: string, request: RpcRequest, located: Located, signal?: Cancellable): Promise<Answered> {
    const text = await this.answerTo(request, located, signal);
    const opened = typeof text === 'string' && isSessionRevision((await readResult(text))?.protocolVersion);
    if (!opened || this.isClosed) {
      this.end('it opened no session');
      if (typeof text !== 'string') return text;
      return opened ? faultFrom(await this.ended.promise) : jsonAnswer(200, text);
    }
    return jsonAnswer(200, text, this.enter(user));
  }

  /**
   * Initializes a shared process. The gateway declares no capabilities, because it could not tell which session's client the
   * process means.
   */
  private async introduce(): Promise<Introduction | UpstreamFault> {
    const text = await this.answerTo(INTRODUCTION, NOWHERE);
    if (typeof text !== 'string') {
      this.process.kill('it did not answer initialize');
      return text;
    }
    const result = text.length > MAX_INTRODUCTION ? null : await readResult(text);
    if (result === null || !isSessionRevision(result.protocolVersion)) {
      this.process.kill('it speaks no MCP revision that the gateway supports');
      return { fault: 'malformed', cause: new Error('it answered initialize without a protocol version that the gateway knows') };
    }
    this.process.send(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/initialized' }));
    return { result };
  }

  /** Ends a shared process that hangs. Otherwise all its sessions would wait for it until its lifetime is over. */
  private async probe(): Promise<void> {
    if (!this.shared || this.isProbed || this.isClosed) return;
    this.isProbed = true;
    const lines = this.lines;
    const answer = await this.answerTo(PING, NOWHERE, undefined, this.pingMs);
    this.isProbed = false;
    // A process that answers with an error, or answers others, is alive. One whose input is full at the moment may be.
    const isSilent = typeof answer !== 'string' && answer.fault === 'timeout' && this.lines === lines;
    if (isSilent) this.process.kill('it answered neither a request in time nor a ping');
  }

  private async openShared(user: string, { id, params }: RpcRequest, signal?: Cancellable): Promise<Answered> {
    this.introduced ??= this.introduce();
    const introduction = await unlessAborted(this.introduced, signal);
    if (introduction === null) return { fault: 'aborted' };
    if ('fault' in introduction) return introduction;
    if (this.isClosed) return faultFrom(await this.ended.promise);
    const text = resultMessage(id, JSON.stringify(sharedResult(introduction.result, params?.protocolVersion)));
    return jsonAnswer(200, text, this.enter(user));
  }

  private request(session: SharedProcessSession, message: RpcRequest, located: Located, signal?: Cancellable): Answered {
    if (message.method === 'initialize') return statusAnswer(400);
    if (this.shared && (UNSHARED.includes(message.method) || message.method.startsWith('tasks/')))
      return jsonAnswer(200, errorMessage(message.id, NO_METHOD));
    const queue = this.calls.ask(session.id, this.shared ? withoutTask(message) : message, located, signal);
    if (queue === 'gone') return lost();
    if ('fault' in queue) return queue;
    if (session.standing === null) this.handOver(queue);
    return streamAnswer(queue.events, queue.close);
  }
}

const NO_METHOD = { code: CODES.methodNotFound, message: 'Method not found' };
const NOBODY = { code: CODES.internal, message: 'The client is not connected' };
const LIST_CHANGES = ['tools', 'prompts', 'resources'].map((list) => `notifications/${list}/list_changed`);
/** Methods with which one session would change something for all. */
const UNSHARED = ['logging/setLevel', 'resources/subscribe', 'resources/unsubscribe'];

function textOf(line: Line): string {
  return line.kind === 'message' ? line.located.text : '';
}

function faultFrom(cause: unknown): UpstreamFault {
  if (cause === ABORTED) return { fault: 'aborted' };
  return { fault: faultOf(cause), cause };
}
