/**
 * The requests in flight at one process. The gateway gives each its own id and progress token: two sessions may use equal ones,
 * and a late answer must not reach a different request.
 */

import type { Cancellable } from '../../../base/cancellation.ts';
import { isObject, type JsonObject } from '../../../base/json/json.ts';
import { keep } from '../../../base/kept.ts';
import { isId, type RpcId, type RpcNotification, type RpcRequest } from '../../../protocol/message.ts';
import { type Located, rebuildCall, rebuildNotification, rebuildResponse } from '../../../protocol/rebuild.ts';
import { SseFault, TooLarge } from '../../../protocol/sse.ts';
import type { EventQueue } from '../events.ts';
import { ProcessFault, type UpstreamFault } from '../upstream.ts';
import type { Line } from './lines.ts';
import type { TargetProcess } from './process.ts';

export type Calls = ReturnType<typeof createCalls>;

interface Call {
  readonly owner: string;
  readonly clientId: RpcId;
  readonly token: RpcId | undefined;
  readonly method: string;
  readonly isTask: boolean;
  readonly queue: EventQueue;
  timer: NodeJS.Timeout;
}

const TASK_TOKENS = 256;

function faultOf({ kind, reason }: Exclude<Line, { kind: 'garbage' | 'message' }>): Error {
  switch (kind) {
    case 'broken':
      return new SseFault(reason);
    case 'oversized':
      return new TooLarge(reason);
    case 'crowded':
      return new ProcessFault('busy', reason);
  }
}

export const ABORTED = new DOMException('The request was aborted', 'AbortError');

export interface CallHooks {
  createQueue(owner: string, closed: () => void): EventQueue;
  /** Whether the queue accepts no more progress notifications until some are read. */
  isCrowded(queue: EventQueue): boolean;
  /** A request got no answer in time. */
  expired(): void;
  /** Reports progress of a task. Its token stays valid after the answer that created the task (2025-11-25, task progress). */
  taskProgress(text: string): void;
}

/** How long a process may be silent during a request, in milliseconds. */
export interface Patience {
  readonly openingMs: number;
  readonly silenceMs: number;
}

/** `send` sends a message of this owner to the process. */
export function createCalls(
  send: (text: string, owner: string) => ReturnType<TargetProcess['send']>,
  patience: Patience,
  hooks: CallHooks,
) {
  const calls = new Map<RpcId, Call>();
  /** The progress tokens of the most recent calls that created a task. */
  const taskTokens = new Map<RpcId, RpcId>();
  let lastId = 0;
  let firstOwner: string | undefined;
  /** Whether sessions of several owners have used the process. */
  let isShared = false;

  function drop(id: RpcId, call: Call, cause: Error): void {
    if (calls.get(id) !== call) return;
    forget(id, call);
    // The specification does not allow `initialize` to be cancelled.
    if (call.method !== 'initialize') send(cancellation(id), call.owner);
    call.queue.fail(cause);
  }

  function forget(id: RpcId, call: Call): void {
    clearTimeout(call.timer);
    calls.delete(id);
  }

  function expiry(id: RpcId, ms: number): NodeJS.Timeout {
    const expire = (): void => {
      const call = calls.get(id);
      if (call === undefined) return;
      drop(id, call, new ProcessFault('timeout', 'the process did not answer in time'));
      hooks.expired();
    };
    return setTimeout(expire, ms).unref();
  }

  function answer(id: RpcId, text: (call: Call) => string): void {
    const call = calls.get(id);
    if (call === undefined) return;
    forget(id, call);
    if (call.isTask && call.token !== undefined) keep(taskTokens, id, call.token, TASK_TOKENS);
    call.queue.push(text(call));
    call.queue.end();
  }

  function progress({ method, params = {} }: RpcNotification, located: Located): void {
    const id = typeof params.progressToken === 'number' ? params.progressToken : -1;
    const call = calls.get(id);
    const token = call === undefined ? taskTokens.get(id) : call.token;
    if (token === undefined) return;
    const text = rebuildNotification(method, located, { progressToken: JSON.stringify(token) });
    if (call === undefined) {
      hooks.taskProgress(text);
      return;
    }
    clearTimeout(call.timer);
    call.timer = expiry(id, patience.silenceMs);
    if (!hooks.isCrowded(call.queue)) call.queue.push(text);
  }

  return {
    get underWay(): number {
      return calls.size;
    },
    /** Sends a request and returns the events of its stream, the answer last. `gone`: the process no longer takes requests. */
    ask(
      owner: string,
      request: RpcRequest,
      located: Located,
      signal?: Cancellable,
      withinMs = request.method === 'initialize' ? patience.openingMs : patience.silenceMs,
    ): EventQueue | UpstreamFault | 'gone' {
      if (signal?.aborted) return { fault: 'aborted' };
      const id = ++lastId;
      const meta = request.params?._meta;
      const given = isObject(meta) ? meta.progressToken : undefined;
      // Other values are not valid tokens. The process gets them unchanged, and the gateway drops progress that names them.
      const token = isId(given) ? given : undefined;
      const ownMeta = isObject(meta) && token !== undefined ? { _meta: { ...meta, progressToken: id } } : {};
      const sent = send(rebuildCall({ ...request, id }, located, ownMeta), owner);
      if (sent !== 'sent') return sent === 'full' ? { fault: 'busy' } : 'gone';
      const abort = (): void => {
        drop(id, call, ABORTED);
        call.queue.fail(ABORTED);
      };
      const queue = hooks.createQueue(owner, () => {
        signal?.removeEventListener('abort', abort);
        drop(id, call, ABORTED);
      });
      const { method, params } = request;
      const isTask = params?.task !== undefined;
      const timer = expiry(id, withinMs);
      const call: Call = { owner, clientId: request.id, token, method, isTask, queue, timer };
      calls.set(id, call);
      firstOwner ??= owner;
      isShared ||= firstOwner !== owner;
      signal?.addEventListener('abort', abort, { once: true });
      return queue;
    },
    /** Delivers an answer or a progress notification of the process to the session that asked. */
    receive(line: Exclude<Line, { kind: 'garbage' }>) {
      if (line.kind !== 'message') {
        const call = calls.get(line.id);
        if (call === undefined) return;
        forget(line.id, call);
        return call.queue.fail(faultOf(line));
      }
      const { message, located } = line;
      if (message.kind === 'notification') return progress(message, located);
      if (message.kind === 'request') return;
      // A process that could not read the id answers with null. If exactly one request is in flight, that one is meant, unless the answer
      // may be a late one to somebody else.
      const [first] = calls.keys();
      const id = message.id ?? (calls.size === 1 && !isShared ? (first ?? null) : null);
      if (id !== null) answer(id, ({ clientId }) => rebuildResponse(clientId, message.outcome, located));
    },
    /** Cancels a request of this session because its client sent a cancellation. */
    cancel(owner: string, { params }: RpcNotification): void {
      const own = [...calls].filter(([, call]) => call.owner === owner && call.clientId === params?.requestId).at(-1);
      if (own === undefined) return;
      const [id, call] = own;
      forget(id, call);
      send(cancellation(id, params), owner);
      call.queue.fail(ABORTED);
    },
    latest: (): EventQueue | null => [...calls.values()].at(-1)?.queue ?? null,
    leave(owner: string, cause: Error): void {
      for (const [id, call] of calls) if (call.owner === owner) drop(id, call, cause);
    },
    fail(cause: Error): void {
      for (const [id, call] of calls) {
        forget(id, call);
        call.queue.fail(cause);
      }
    },
  };
}

function cancellation(requestId: RpcId, params: JsonObject = {}): string {
  return JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { ...params, requestId } });
}
