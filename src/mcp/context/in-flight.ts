/**
 * In-flight requests of sessions at the aggregate endpoint: the target of each, so that later messages about it go there, too.
 */
import { isObject, type JsonObject } from '../../base/json/json.ts';
import type { RpcId, RpcRequest } from '../../protocol/message.ts';

export type InFlightRequests = ReturnType<typeof createInFlightRequests>;

interface UnderWay {
  readonly id: RpcId;
  readonly token: RpcId | null;
  readonly targetName: string;
}

export function createInFlightRequests() {
  const requests = new Map<string, Set<UnderWay>>();
  const listeners = new Map<string, Set<() => void>>();
  return {
    /** Remembers the target of a request. Returns a function to call when the request is over. */
    note(sessionId: string, { id, params }: Pick<RpcRequest, 'id' | 'params'>, targetName: string): () => void {
      const request: UnderWay = { id, token: tokenOf(params), targetName };
      return enter(requests, sessionId, request);
    },
    /** The target of the in-flight request with this id or progress token. */
    of(sessionId: string, by: 'id' | 'token', value: RpcId): string | null {
      const found = [...(requests.get(sessionId) ?? [])].find(({ id, token }) =>
        by === 'id' ? id === value : token !== null && isSameToken(token, value),
      );
      return found?.targetName ?? null;
    },
    /** Calls the listener when the session ends. Returns a function that unsubscribes. */
    onEnd: (sessionId: string, listener: () => void): (() => void) => enter(listeners, sessionId, listener),
    end(sessionId: string): void {
      for (const listener of listeners.get(sessionId) ?? []) listener();
    },
  };
}

function enter<T>(bySession: Map<string, Set<T>>, sessionId: string, entry: T): () => void {
  const entries = bySession.get(sessionId) ?? new Set<T>();
  bySession.set(sessionId, entries.add(entry));
  return () => {
    entries.delete(entry);
    if (entries.size === 0 && bySession.get(sessionId) === entries) bySession.delete(sessionId);
  };
}

/** Clients of the SDK convert a token to a number to look it up: to them, "7" and "0x7" are 7. */
function isSameToken(a: RpcId, b: RpcId): boolean {
  return String(a) === String(b) || Number(a) === Number(b);
}

function tokenOf(params: JsonObject | undefined): RpcId | null {
  const meta = params?._meta;
  const token = isObject(meta) ? meta.progressToken : undefined;
  return typeof token === 'string' || typeof token === 'number' ? token : null;
}
