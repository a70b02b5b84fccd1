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
/** The longest replies to the questions of one answer together, in characters: one request to the target has all of them. */
const MAX_REPLIES = 4 * 1024 * 1024;

const TOO_LONG = 'The answers of the client to the questions of the target are too long';

export type Questions = ReturnType<typeof createQuestions>;

/** Charges the characters that are kept until the call ends. Returns the fault if that is too much. */
export type Charge = (characters: number) => Error | null;

export function createQuestions(newId: () => string) {
  const awaited = new Map<string, (reply: Replied) => void>();

  return {
    /**
     * Asks the client for what the target wants before it answers. Call this even if the target asks nothing. It empties `asked`, because
     * the client may take minutes to answer, and the questions keep the whole answer of the target in memory.
     */
    async *ask(asked: Asked[], charge: Charge, signal: AbortSignal): AsyncGenerator<readonly SseEvent[], Replies> {
      if (asked.length === 0) {
        await settled(sleep(PAUSE_MS), signal);
        return { text: null };
      }
      const open = new Map<string, Pick<Asked, 'key' | 'method'>>();
      const responses = new Map<string, string>();
      const replies: { readonly id: string; readonly text: string | null; readonly fault: Error | null }[] = [];
      let length = 0;
      let wake = (): void => undefined;
      const pose = (one: Asked): SseEvent => {
        const id = newId();
        const { key, method } = one;
        open.set(id, { key, method });
        awaited.set(id, (reply) => {
          const text = inputResponse(method, reply);
          length += text?.length ?? 0;
          replies.push({ id, text, fault: length > MAX_REPLIES ? new Error(TOO_LONG) : charge(text?.length ?? 0) });
          wake();
        });
        return eventOf(askedRequest(id, one));
      };
      let isLate = false;
      const late = setTimeout(() => {
        isLate = true;
        wake();
      }, ASK_MS).unref();
      try {
        yield asked.splice(0).map(pose);
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
          const { id, text, fault } = reply;
          const one = open.get(id);
          open.delete(id);
          if (one === undefined) continue;
          if (text === null || fault !== null) {
            if (open.size > 0) yield withdrawn(open);
            return { failure: fault?.message ?? `The client refused ${one.method}, which the target asked for` };
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

function withdrawn(open: ReadonlyMap<string, object>): SseEvent[] {
  return [...open.keys()].map((requestId) =>
    eventOf(JSON.stringify({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } })),
  );
}

async function settled(promise: Promise<void>, signal: AbortSignal): Promise<void> {
  if ((await unlessAborted(promise, signal)) === null) throw new errors.RequestAbortedError();
}
