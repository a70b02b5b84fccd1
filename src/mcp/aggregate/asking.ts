/** Asks one of several targets, so that neither a late target nor a long answer holds up the requests to the others. */

import { principalKey } from '../../auth/principal.ts';
import type { Taken } from '../../base/budgets.ts';
import { onAbort, signalOf } from '../../base/cancellation.ts';
import { LARGE_TEXT } from '../../base/json/large.ts';
import { deferred } from '../../base/promises.ts';
import type { SseEvent } from '../../protocol/sse.ts';
import { chargedTo } from '../answers/upstream-messages.ts';
import type { Caller } from '../context/context.ts';
import { askedAt, type SessionTarget } from '../context/upstream-opening.ts';
import { faultOf } from '../upstream/http.ts';
import type { Attempt } from '../upstream/pace.ts';
import {
  isFault,
  type ReadBody,
  type ToRead,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
} from '../upstream/upstream.ts';

/**
 * Returns what `ask` returns for one of several targets, or null if the target answers too late for the others to wait. A late
 * target is asked in the background. The request is recorded before null is returned, unless the database itself is late. The time in which
 * the gateway reads, filters and records an answer does not count: a busy gateway does not make a target late.
 */
export async function askAmong<T>(
  caller: Caller,
  sessionTarget: SessionTarget,
  method: string,
  ask: (aimed: Caller) => Promise<T>,
): Promise<T | null> {
  const { deps } = caller;
  const { joinMs } = deps.limits;
  const asked = askedAt(sessionTarget);
  let attempt: Attempt | null = null;
  let hasAnswered = false;
  const sent = deferred();
  const late = new AbortController();
  const gone = AbortSignal.any([signalOf(caller.gone), late.signal]);
  const revoked = AbortSignal.any([signalOf(caller.revoked), late.signal]);
  let isAwaited = true;
  /** Whether the last request found no room for its answer. */
  let isBusy = false;
  const noted = (fault: UpstreamFault): UpstreamFault => {
    isBusy ||= fault.fault === 'busy';
    return fault;
  };
  const room = roomToRead(caller, sessionTarget, gone, () => isAwaited);
  const clock = createStopwatch();
  /** When the gateway began to read and relay what it has of an answer; null: it does not. */
  let readingSince: number | null = null;
  const pause = (): void => {
    attempt?.pause();
    clock.pause();
  };
  const resume = (countedMs?: number): void => {
    attempt?.resume(countedMs);
    clock.resume(countedMs);
  };
  const reading: ReadingTime = {
    begin(): void {
      pause();
      readingSince = performance.now();
    },
    end(): void {
      resume(readingSince === null ? 0 : performance.now() - readingSince);
      readingSince = null;
    },
  };
  const upstream: Upstream = {
    ...deps.upstream,
    async send(request) {
      if (deps.pace.isAsking(asked, method)) return { fault: 'suspended' };
      attempt?.ended(true);
      const own = deps.pace.begin(asked, method);
      attempt = own;
      isBusy = false;
      clock.resume();
      sent.resolve();
      const toRead: ToRead = {
        async take(bytes) {
          const isRunning = !clock.isPaused();
          pause();
          const mayRead = await room.take(bytes);
          if (isRunning) resume();
          // No request waits for this answer any more, so the target is not late.
          if (!mayRead) own.ended(true);
          return mayRead;
        },
        giveBack: room.giveBack,
      };
      const answer = await deps.upstream.send({ ...request, toRead });
      hasAnswered = !isFault(answer) && answer.status < 500;
      if (isFault(answer)) return noted(answer);
      return readWithRoom(answer, room, noted, { pause, resume, reading, ended: () => own.ended(hasAnswered) });
    },
  };
  // When the gateway records the names in an answer, the target has answered.
  const shown: typeof deps.audit.shown = (record) => {
    attempt?.ended(true);
    return deps.audit.shown(record);
  };
  // A target that has sent too much makes its own answer late, and holds no room meanwhile that others could use.
  const pace: typeof deps.deliveries.pace = (...message) => {
    const rest = deps.deliveries.pace(...message);
    if (rest === null) return null;
    room.giveBack();
    reading.end();
    return rest.then(reading.begin);
  };
  // While a message waits behind others for the same caller and target, it holds no room either.
  const read: typeof deps.reader.read = (charged, text, rules) => {
    if (!room.isHeld() || !deps.reader.isBehind(charged)) return deps.reader.read(charged, text, rules);
    room.giveBack();
    return room.take(text.length).then((mayRead) => {
      if (!mayRead) throw ABORTED;
      return deps.reader.read(charged, text, rules);
    });
  };
  const among = {
    ...{ ...deps, upstream },
    // Parts of a list have limits of their own. All of them are kept until the list is written, so they must not wait for each other's room.
    reader: { ...deps.reader, read, roomForText: async () => () => undefined },
    links: { ...deps.links, current: deps.links.joined },
    audit: { ...deps.audit, shown },
    deliveries: { ...deps.deliveries, pace },
  };
  const waited = deferred<null>();
  const until = performance.now() + LONGEST_WAIT_MS;
  const expire = (): void => {
    const left = Math.min(joinMs - clock.ms(), until - performance.now());
    if (left > 0) {
      timer = setTimeout(expire, clock.isPaused() ? Math.max(left, deps.limits.lateMs) : left);
      return;
    }
    if (clock.ms() >= joinMs && attempt?.overdue()) deps.health.failed({ ...asked, list: method }, 'timeout');
    late.abort();
    waited.resolve(null);
  };
  let timer = setTimeout(expire, joinMs);
  const work = ask({ ...caller, deps: among, targetName: sessionTarget.target.name, gone, revoked })
    .catch(() => null)
    .then(async (done) => {
      room.giveBack();
      // An answer at once would only bring the next list, which would find no room either.
      if (isBusy && !gone.aborted) {
        attempt?.ended(true);
        clock.resume();
        await new Promise<void>((resolve) => onAbort(gone, resolve));
      }
      return done;
    })
    .finally(() => {
      clearTimeout(timer);
      room.giveBack();
      attempt?.ended(hasAnswered && !late.signal.aborted);
    });
  const inPace = async (): Promise<T | null> => {
    await sent.promise;
    const done = await deps.pace.wait(asked, method, work, () => attempt);
    isAwaited = done !== null;
    return done;
  };
  return Promise.race([work, waited.promise, inPace()]);
}

/** The longest wait for one target, whatever the gateway does meanwhile. */
const LONGEST_WAIT_MS = 30_000;

/** Measures the time in which the gateway waits for the target. */
function createStopwatch() {
  let since: number | null = performance.now();
  let before = 0;
  return {
    isPaused: () => since === null,
    /** Milliseconds so far. */
    ms: (): number => before + (since === null ? 0 : performance.now() - since),
    pause(): void {
      before += since === null ? 0 : performance.now() - since;
      since = null;
    },
    /** `countedMs`: so much of the pause counts after all. */
    resume(countedMs = 0): void {
      if (since === null) before += countedMs;
      since ??= performance.now();
    },
  };
}

/** Takes room for the first long answer. Most answers are short and take none. `isAwaited`: whether a request waits for the answer. */
function roomToRead(caller: Caller, { target }: SessionTarget, gone: AbortSignal, isAwaited: () => boolean) {
  const { lists, reader } = caller.deps;
  const left = new Promise<void>((resolve) => onAbort(gone, resolve));
  const charged = chargedTo({ caller, target });
  const ready = async (): Promise<void> => {
    while (!gone.aborted && reader.isBehind(charged)) await Promise.race([reader.catchUp(charged), left]);
  };
  let taken: Taken | null = null;
  return {
    isHeld: (): boolean => taken !== null,
    /** False: no request waits for the answer now. */
    async take(bytes: number): Promise<boolean> {
      if (bytes <= LARGE_TEXT || taken !== null) return true;
      if (!isAwaited()) return false;
      for (;;) {
        taken = await lists.toRead(principalKey(caller.claims), bytes, gone, ready);
        // A caller who is behind waits without room that others could use.
        if (taken === null || !reader.isBehind(charged)) return taken !== null && isAwaited();
        taken.giveBack();
        taken = null;
      }
    },
    giveBack(): void {
      taken?.giveBack();
      taken = null;
    },
  };
}

type Room = ReturnType<typeof roomToRead>;

/** The time in which the gateway reads and relays what it has. It counts as the target's if the answer is still to come when it ends. */
interface ReadingTime {
  begin(): void;
  end(): void;
}

interface Pauses {
  readonly reading: ReadingTime;
  pause(): void;
  resume(): void;
  ended(): void;
}

/** The answer. A long answer waits for room before the gateway looks at it. While a target is waited for, it takes no room. */
function readWithRoom(
  answer: UpstreamAnswer,
  room: Room,
  noted: (fault: UpstreamFault) => UpstreamFault,
  { reading, pause, resume, ended }: Pauses,
): UpstreamAnswer {
  if (answer.type === 'stream') {
    async function* events(all: AsyncIterable<readonly SseEvent[]>): AsyncGenerator<readonly SseEvent[]> {
      try {
        for await (const some of all) {
          pause();
          if (!(await room.take(some.reduce((sum, { data }) => sum + data.length, 0)))) throw ABORTED;
          reading.begin();
          yield some;
          // The answer is still to come. After the answer, no further events are wanted, and the loop ends above. The time for what came
          // before the answer counts, so that a target that sends notifications without end is late.
          room.giveBack();
          reading.end();
        }
      } catch (cause) {
        noted({ fault: faultOf(cause) });
        throw cause;
      }
    }
    return { ...answer, events: events(answer.events) };
  }
  // The target has answered. Until the gateway reads on, the target is not waited for.
  pause();
  const read: ReadBody = async (isWanted) => {
    resume();
    const body = await answer.read(isWanted);
    if (isFault(body)) return noted(body);
    pause();
    ended();
    return (await room.take(body.length)) ? body : { fault: 'aborted' };
  };
  return { ...answer, read };
}

const ABORTED = new DOMException('No request waits for this list now', 'AbortError');
