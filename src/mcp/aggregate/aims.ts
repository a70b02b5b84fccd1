/** What is under way in sessions with all targets: where each request went, so that what is said of it later goes there, too. */
import { isObject, type JsonObject } from '../../http/json.ts';
import type { RpcId, RpcRequest } from '../message.ts';

export interface Aims {
  /** Returns what to call when the request is over. */
  note(sessionId: string, request: Pick<RpcRequest, 'id' | 'params'>, targetName: string): () => void;
  /** The target that the request under way with this id, or with this progress token, went to. */
  of(sessionId: string, by: 'id' | 'token', value: RpcId): string | null;
  /** Told when the session ends. Returns how to leave. */
  onEnd(sessionId: string, listener: () => void): () => void;
  end(sessionId: string): void;
}

interface UnderWay {
  readonly id: RpcId;
  readonly token: RpcId | null;
  readonly targetName: string;
}

export function createAims(): Aims {
  const requests = new Map<string, Set<UnderWay>>();
  const listeners = new Map<string, Set<() => void>>();
  return {
    note(sessionId, { id, params }, targetName) {
      const request: UnderWay = { id, token: tokenOf(params), targetName };
      return enter(requests, sessionId, request);
    },
    of(sessionId, by, value) {
      const found = [...(requests.get(sessionId) ?? [])].find(({ id, token }) =>
        by === 'id' ? id === value : token !== null && isSameToken(token, value),
      );
      return found?.targetName ?? null;
    },
    onEnd: (sessionId, listener) => enter(listeners, sessionId, listener),
    end(sessionId) {
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

/** Clients of the SDK look a token up as the number that it can be read as: to them, "7" and "0x7" are 7. */
function isSameToken(a: RpcId, b: RpcId): boolean {
  return String(a) === String(b) || Number(a) === Number(b);
}

function tokenOf(params: JsonObject | undefined): RpcId | null {
  const meta = params?._meta;
  const token = isObject(meta) ? meta.progressToken : undefined;
  return typeof token === 'string' || typeof token === 'number' ? token : null;
}
