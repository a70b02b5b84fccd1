/** The messages of a process for a client that has no stream open. */
import type { RpcId } from '../../../protocol/message.ts';

const MAX_MESSAGES = 64;
/** In characters. */
const MAX_LENGTH = 1024 * 1024;

export type HeldMessages = ReturnType<typeof createHeldMessages>;

/** If too many wait, the oldest are dropped, notifications first. `unheard` is called with the id of a request that was dropped. */
export function createHeldMessages(unheard: (id: RpcId) => void) {
  const held: { readonly text: string; readonly id: RpcId | null }[] = [];
  let length = 0;

  return {
    hold(text: string, id: RpcId | null): void {
      held.push({ text, id });
      length += text.length;
      while (held.length > MAX_MESSAGES || length > MAX_LENGTH) {
        const oldest = held.findIndex((message) => message.id === null);
        const [dropped] = held.splice(Math.max(0, oldest), 1);
        length -= dropped?.text.length ?? 0;
        if (dropped !== undefined && dropped.id !== null) unheard(dropped.id);
      }
    },
    takeAll(): readonly string[] {
      length = 0;
      return held.splice(0).map(({ text }) => text);
    },
  };
}
