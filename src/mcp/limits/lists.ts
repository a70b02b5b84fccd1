/**
 * Bounds the memory that long lists at the aggregate endpoint take, over all callers. A list of many targets is far larger than an answer of
 * one target, and the parsed form of a page takes several times the memory of its text.
 */
import { createStock, isOverdrawn, type Taken } from '../../base/budgets.ts';
import { type Cancellable, onAbort } from '../../base/cancellation.ts';
import { keep } from '../../base/kept.ts';

export interface ListLimits {
  /** Bytes of targets' pages that are being parsed and filtered: of one principal, and of all principals. */
  readonly readingOfPrincipal: number;
  readonly readingOfAll: number;
  /** The characters after which an answer ends, and its list continues on the next page. */
  readonly answer: number;
  /** The characters of an answer that take no room. Longer answers are put together one after the other, as room allows. */
  readonly smallAnswer: number;
  /** Characters of longer answers: of one principal, and of all principals. */
  readonly answersOfPrincipal: number;
  readonly answersOfAll: number;
  /** How long an answer waits for room, in milliseconds. Slow readers of other answers may hold it for longer. */
  readonly answerWaitMs: number;
}

const LENGTHS_KEPT = 10_000;

export type ListRoom = ReturnType<typeof createListRoom>;

/** A long page that has waited this long for room to read goes before the short ones of others. */
const PRECEDENCE_MS = 1_000;

/** `now` in milliseconds. */
export function createListRoom(
  { readingOfPrincipal, readingOfAll, answersOfPrincipal, answersOfAll }: ListLimits,
  now: () => number,
) {
  const precedence = { afterMs: PRECEDENCE_MS, now };
  const reading = createStock('lists that are being read', { perKey: readingOfPrincipal, all: readingOfAll }, precedence);
  /**
   * A page above the share of a principal takes many times that share in memory until it is filtered, so one is read at a time: of the two places, one
   * stays free, as a stock always leaves as much for others.
   */
  const hugeOfPrincipal = createStock('huge pages of one caller', { perKey: 1, all: Infinity });
  const huge = createStock('huge pages that are being read', { perKey: 1, all: 2 }, precedence);
  const answers = createStock('long lists', { perKey: answersOfPrincipal, all: answersOfAll });
  /** The characters of the last answer to each principal, by method. */
  const lengths = new Map<string, number>();
  return {
    /** The characters of the last answer that was noted; 0: there is none. */
    lastLength: (principal: string, method: string): number => lengths.get(`${method} ${principal}`) ?? 0,
    note: (principal: string, method: string, length: number): void =>
      void keep(lengths, `${method} ${principal}`, length, LENGTHS_KEPT),
    /** What is taken now: bytes that are being read, and characters of answers. */
    get taken(): { readonly reading: number; readonly answers: number } {
      return { reading: reading.taken, answers: answers.taken };
    },
    /**
     * Waits until this page may be parsed and filtered. null: `gone` has aborted. `ready` is awaited before room is taken that others could use.
     */
    async toRead(
      principal: string,
      bytes: number,
      gone: Cancellable,
      ready: () => Promise<void> = async () => {},
    ): Promise<Taken | null> {
      const toReading = () => come(reading.queue(principal, Math.min(bytes, readingOfPrincipal, readingOfAll / 2)), gone);
      if (bytes <= readingOfPrincipal) {
        await ready();
        return toReading();
      }
      const own = await come(hugeOfPrincipal.queue(principal, 1), gone);
      if (own !== null) await ready();
      return both(await both(own, () => come(huge.queue(principal, 1), gone)), toReading);
    },
    /** Waits until there is room for a long answer. null: `gone` has aborted. Do not wait for it while holding room to read. */
    toAnswer: (principal: string, characters: number, gone: Cancellable): Promise<Taken | null> =>
      come(answers.queue(principal, Math.min(characters, answersOfPrincipal, answersOfAll / 2)), gone),
  };
}

/** The second room, with which the first one is given back. null: there is only one, or none. */
async function both(first: Taken | null, toSecond: () => Promise<Taken | null>): Promise<Taken | null> {
  const second = first === null ? null : await toSecond();
  const giveBack = (): void => {
    second?.giveBack();
    first?.giveBack();
  };
  if (second !== null) return { ...second, giveBack };
  giveBack();
  return null;
}

async function come(
  { come, leave }: ReturnType<ReturnType<typeof createStock>['queue']>,
  gone: Cancellable,
): Promise<Taken | null> {
  onAbort(gone, leave);
  const room = await come;
  gone.removeEventListener('abort', leave);
  if (isOverdrawn(room)) return null;
  if (!gone.aborted) return room;
  room.giveBack();
  return null;
}
