/** What the steps of one request share: its message, its caller, and the services of the gateway. */

import type { AuditWriter, Outcome } from '../../audit/records/records.ts';
import type { TokenClaims } from '../../auth/principal.ts';
import { principalKey } from '../../auth/principal.ts';
import type { Cancellable } from '../../base/cancellation.ts';
import type { JsonObject } from '../../base/json/json.ts';
import type { Log } from '../../base/log.ts';
import type { Outbox } from '../../http/limits/outbox.ts';
import type { RpcId, RpcRequest } from '../../protocol/message.ts';
import type { Mode, SessionRevision } from '../../protocol/mode.ts';
import type { Operation } from '../../protocol/operation.ts';
import type { Located } from '../../protocol/rebuild.ts';
import type { SessionStore } from '../../sessions/session-store.ts';
import type { Admission, Admit } from '../../state/admission.ts';
import type { Access, RoutedTarget } from '../../targets/target.ts';
import type { ChangeItem } from '../filter/filter-parts.ts';
import type { Deliveries } from '../limits/deliveries.ts';
import type { McpLimits } from '../limits/limits.ts';
import type { ListRoom } from '../limits/lists.ts';
import type { TargetReader } from '../limits/reading.ts';
import type { Slots } from '../limits/slots.ts';
import type { Seal } from '../sessions/seal.ts';
import type { Session, SessionPair } from '../sessions/sessions.ts';
import type { TaskStore } from '../sessions/task-store.ts';
import type { Task } from '../sessions/tasks.ts';
import type { Catalogue } from '../upstream/catalogue.ts';
import { sourceOf } from '../upstream/connect.ts';
import type { Health } from '../upstream/health.ts';
import type { UpstreamModes } from '../upstream/modes.ts';
import type { Pace } from '../upstream/pace.ts';
import type { StatelessHeaders, Upstream } from '../upstream/upstream.ts';
import type { InFlightRequests } from './in-flight.ts';
import type { Observe } from './observe.ts';
import { accessFor } from './readmission.ts';
import type { AdmissionChanges } from './revalidation.ts';
import type { UpstreamSessions } from './upstream-sessions.ts';

export interface RequestDeps {
  readonly admit: Admit;
  readonly audit: AuditWriter;
  readonly seal: Seal;
  readonly upstream: Upstream;
  readonly links: UpstreamSessions;
  readonly inFlight: InFlightRequests;
  readonly sessions: SessionStore;
  /** The id of this process. Sessions name their owner by it. */
  readonly replicaId: string;
  readonly modes: UpstreamModes;
  readonly health: Health;
  readonly catalogue: Pick<Catalogue, 'note'>;
  readonly pace: Pace;
  readonly tasks: TaskStore;
  /** Concurrency slots for calls. A call keeps its slot until it has ended at the target, even if the client has left. */
  readonly calls: Slots;
  /** Slots for messages besides requests: calls must not keep out the answers and cancellations that end them. */
  readonly messages: Slots;
  /** Slots for messages that ask all targets. Each makes hundreds of requests. */
  readonly wide: Slots;
  readonly deliveries: Deliveries;
  readonly reader: TargetReader;
  readonly outbox: Outbox;
  readonly lists: ListRoom;
  readonly limits: McpLimits;
  readonly observe: Observe;
  readonly now: () => number;
  readonly newId: () => string;
  readonly log: Log;
}

/** One authenticated HTTP request, and the services that it is handled with. */
export interface Caller {
  readonly deps: RequestDeps;
  readonly claims: TokenClaims;
  /** The same for the whole request. Only on a stream that stays open is it replaced (`callerOfStream`). */
  readonly admission: Admission;
  readonly targetName: string;
  readonly arrivedAt: number;
  /** When the last byte of the request arrived, by `performance.now`. */
  readonly wholeAt: number;
  /** When the state of `admission` was asked for, or earlier, by `performance.now`. */
  readonly admittedAt: number;
  /** The revision that the version header names, if it is a session revision. */
  readonly version: SessionRevision | undefined;
  /** Aborted when the client is gone, and when the call is revoked. */
  readonly gone: Cancellable;
  /** Aborted when the call must end, also at the target: the caller has lost its access. */
  readonly revoked: Cancellable;
  /** For a standalone stream: reports each new state in which the stream may stay open. */
  readonly changes: AdmissionChanges;
  /** Calls the function when the answer has been written or dropped. */
  readonly whenAnswered: (then: () => void) => void;
  /** The request is an element of a batch: its client gets one answer, and no requests of the target. Absent: it is not. */
  readonly isInBatch?: true;
  /** Called with the admission that has decided what an answer shows; the last call counts. Not called if nothing was decided. */
  readonly decidedBy?: (admission: Admission) => void;
}

/** The client's mode: within a session, opening a session, or stateless. */
export type ClientMode =
  /** null: the request opens a session. `unknown`: it names a session that this caller does not have on this target. */
  | { readonly mode: 'stateful'; readonly session: Session | null | 'unknown' }
  | { readonly mode: 'stateless'; readonly revision: string; readonly paramHeaders: StatelessHeaders['params'] };

/** A request to one target, as it was read. It is not decided yet. */
export interface ClientRequest {
  readonly client: ClientMode;
  readonly message: RpcRequest;
  readonly located: Located;
  readonly operation: Operation;
  /** For a list: see `ListedItems`. */
  readonly changeItem?: ChangeItem | undefined;
}

/** A message of a session. null: the caller has no such session on this target. */
export interface SessionMessage<Message> {
  readonly session: Session | null;
  readonly message: Message;
  readonly located: Located;
}

/** The session that a request names in its header. null: this caller has no such session on this target. */
export type ClaimedSession = Session | 'missing' | null;

/** The request whose answer is awaited. */
export interface AwaitedRequest {
  readonly id: RpcId;
  readonly method: string;
  /** undefined on a resumed stream: the gateway knows only the sealed origin of the request. */
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  /** Absent on a resumed stream. */
  readonly client?: ClientMode;
  /** The caller's task that the request names. */
  readonly task?: Task | null;
  readonly decisionId: string;
  readonly changeItem?: ChangeItem | undefined;
  /** Frees the caller's slot. null: the outcome is not known yet, and the stream that resumes the answer records it. */
  readonly end: (outcome: Outcome | null) => void;
}

export interface UpstreamContext {
  readonly deps: RequestDeps;
  readonly caller: Caller;
  readonly target: RoutedTarget;
  readonly access: Access;
  readonly mode: Mode;
  /** null in stateless mode (2026-07-28) and while a session is being opened. */
  readonly linked: SessionPair | null;
  /** null on the standalone stream of a session. */
  readonly awaited: AwaitedRequest | null;
  /** The stream may stay open for long, so the caller's access is checked again for each message. */
  readonly longLived: boolean;
  /** For a `subscriptions/listen`: the filter that was sent to the target. */
  readonly listening?: JsonObject;
  /** For a `subscriptions/listen`: the caller's tasks in that filter, by the ids that the target gave them. */
  readonly tasks?: ReadonlyMap<string, Task>;
  /** Called with the part of that filter that the target has acknowledged. */
  readonly acknowledged?: (notifications: JsonObject) => void;
  /** The ids under which the client knows the target's requests, by the target's own ids. Cancellations need them. */
  readonly asked: Map<RpcId, string>;
}

/** The context of a request whose answer is awaited. */
export type RequestContext = UpstreamContext & { readonly awaited: AwaitedRequest };

/** On a short stream, and while a session is being opened; callers change what differs. */
export function contextOf<Awaited extends AwaitedRequest | null>(
  caller: Caller,
  target: RoutedTarget,
  mode: Mode,
  awaited: Awaited,
): UpstreamContext & { readonly awaited: Awaited } {
  const operation = awaited?.operation;
  const access = accessFor(caller, target, operation?.kind === 'object' ? [operation.object] : []);
  return { deps: caller.deps, caller, target, access, mode, linked: null, awaited, longLived: false, asked: new Map() };
}

/** Whose turns in the lane long work takes: no user waits for what a target sends to another one. `target`: its id or name. */
export const turnsOf = ({ claims }: Pick<Caller, 'claims'>, target: string): string => sourceOf(target, principalKey(claims));
