/** What the steps of one exchange share: who asks, what is awaited, and what the gateway has to work with. */
import type { AuditWriter, Outcome } from '../audit/event.ts';
import type { Admission, Admit } from '../auth/admission.ts';
import type { TokenClaims } from '../auth/principal.ts';
import type { JsonObject } from '../http/json.ts';
import type { Log } from '../log.ts';
import type { SessionStore } from '../sessions/store.ts';
import type { Access, RoutedTarget } from '../targets/target.ts';
import type { Aims } from './aggregate/aims.ts';
import type { Cancellable } from './cancellation.ts';
import type { Deliveries } from './deliveries.ts';
import type { Era, SessionRevision } from './era.ts';
import type { McpLimits } from './limits.ts';
import type { Links } from './links.ts';
import type { RpcId } from './message.ts';
import type { Observe } from './observe.ts';
import type { Operation } from './operation.ts';
import type { Places } from './places.ts';
import type { TargetReader } from './reading.ts';
import type { Seal } from './seal.ts';
import type { Linked } from './sessions.ts';
import type { TaskStore } from './store.ts';
import type { Task } from './tasks.ts';
import type { UpstreamEras } from './upstream/eras.ts';
import type { Health } from './upstream/health.ts';
import type { Pace } from './upstream/pace.ts';
import type { Upstream } from './upstream/upstream.ts';
import type { Changes } from './watch.ts';

export interface ExchangeDeps {
  readonly admit: Admit;
  readonly audit: AuditWriter;
  readonly seal: Seal;
  readonly upstream: Upstream;
  readonly links: Links;
  readonly aims: Aims;
  readonly sessions: SessionStore;
  /** Of this process, as sessions name the one that holds them. */
  readonly replicaId: string;
  readonly eras: UpstreamEras;
  readonly health: Health;
  readonly pace: Pace;
  readonly tasks: TaskStore;
  /** For calls, held until they have ended at the target, whether or not the client waits. */
  readonly calls: Places;
  readonly deliveries: Deliveries;
  readonly reader: TargetReader;
  readonly limits: McpLimits;
  readonly observe: Observe;
  readonly now: () => number;
  readonly newId: () => string;
  readonly log: Log;
}

/** One authenticated HTTP request. */
export interface Caller {
  readonly claims: TokenClaims;
  readonly admission: Admission;
  readonly targetName: string;
  readonly arrivedAt: number;
  /** When the last byte of the request was there, on the clock of `performance.now`. */
  readonly wholeAt: number;
  /** What the version header names, if it names one of the session revisions. */
  readonly version: SessionRevision | undefined;
  /** Aborted when the client is gone, or, for the reason REVOKED, when it may no longer go on. */
  readonly gone: Cancellable;
  /** Of a standing stream: each new state in which it may go on. */
  readonly changes: Changes | null;
}

export const REVOKED = new DOMException('The caller may no longer go on', 'AbortError');

/** The request whose answer is awaited. */
export interface Awaited {
  readonly id: RpcId;
  readonly method: string;
  /** undefined on a resumed stream: only the sealed origin is known of the request. */
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  /** The caller's task that it is about. */
  readonly task?: Task | null;
  readonly decisionId: string;
  /** Records how it ended. */
  readonly end: (outcome: Outcome) => void;
}

export interface RelayContext {
  readonly caller: Caller;
  readonly target: RoutedTarget;
  readonly access: Access;
  readonly era: Era;
  /** null in 2026-07-28 and while a session is being opened. */
  readonly linked: Linked | null;
  /** null on the standing stream of a session. */
  readonly awaited: Awaited | null;
  /** A stream that may stay open: the caller's right to it is looked at again for each message. */
  readonly standing: boolean;
  /** Of a `subscriptions/listen`: the filter that went to the target. */
  readonly listening?: JsonObject;
  /** Of a `subscriptions/listen`: the caller's tasks in that filter, by the ids that the target gave them. */
  readonly tasks?: ReadonlyMap<string, Task>;
  /** Told what the target has acknowledged of it. */
  readonly acknowledged?: (notifications: JsonObject) => void;
  /** Ids that the client knows requests of the target by, for their cancellation. */
  readonly asked: Map<RpcId, string>;
}
