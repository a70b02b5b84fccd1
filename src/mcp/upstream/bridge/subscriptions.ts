/**
 * The resources that a session of the bridge is subscribed to. The gateway listens for them in parts: what changes one subscription decides and
 * sends only the subscriptions of its part.
 */

import { isOverdrawn, type Overdrawn, type Taken } from '../../../base/budgets.ts';
import type { Reach } from '../upstream.ts';
import { createListener, type Listener, type ListenerDeps } from './listen.ts';
import type { BridgeParts } from './requests.ts';

export type Subscriptions = ReturnType<typeof createSubscriptions>;

/** `full`: there is no room. `unheard`: the target accepts no subscriptions at the moment. `unreported`: it does not report changes of this resource. */
export type Subscribed = 'done' | 'full' | 'unheard' | 'unreported';

export interface SubscriptionsDeps extends ListenerDeps {
  /** Takes room for a resource. */
  readonly reserve: (uri: string) => Taken | Overdrawn;
  /** Resolves when the user may change subscriptions. */
  readonly turn: () => Promise<void>;
}

interface Part {
  readonly listener: Listener;
  /** The resources, with the room that each takes. */
  readonly resources: Map<string, Taken>;
}

const MAX_SUBSCRIPTIONS = 1_000;
const PART = { resources: 50, characters: 16 * 1024 };

export function createSubscriptions(parts: BridgeParts, { reserve, turn, ...deps }: SubscriptionsDeps) {
  /** Listens for changes of lists, too. */
  const first: Part = { listener: createListener(parts, deps), resources: new Map() };
  const all = new Set([first]);
  /** Changes run one after the other. */
  let changing: Promise<unknown> = Promise.resolve();
  /** With which access the session is to listen again, and whether for all parts or for the silent ones; null: that is not in the queue. */
  let wanted: { readonly reach: Reach; readonly isForAll: boolean } | null = null;
  let isOver = false;

  function queued<T>(change: () => Promise<T>): Promise<T> {
    const changed = changing.then(turn).then(change);
    changing = changed.catch(() => undefined);
    return changed;
  }

  const hear = ({ listener, resources }: Part, reach: Reach, more: readonly string[] = []) =>
    listener.hear(reach, new Set([...resources.keys(), ...more]));
  const partWith = (uri: string): Part | undefined => [...all].find(({ resources }) => resources.has(uri));
  const count = (): number => [...all].reduce((sum, { resources }) => sum + resources.size, 0);

  function partFor(uri: string): Part {
    for (const part of all) {
      const characters = [...part.resources.keys()].reduce((sum, { length }) => sum + length, uri.length);
      if (part.resources.size === 0 || (part.resources.size < PART.resources && characters <= PART.characters)) return part;
    }
    return { listener: createListener(parts, { ...deps, lists: [] }), resources: new Map() };
  }

  async function add(reach: Reach, uri: string): Promise<Subscribed> {
    if (partWith(uri) !== undefined) return 'done';
    if (isOver) return 'unheard';
    const room = count() < MAX_SUBSCRIPTIONS ? reserve(uri) : null;
    if (room === null || isOverdrawn(room)) return 'full';
    const part = partFor(uri);
    all.add(part);
    const agreed = await hear(part, reach, [uri]);
    if (agreed?.has(uri) && !isOver) {
      part.resources.set(uri, room);
      return 'done';
    }
    room.giveBack();
    leaveIfEmpty(part);
    return agreed === null ? 'unheard' : 'unreported';
  }

  async function remove(reach: Reach, uri: string): Promise<void> {
    const part = partWith(uri);
    if (part === undefined) return;
    part.resources.get(uri)?.giveBack();
    part.resources.delete(uri);
    leaveIfEmpty(part);
    if (count() === 0 && deps.isAway()) stop();
    else if (all.has(part)) await hear(part, reach);
  }

  function leaveIfEmpty(part: Part): void {
    if (part === first || part.resources.size > 0) return;
    all.delete(part);
    part.listener.end();
  }

  /** Once in the queue, with the access of the newest request: every request may ask for it, and it can take long. */
  function listenAgain({ target, access }: Reach, isForAll: boolean): void {
    const before = wanted;
    wanted = { reach: { target, access }, isForAll: isForAll || before?.isForAll === true };
    if (before !== null) return;
    void queued(async () => {
      if (wanted === null) return;
      const { reach, isForAll } = wanted;
      wanted = null;
      await Promise.all((isForAll ? [...all] : silent()).map((part) => hear(part, reach)));
    });
  }

  /** The parts that have resources, but no open stream. */
  const silent = (): readonly Part[] => [...all].filter(({ listener, resources }) => resources.size > 0 && !listener.isOpen());

  function stop(): void {
    for (const { listener } of all) listener.stop();
  }

  return {
    subscribe: (reach: Reach, uri: string) => queued(() => add(reach, uri)),
    unsubscribe: (reach: Reach, uri: string) => queued(() => remove(reach, uri)),
    listenAgain: (reach: Reach) => listenAgain(reach, true),
    /** Listens again for subscriptions whose stream has ended. */
    resume(reach: Reach): void {
      if (silent().length > 0) listenAgain(reach, false);
    },
    /** Stops listening until the next request of the client. */
    stop,
    /** Stops listening for ever: what waits to be heard is not. */
    end(): void {
      isOver = true;
      for (const { listener, resources } of all) {
        listener.end();
        for (const room of resources.values()) room.giveBack();
      }
    },
  };
}
