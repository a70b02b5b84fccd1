/**
 * Replaces standalone streams and subscriptions in 2026-07-28: one `subscriptions/listen` request for everything that a session
 * wants to hear. It is opened again when that changes, and when the target ends it.
 */

import { isObject, type JsonObject, type JsonValue } from '../../../base/json/json.ts';
import { ACKNOWLEDGED, isHeard, LISTEN } from '../../../protocol/listen.ts';
import { STATELESS_REVISION } from '../../../protocol/mode.ts';
import { type Located, rebuildNotification, withMembers } from '../../../protocol/rebuild.ts';
import type { SseEvent } from '../../../protocol/sse.ts';
import { resourceOf } from '../../../protocol/uri.ts';
import { sourceOf } from '../connect.ts';
import { CHANGED, isFault, isStillAllowed, type Reach, type UpstreamFault } from '../upstream.ts';
import { read } from './messages.ts';
import type { BridgeParts } from './requests.ts';

export type Listener = ReturnType<typeof createListener>;

export interface ListenerDeps {
  readonly envelope: () => JsonObject;
  /** The filter members for the lists whose changes the target reports. */
  readonly lists: readonly string[];
  /** Delivers a notification in the form of the stateful revisions. Resolves when more may come. */
  readonly deliver: (method: string, text: string) => Promise<void> | null;
  /** Whether the client has no stream open. Then nothing shows that it may still use the target: requests in flight are not decided again. */
  readonly isAway: () => boolean;
  /** Ends the client's stream. The client opens it again, and so the gateway listens again. */
  readonly endStream: () => void;
}

const ACKNOWLEDGE_MS = 10_000;
const RETRY_MS = { first: 1_000, last: 60_000 };
const SUBSCRIPTION_ID = 'io.modelcontextprotocol/subscriptionId';

interface Listening {
  /** With the access that last asked for it: the one before may end. */
  reach: Reach;
  readonly stream: AbortController;
  /** What the target was asked for, as JSON. */
  readonly asked: string;
  /** The resources that the target agreed to; null: it has not answered. */
  agreed: ReadonlySet<string> | null;
  hasEnded: boolean;
  /** The access with which it was to be opened has ended, for instance with its token. A retry would be refused, too. */
  isRefused: boolean;
  /** Reopens the stream after a delay, unless another was opened in the meantime. */
  again(): void;
}

export function createListener({ http, newId, now }: BridgeParts, deps: ListenerDeps) {
  let current: Listening | null = null;
  let changes: Promise<unknown> = Promise.resolve();
  let retry: NodeJS.Timeout | undefined;
  let isOver = false;

  async function change(reach: Reach, uris: ReadonlySet<string>, delayMs: number): Promise<ReadonlySet<string> | null> {
    clearTimeout(retry);
    const heard = await allowedOf(reach, uris);
    if (isOver) return null;
    const notifications: JsonObject = {
      ...Object.fromEntries(deps.lists.map((list) => [list, true])),
      ...(heard.size === 0 ? {} : { resourceSubscriptions: [...heard] }),
    };
    const before = current;
    const asked = JSON.stringify(notifications);
    if (before !== null && before.asked === asked && !before.hasEnded && isSubsetOf(heard, before.agreed)) {
      before.reach = reach;
      return before.agreed;
    }
    if (Object.keys(notifications).length === 0) {
      current = null;
      before?.stream.abort();
      if (uris.size > 0 && !(await isStillAllowed(reach.access, []))) deps.endStream();
      return heard;
    }
    const began = now();
    const own: Listening = {
      reach,
      stream: new AbortController(),
      asked,
      agreed: null,
      hasEnded: false,
      isRefused: false,
      again() {
        if (!isStill(own)) return;
        // A stream that lasted for a while resets the delay.
        const next = now() - began > RETRY_MS.last ? RETRY_MS.first : Math.min(delayMs * 2, RETRY_MS.last);
        clearTimeout(retry);
        retry = setTimeout(() => isStill(own) && void enqueue(own.reach, uris, next), next).unref();
      },
    };
    current = own;
    const agreed = await listen(reach, notifications, own);
    own.agreed = agreed;
    if (own.isRefused && current === own && before?.hasEnded !== false) {
      giveUp();
      return null;
    }
    if (current !== own || agreed !== null || before === null) {
      // The old stream is closed only now, so that no change is missed in between.
      before?.stream.abort();
      return agreed;
    }
    // The old stream continues: it is better than none.
    current = before;
    if (before.hasEnded) before.again();
    return null;
  }

  /** Other tokens may use the session: the next request, or the stream when it is opened again, listens with its own access. */
  function giveUp(): void {
    current = null;
    deps.endStream();
  }

  /** Whether the stream is wanted. The next request of a client that is away is decided first, and opens the stream again. */
  function isStill(own: Listening): boolean {
    if (current !== own) return false;
    if (deps.isAway()) current = null;
    return current === own;
  }

  function enqueue(reach: Reach, uris: ReadonlySet<string>, delayMs: number): Promise<ReadonlySet<string> | null> {
    const changed = changes.then(() => change(reach, uris, delayMs));
    changes = changed.catch(() => undefined);
    return changed;
  }

  /** Resolves with the acknowledgement. The stream is then read until it ends. */
  function listen(reach: Reach, notifications: JsonObject, own: Listening): Promise<ReadonlySet<string> | null> {
    return new Promise((resolve) => {
      const late = setTimeout(() => own.stream.abort(), ACKNOWLEDGE_MS).unref();
      const acknowledged = (uris: ReadonlySet<string> | null): void => {
        clearTimeout(late);
        resolve(uris);
      };
      void follow(reach, notifications, own.stream.signal, acknowledged)
        .catch(() => null)
        .then((fault) => {
          own.hasEnded = true;
          // A cause says that the state could not be read.
          own.isRefused = fault?.fault === CHANGED.fault && fault.cause === undefined;
          acknowledged(null);
          if (!own.isRefused) own.again();
        });
    });
  }

  /** Returns the fault that kept the stream from being opened. */
  async function follow(
    { target, access }: Reach,
    notifications: JsonObject,
    signal: AbortSignal,
    acknowledged: (uris: ReadonlySet<string>) => void,
  ): Promise<UpstreamFault | null> {
    const id = newId();
    const params = { _meta: deps.envelope(), notifications };
    const body = JSON.stringify({ jsonrpc: '2.0', id, method: LISTEN, params });
    const stateless = { version: STATELESS_REVISION, method: LISTEN, name: undefined, params: [] };
    const answer = await http.send({ method: 'POST', target, access, stateless, signal, body });
    if (isFault(answer)) return answer;
    /** Handles an event. Returns whether the subscription has ended. */
    const take = async (event: SseEvent): Promise<boolean> => {
      const received = await read(event.data, sourceOf(target.id, access.user));
      event.data = '';
      if (received === null) return false;
      const { message, reading } = received;
      if (message.kind === 'response') return true;
      if (message.kind !== 'notification' || !isHeard(message.method, message.params, id, notifications)) return false;
      if (message.method === ACKNOWLEDGED) acknowledged(agreedUris(message.params));
      else await deps.deliver(message.method, plainNotification(message.method, reading));
      return false;
    };
    try {
      if (answer.status !== 200 || answer.type !== 'stream') return null;
      for await (const events of answer.events) {
        for (const event of events) if (await take(event)) return null;
      }
      return null;
    } finally {
      answer.discard();
    }
  }

  /** Stops listening until the next `hear`. */
  function stop(): void {
    clearTimeout(retry);
    current?.stream.abort();
    current = null;
  }

  return {
    /**
     * Listens for changes of these resources and of lists. Returns the resources that the target agrees to; null: it does not
     * listen.
     */
    hear: (reach: Reach, uris: ReadonlySet<string>) => enqueue(toListen(reach), uris, RETRY_MS.first / 2),
    isOpen: () => current !== null,
    stop,
    /** Stops listening for ever: what waits to be heard is not. */
    end(): void {
      isOver = true;
      stop();
    },
  };
}

/** The resources of which the client may still hear: a subscription was decided when it was made. */
async function allowedOf({ access }: Reach, uris: ReadonlySet<string>): Promise<ReadonlySet<string>> {
  if (uris.size === 0 || (await isStillAllowed(access, [...uris].map(resourceOf)))) return uris;
  const allowed = new Set<string>();
  for (const uri of uris) if (await isStillAllowed(access, [resourceOf(uri)])) allowed.add(uri);
  return allowed;
}

/** The stream is not for the object of the request that opens it, and outlives that. */
function toListen({ target, access }: Reach): Reach {
  const { stillAllowed } = access;
  return stillAllowed === undefined
    ? { target, access }
    : { target, access: { ...access, stillAllowed: (objects = []) => stillAllowed(objects) } };
}

function agreedUris(params: JsonObject | undefined): ReadonlySet<string> {
  const agreed = isObject(params?.notifications) ? params.notifications : {};
  const uris: JsonValue = agreed['resourceSubscriptions'] ?? [];
  return new Set(Array.isArray(uris) ? uris.filter((uri) => typeof uri === 'string') : []);
}

/** `all` null: nothing is known. */
const isSubsetOf = (some: ReadonlySet<string>, all: ReadonlySet<string> | null): boolean =>
  all !== null && [...some].every((uri) => all.has(uri));

/** Takes out what a session's client does not know. The rest keeps its text, because it can be long. */
function plainNotification(method: string, located: Located): string {
  const meta = located.span.members?.get('params')?.members?.get('_meta');
  if (!meta?.members?.has(SUBSCRIPTION_ID)) return rebuildNotification(method, located, {});
  const kept = meta.members.size === 1 ? null : withMembers(located.text, meta, { [SUBSCRIPTION_ID]: null });
  return rebuildNotification(method, located, { _meta: kept });
}
