/** Which target each request under way went to, so that its cancellation goes there, too. */
import type { RpcId } from '../message.ts';

export interface Aims {
  /** Returns what to call when the request is over. */
  note(sessionId: string, id: RpcId, targetName: string): () => void;
  of(sessionId: string, id: RpcId): string | null;
}

export function createAims(): Aims {
  const bySession = new Map<string, Map<RpcId, string>>();
  return {
    note(sessionId, id, targetName) {
      const aims = bySession.get(sessionId) ?? new Map<RpcId, string>();
      bySession.set(sessionId, aims.set(id, targetName));
      return () => {
        aims.delete(id);
        if (aims.size === 0) bySession.delete(sessionId);
      };
    },
    of: (sessionId, id) => bySession.get(sessionId)?.get(id) ?? null,
  };
}
