/** How many requests of one sender are handled at once, also if clients leave. */
import { EventEmitter } from 'node:events';
import { setImmediate as turnOver } from 'node:timers/promises';
import test from 'ava';
import type { Request, Response } from 'express';
import { deferred } from '../../../src/base/promises.ts';
import { createSpareTurns } from '../../../src/base/turns/spare-turns.ts';
import { createTakeTurn, OF_ALL } from '../../../src/http/limits/turn.ts';

let senders = 0;
/** A thread that always has time to spare. */
const idle = {
  now: () => performance.now(),
  busy: () => 0,
  later: (ms: number, then: () => void) => void (ms > 1 ? setTimeout(then, ms) : setImmediate(then)),
};
const takeTurn = createTakeTurn(createSpareTurns({ ...OF_ALL, longestRestMs: 60_000 }, idle));
const all: Response[] = [];

/** Sends the whole answer. */
function answer(res: Response | undefined): void {
  res?.writeHead(200);
  res?.emit('finish');
}

test.afterEach(() => endAll());

/** Sends requests of one sender, and tells which have begun. */
function sender(user = `user ${senders}`, whenBegun: () => void = () => undefined) {
  const name = `sender ${++senders}`;
  const begun: number[] = [];
  const requests: { readonly req: Request; readonly res: Response }[] = [];
  return {
    requests,
    send(): void {
      const index = requests.length;
      const req = { socket: { writable: true } } as unknown as Request;
      const res = Object.assign(new EventEmitter(), { closed: false, writeHead: () => undefined }) as unknown as Response;
      requests.push({ req, res });
      all.push(res);
      takeTurn({ sender: name, user }, req, res, () => {
        begun.push(index);
        whenBegun();
      });
    },
    async begun(): Promise<readonly number[]> {
      for (let i = 0; i < 8; i++) await turnOver();
      return begun;
    },
    leave(index: number): void {
      const res = requests[index]?.res;
      Object.assign(res ?? {}, { closed: true });
      res?.emit('close');
    },
  };
}

test.serial('a request waits for one of four others of its sender to be answered', async (t) => {
  const { requests, send, begun } = sender();
  for (let i = 0; i < 6; i++) send();
  t.deepEqual(await begun(), [0, 1, 2, 3]);
  answer(requests[2]?.res);
  t.deepEqual(await begun(), [0, 1, 2, 3, 4]);
  const other = sender();
  other.send();
  t.deepEqual(await other.begun(), [0]);
});

test.serial('clients that leave do not make room for more requests: the work for them goes on', async (t) => {
  const { send, begun, leave } = sender();
  for (let i = 0; i < 4; i++) send();
  t.deepEqual(await begun(), [0, 1, 2, 3]);
  for (let i = 0; i < 4; i++) leave(i);
  send();
  t.deepEqual(await begun(), [0, 1, 2, 3]);
});

test.serial('a request whose client has left before its turn does not begin, and takes no turn', async (t) => {
  const { requests, send, begun, leave } = sender();
  for (let i = 0; i < 6; i++) send();
  t.deepEqual(await begun(), [0, 1, 2, 3]);
  leave(4);
  answer(requests[0]?.res);
  t.deepEqual(await begun(), [0, 1, 2, 3, 5]);
});

/** Ends all requests. Otherwise those of one test would keep those of the next one waiting. */
function endAll(): void {
  for (const res of all) Object.assign(res, { closed: true });
  for (const res of all.splice(0)) answer(res);
}

test.serial('eight requests of all senders are handled at once, each for a short time', async (t) => {
  for (;;) {
    const at = performance.now();
    const many = Array.from({ length: 6 }, () => sender());
    for (const each of many) for (let i = 0; i < 2; i++) each.send();
    const begun = async (): Promise<number> => (await Promise.all(many.map((each) => each.begun()))).flat().length;
    const first = await begun();
    answer(many[0]?.requests[0]?.res);
    const second = await begun();
    // Afterwards, none of them counts any more.
    while ((await begun()) < 12) await turnOver();
    if (performance.now() - at < 40) t.fail('a request that takes longer counts for 50 ms');
    endAll();
    // On a busy machine, that time may be over before the first look.
    if (second < 12) {
      t.deepEqual([first, second], [8, 9]);
      return;
    }
  }
});

test.serial('a user with many tokens whose requests wait does not keep others waiting', async (t) => {
  let ofCrowd = 0;
  const many = Array.from({ length: 20 }, () => sender('crowd', () => ofCrowd++));
  for (const each of many) for (let i = 0; i < 4; i++) each.send();
  for (let i = 0; i < 8; i++) await turnOver();
  const [before, began] = [ofCrowd, deferred<number>()];
  sender('other', () => began.resolve(ofCrowd)).send();
  // The rest of the answers is not read.
  for (const res of all.slice(0, 8)) res.writeHead(200);
  const after = await began.promise;
  t.true(before <= 8 && after <= before + 2, `${before} requests of the crowd had begun, and then ${after}`);
});
