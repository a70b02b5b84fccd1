/** Reads messages of targets strictly, in short steps if they are large, and charges the cost to the target and its caller. */
import { isAscii } from 'node:buffer';
import { setTimeout as sleep } from 'node:timers/promises';
import { createStock, type Flow, isOverdrawn } from '../../base/budgets.ts';
import { type Cancellable, onAbort } from '../../base/cancellation.ts';
import type { JsonReading } from '../../base/json/json.ts';
import { decodeInLane, LARGE_TEXT, type LargeRules, readLargeJson } from '../../base/json/large.ts';
import { lane, laneOnce } from '../../base/turns/lane.ts';
import type { BacklogFault, Unread } from '../upstream/unread.ts';
import { costOf, FREE_LENGTH } from './intake.ts';

/** The longest wait of a message because earlier messages for the same caller were expensive. */
const MAX_WAIT_S = 30;
/** The bytes of memory that the texts of large answers to one user may take. */
const TEXT_BYTES = 64 * 1024 * 1024;
/** The bytes of a text, or the text itself or its length. */
type Text = Buffer | { readonly length: number };

export type TargetReader = ReturnType<typeof createTargetReader>;

/** `answerBytes`: the largest answer that a target may give. */
export function createTargetReader(flow: Flow, unread: Unread, answerBytes: number) {
  const perUser = Math.max(TEXT_BYTES, 2 * answerBytes);
  const texts = createStock('texts of answers', { perKey: perUser, all: Number.POSITIVE_INFINITY });
  const waiting = createStock('answers that wait for the room of their texts', { perKey: perUser, all: 2 * perUser });

  function rest(charged: string): Promise<void> | null {
    const wait = flow.wait(charged);
    return wait > 0 ? sleep(Math.min(wait, MAX_WAIT_S) * 1_000) : null;
  }

  async function readCounted(charged: string, text: string, rules: LargeRules): Promise<JsonReading> {
    await rest(charged);
    const reading = await readLargeJson(text, rules, charged);
    flow.charge(charged, costOf(text.length, reading));
    return reading;
  }
  return {
    /** Resolves when the key has paid its debt of this moment, or after 30 s. null: it is not in debt. */
    rest,
    /** Whether a message for the key would wait: for the debt of the key, or for earlier messages that are being read. */
    isBehind: (charged: string): boolean => flow.wait(charged) > 0 || lane.isWaiting(charged),
    /** Resolves when the key has paid its debt of this moment, or after 30 s, or when its earlier messages have been read. */
    catchUp: async (charged: string): Promise<void> => rest(charged) ?? laneOnce(charged, () => undefined, false),
    /** Reserves memory for a message until it is read. Returns a function to give it back, or a fault if too much is unread. */
    hold(targetId: string, user: string, length: number): BacklogFault | (() => void) {
      const account = unread.open(targetId, user);
      const fault = account.set(length);
      if (fault !== null) account.close();
      return fault ?? account.close;
    },
    /**
     * Takes room for the text of a large answer, from when it has arrived until it is written: twice its length, unless its bytes are ASCII. A
     * string may take two bytes for each character even if all of them are ASCII. If the text has to wait, `release` is called first: meanwhile,
     * the answer must not keep the room of other users. Returns a function to give the room back. null: there was no room for 30 s, too many
     * answers wait already, or one of the signals has come.
     */
    async roomForText(
      user: string,
      answer: Text,
      ends: readonly Cancellable[],
      release: () => void,
    ): Promise<(() => void) | null> {
      const isNarrow = Buffer.isBuffer(answer) && isAscii(answer);
      const amount = Math.min(perUser, isNarrow ? answer.length : 2 * answer.length);
      const free = texts.take(user, amount);
      if (!isOverdrawn(free)) return free.giveBack;
      const place = waiting.take(user, amount);
      if (isOverdrawn(place)) return null;
      release();
      const turn = texts.queue(user, amount);
      const timer = setTimeout(turn.leave, MAX_WAIT_S * 1_000);
      for (const end of ends) onAbort(end, turn.leave);
      const room = await turn.come;
      place.giveBack();
      clearTimeout(timer);
      for (const end of ends) end.removeEventListener('abort', turn.leave);
      return isOverdrawn(room) ? null : room.giveBack;
    },
    /** Bytes that are not UTF-8 become U+FFFD. */
    decode: (charged: string, bytes: Buffer): string | Promise<string> =>
      bytes.length <= LARGE_TEXT ? bytes.toString('utf8') : decodeInLane(bytes, charged, true).then((text) => text ?? ''),
    /** `charged`: target and caller as one key. If that key is in debt, the message is read later. */
    read: (charged: string, text: string, rules: LargeRules): JsonReading | Promise<JsonReading> =>
      text.length <= FREE_LENGTH ? readLargeJson(text, rules, charged) : readCounted(charged, text, rules),
  };
}
