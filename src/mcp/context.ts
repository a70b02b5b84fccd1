/** What the steps of one exchange share: who asks, what is awaited, and what the gateway has to work with. */
import type { AuditWriter, Outcome } from '../audit/event.ts';
import type { Admission, Admit } from '../auth/admission.ts';
import type { TokenClaims } from '../auth/principal.ts';
import type { JsonObject } from '../http/json.ts';
import type { Log } from '../log.ts';
import type { RoutedTarget } from '../targets/target.ts';
import type { Era, SessionRevision } from './era.ts';
import type { Forwarder } from './forward.ts';
import type { McpLimits } from './limits.ts';
import type { RpcId } from './message.ts';
import type { Operation } from './operation.ts';
import type { Places } from './places.ts';
import type { Seal } from './seal.ts';
import type { Session } from './sessions.ts';
import type { UpstreamEras } from './upstream-era.ts';

export interface ExchangeDeps {
  readonly admit: Admit;
  readonly audit: AuditWriter;
  readonly seal: Seal;
  readonly forwarder: Forwarder;
  readonly eras: UpstreamEras;
  /** For calls, held until they have ended at the target, whether or not the client waits. */
  readonly calls: Places;
  readonly limits: McpLimits;
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
  /** What the version header names, if it names one of the session revisions. */
  readonly version: SessionRevision | undefined;
  /** Aborted when the client is gone, or, for the reason REVOKED, when it may no longer go on. */
  readonly gone: AbortSignal;
}

export const REVOKED = new DOMException('The caller may no longer go on', 'AbortError');

/** The request whose answer is awaited. */
export interface Awaited {
  readonly id: RpcId;
  readonly method: string;
  /** undefined on a resumed stream: only the sealed origin is known of the request. */
  readonly params: JsonObject | undefined;
  readonly operation: Operation;
  readonly decisionId: string;
  /** Records how it ended. */
  readonly end: (outcome: Outcome) => void;
}

export interface RelayContext {
  readonly caller: Caller;
  readonly target: RoutedTarget;
  readonly era: Era;
  /** null in 2026-07-28 and while a session is being opened. */
  readonly session: Session | null;
  /** null on the standing stream of a session. */
  readonly awaited: Awaited | null;
  /** A stream that may stay open: the caller's right to it is looked at again for each message. */
  readonly standing: boolean;
  /** Of a `subscriptions/listen`: the filter that went to the target. */
  readonly listening?: JsonObject;
  /** Ids that the client knows requests of the target by, for their cancellation. */
  readonly asked: Map<RpcId, string>;
}
