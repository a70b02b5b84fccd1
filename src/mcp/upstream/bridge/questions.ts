/** Sends questions of a target to a session's client, on the stream of the client's own request, as stateful targets do. */
import { setTimeout as sleep } from 'node:timers/promises';
import { errors } from 'undici';
import { unlessAborted } from '../../../base/cancellation.ts';
import type { RpcId } from '../../../protocol/message.ts';
import type { SseEvent } from '../../../protocol/sse.ts';
import { type Asked, askedRequest, eventOf, inputResponse, type Replied } from './messages.ts';

/** The replies as JSON text (null if nothing was asked), or why there are none. */
export type Replies = { readonly text: string | null } | { readonly failure: string };

const ASK_MS = 10 * 60 * 1000;
/** If the target asked nothing, the gateway repeats the request after this pause. */
const PAUSE_MS = 250;

export type Questions = ReturnType<typeof createQuestions>;

export function createQuestions(newId: () => string) {
  const awaited = new Map<string, (reply: Replied) => void>();

  return {
    /** Asks the client for what the target wants before it answers. Call this even if the target asks nothing. */
    async *ask(asked: readonly Asked[], signal: AbortSignal): AsyncGenerator<readonly SseEvent[], Replies> {
      if (asked.length === 0) {
        await settled(sleep(PAUSE_MS), signal);
        return { text: null };
      }
      const open = new Map(asked.map((one) => [newId(), one]));
      const responses = new Map<string, string>();
      const replies: [string, Replied][] = [];
      let wake = (): void => undefined;
      for (const id of open.keys()) {
        awaited.set(id, (reply) => {
          replies.push([id, reply]);
          wake();
        });
      }
      let isLate = false;
      const late = setTimeout(() => {
        isLate = true;
        wake();
      }, ASK_MS).unref();
      try {
        yield [...open].map(([id, one]) => eventOf(askedRequest(id, one)));
        while (open.size > 0) {
          const reply = replies.shift();
          if (reply === undefined && isLate) {
            yield withdrawn(open);
            return { failure: 'The client did not answer the question of the target in time' };
          }
          if (reply === undefined) {
            await settled(new Promise<void>((resolve) => (wake = resolve)), signal);
            continue;
          }
          const [id, replied] = reply;
          const one = open.get(id);
          open.delete(id);
          if (one === undefined) continue;
          const text = inputResponse(one.method, replied);
          if (text === null) {
            if (open.size > 0) yield withdrawn(open);
            return { failure: `The client refused ${one.method}, which the target asked for` };
          }
          responses.set(one.key, text);
        }
      } finally {
        clearTimeout(late);
        for (const id of open.keys()) awaited.delete(id);
      }
      const members = [...responses].map(([key, text]) => `${JSON.stringify(key)}:${text}`);
      return { text: `{${members.join()}}` };
    },
    /** Takes a reply. False: no question has this id, or it is already answered. */
    reply(id: RpcId | null, replied: Replied): boolean {
      const asked = typeof id === 'string' ? id : '';
      const take = awaited.get(asked);
      awaited.delete(asked);
      take?.(replied);
      return take !== undefined;
    },
  };
}

function withdrawn(open: ReadonlyMap<string, Asked>): SseEvent[] {
  return [...open.keys()].map((requestId) =>
    eventOf(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } })),
  );
}

async function settled(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  if ((await unlessAborted(promise, signal)) === null) throw new errors.RequestAbortedError();
}
