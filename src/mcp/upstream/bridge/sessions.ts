/** The sessions of the bridge: their state, and how long they are kept. */

import { setTimeout as sleep } from 'node:timers/promises';
import { errors } from 'undici';
import { createFlow, createStock } from '../../../base/budgets.ts';
import { isObject, type JsonObject } from '../../../base/json/json.ts';
import type { RpcId } from '../../../protocol/message.ts';
import { createDemultiplexer, type Demultiplexer } from '../demultiplexer.ts';
import { competitors, toEvict } from '../eviction.ts';
import { bindingKey } from '../health.ts';
import { type Reach, silenceOf } from '../upstream.ts';
import { type ClientTraits, envelope } from './messages.ts';
import { createQuestions, type Questions } from './questions.ts';
import type { BridgeParts } from './requests.ts';
import { createSubscriptions, type Subscriptions } from './subscriptions.ts';
import { createKnownTools, type KnownTools } from './tools.ts';

export interface BridgedSession {
  readonly id: string;
  readonly client: ClientTraits;
  readonly maySubscribe: boolean;
  /** The client's requests in flight, by id, to cancel them. */
  readonly running: Map<RpcId, AbortController>;
  readonly questions: Questions;
  readonly mailbox: Demultiplexer;
  readonly subscriptions: Subscriptions;
  readonly tools: KnownTools;
  logLevel: string | null;
  end(): void;
}

export type BridgedSessions = ReturnType<typeof createBridgedSessions>;

interface Kept extends BridgedSession {
  readonly targetId: string;
  readonly user: string;
  /** The target, address and credentials that the session was opened with. */
  readonly bindingKey: string;
  usedAt: number;
  unused: NodeJS.Timeout | undefined;
}

const PREFIX = 'portcullis-bridge.';
/** The users of one target cannot evict the sessions of all other targets, and one user not those of the others. */
const MAX = { ofUser: 625, ofTarget: 2_500, all: 10_000 };
const SESSION_MS = 24 * 60 * 60 * 1000;
/** Characters of the resources that sessions are subscribed to, and `EACH` for each resource: of one user, and of all users. A session holds several copies. */
const SUBSCRIBED = { perKey: 512 * 1024, all: 8 * 1024 * 1024 };
const EACH = 256;
/** Changes of subscriptions: each ends a connection to the target and opens one. */
const CHANGES = { perKey: { perSecond: 50, burst: 20 }, all: { perSecond: 200, burst: 200 } };

/** Whether the id is one of the bridge, even if its session is gone. Such an id must not be sent to a target. */
export function isBridged(id: string): boolean {
  return id.startsWith(PREFIX);
}

export function createBridgedSessions(parts: BridgeParts) {
  const { limits, newId, now, unread } = parts;
  /** Ordered by last use, oldest first. */
  const sessions = new Map<string, Kept>();
  const toolsAt = createKnownTools(parts);
  const changes = createFlow(CHANGES, () => performance.now());
  const subscribed = createStock('subscriptions of sessions', SUBSCRIBED);

  function keep({ target, access }: Reach, client: ClientTraits, capabilities: JsonObject): BridgedSession {
    for (const oldest of sessions.values()) {
      if (now() - oldest.usedAt <= SESSION_MS) break;
      end(oldest);
    }
    const wanted = { targetId: target.id, user: access.user };
    const competing = competitors([...sessions.values()], [], wanted, MAX)?.sessions ?? [];
    const evicted =
      toEvict(competing, wanted.user, 0, isUnused) ?? competing.find(({ user }) => user === wanted.user) ?? competing[0];
    if (evicted !== undefined) end(evicted);
    const { tools, prompts, resources } = capabilities;
    const maySubscribe = isObject(resources) && resources['subscribe'] === true;
    const lists = Object.entries({ toolsListChanged: tools, promptsListChanged: prompts, resourcesListChanged: resources })
      .filter(([, capability]) => isObject(capability) && capability['listChanged'] === true)
      .map(([list]) => list);
    const account = unread.open(target.id, access.user);
    const mailbox = createDemultiplexer(target.id, silenceOf(target, limits), account, () => touch(session));
    const session: Kept = {
      id: PREFIX + newId(),
      ...wanted,
      bindingKey: bindingKey({ target, access }),
      client,
      maySubscribe,
      running: new Map(),
      questions: createQuestions(newId),
      mailbox,
      subscriptions: createSubscriptions(parts, {
        lists,
        envelope: () => envelope(client, null),
        deliver: (method, text) => {
          if (method === 'notifications/tools/list_changed') session.tools.forget();
          mailbox.push(text);
          return mailbox.room();
        },
        isAway: () => isAway(session),
        endStream: mailbox.endStanding,
        reserve: (uri) => subscribed.take(access.user, EACH + uri.length),
        async turn() {
          changes.charge(access.user, 1);
          const seconds = changes.wait(access.user);
          if (seconds > 0) await sleep(seconds * 1_000, undefined, { ref: false });
        },
      }),
      tools: toolsAt(bindingKey({ target, access }), client),
      logLevel: null,
      usedAt: now(),
      unused: undefined,
      end: () => end(session),
    };
    sessions.set(session.id, session);
    return session;
  }

  const isUnused = (session: Kept): boolean => session.running.size === 0 && isAway(session);
  const isAway = ({ mailbox }: Kept): boolean => mailbox.isQuiet();

  /** Marks the session as used. When it stays idle, its stream at the target is closed: the client may have left silently. */
  function touch(session: Kept): void {
    if (!sessions.delete(session.id)) return;
    sessions.set(session.id, session);
    session.usedAt = now();
    clearTimeout(session.unused);
    session.unused = setTimeout(() => {
      if (isAway(session)) session.subscriptions.stop();
    }, limits.idleMs).unref();
  }

  function end(session: Kept): void {
    sessions.delete(session.id);
    clearTimeout(session.unused);
    session.subscriptions.end();
    for (const running of session.running.values()) running.abort();
    session.mailbox.fail(new errors.RequestAbortedError('the session has ended'));
  }

  return {
    keep,
    /** Returns the session and marks it as used. null: it is unknown, or has a different address or binding. */
    use(id: string, reach: Reach): BridgedSession | null {
      const session = sessions.get(id);
      if (session?.bindingKey !== bindingKey(reach) || now() - session.usedAt > SESSION_MS) return null;
      touch(session);
      return session;
    },
    endAll(): void {
      for (const session of sessions.values()) end(session);
    },
  };
}
