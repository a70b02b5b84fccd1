/**
 * `/mcp/<target>`, and the aggregate endpoint `/mcp`, over HTTP: the steps from a request to its answer. A step that fails
 * answers the request.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createFlow, type Stock } from '../base/budgets.ts';
import { type Cancellation, createCancellation } from '../base/cancellation.ts';
import { AppError } from '../base/errors.ts';
import { isObject, type JsonReading } from '../base/json/json.ts';
import type { AddressRule } from '../base/network/network-address.ts';
import { turnToCall } from '../base/turns/caller-turns.ts';
import { createOutbox } from '../http/limits/outbox.ts';
import { type Answer, problem, rpcError, unavailable } from '../protocol/answer.ts';
import type { McpHeaders } from '../protocol/headers.ts';
import { CODES, errorMessage, isId } from '../protocol/message.ts';
import { isSessionRevision, STATELESS_REVISION } from '../protocol/mode.ts';
import { MISDIRECTED } from '../replicas/peers.ts';
import type { Admission } from '../state/admission.ts';
import type { RoutedTarget } from '../targets/target.ts';
import { usableTargets } from './aggregate/usable.ts';
import { type ArrivalDeps, type Arrived, admitCaller, isUnderMcp, receiveHead, tooMany } from './arrival.ts';
import { carryOut } from './carry-out.ts';
import { checkTarget, type TargetCheck } from './check.ts';
import type { Caller, ClaimedSession, RequestDeps } from './context/context.ts';
import { createInFlightRequests } from './context/in-flight.ts';
import { observed } from './context/observe.ts';
import { createAdmissionChanges, createRevalidation, type Revalidation } from './context/revalidation.ts';
import { createUpstreamSessions } from './context/upstream-sessions.ts';
import { createDeliveries } from './limits/deliveries.ts';
import { createIntake, type Intake, readBody, receive } from './limits/intake.ts';
import { createListRoom } from './limits/lists.ts';
import { createTargetReader } from './limits/reading.ts';
import { createSlots } from './limits/slots.ts';
import { createOpenStreams, mayKeepStream, type OpenStreams } from './open-streams.ts';
import { writeAnswer, writeProblem } from './reply.ts';
import type { SessionOwners } from './sessions/owners.ts';
import { AGGREGATE, openSession } from './sessions/sessions.ts';
import { createUpstreams } from './transports.ts';
import type { StdioLimits } from './upstream/stdio/stdio.ts';
import { createUnread } from './upstream/unread.ts';
import type { Upstream } from './upstream/upstream.ts';
import { MAX_BATCH, readBodiless, readPost, type Work } from './work.ts';

export interface McpDeps
  extends ArrivalDeps,
    Omit<
      RequestDeps,
      'upstream' | 'links' | 'inFlight' | 'modes' | 'calls' | 'messages' | 'wide' | 'deliveries' | 'reader' | 'outbox' | 'lists'
    > {
  readonly stdio: StdioLimits;
  /** The stock from `createBodies`, shared with REST. */
  readonly bodies: Stock;
  readonly addresses: AddressRule;
  readonly withAccounts: (upstream: Upstream) => Upstream;
  readonly owners: SessionOwners;
  /** Called with the session of each request that belongs to one. */
  readonly saw: (sessionId: string) => void;
  readonly ended: (request: EndedRequest) => void;
  /** Called for each message of a target that was dropped because there were too many. */
  readonly undelivered: () => void;
}

/** A request on `/mcp` that has ended. */
export interface EndedRequest {
  readonly requestId: string;
  readonly method: string;
  /**
   * The HTTP status; 499 if the client left before the answer. A client that closes a stream on which it listens was answered.
   */
  readonly status: number;
  readonly tookMs: number;
}

/** What the handler needs in addition to the services that each request gets. */
interface Endpoint extends McpDeps, RequestDeps {
  readonly streams: OpenStreams;
  readonly watch: Revalidation;
  readonly intake: Intake;
}

export function createMcpHandler(deps: McpDeps) {
  const { upstream: targets, modes, processes } = createUpstreams(deps);
  const upstream = observed(targets, deps.observe.failed);
  const links = createUpstreamSessions({ ...deps, upstream });
  const watch = createRevalidation(deps.admit, deps.limits.watchMs, deps.now);
  const streams = createOpenStreams(deps.limits);
  const now = (): number => performance.now();
  const { readingOfTarget: perKey, readingOfAll: all } = deps.limits;
  const endpoint: Endpoint = {
    ...deps,
    upstream,
    reader: createTargetReader(createFlow({ perKey, all }, now), createUnread(deps.limits.answerBytes), deps.limits.answerBytes),
    links,
    inFlight: createInFlightRequests(),
    modes,
    calls: createSlots(deps.limits.callsPerPrincipal),
    messages: createSlots(deps.limits.callsPerPrincipal),
    wide: createSlots(deps.limits.widePerPrincipal),
    deliveries: createDeliveries({ limits: deps.limits.deliveries, log: deps.log, now, onDropped: deps.undelivered }),
    watch,
    streams,
    intake: createIntake(deps.limits, deps.bodies, now),
    outbox: createOutbox(deps.limits),
    lists: createListRoom(deps.limits.lists, now),
  };
  const handle = (req: IncomingMessage, res: ServerResponse, next: () => void): void => {
    if (isUnderMcp(req)) void serve(endpoint, req, res);
    else next();
  };
  return Object.assign(handle, {
    /** Ends the standalone streams, which would keep a server from closing. In-flight requests continue. */
    endStreams: streams.end,
    /** How many streams, upstream sessions and processes of targets this process has open now. */
    counts: () => ({ streams: streams.count(), upstreamSessions: links.count(), processes: processes() }),
    /** Tries the target with the access that it gives the caller. No policy decides about that. */
    check: (target: RoutedTarget, { principal }: Admission): Promise<TargetCheck> =>
      checkTarget(endpoint, target, target.accessOf(principal)),
    /** Closes all connections to targets. */
    close(): Promise<void> {
      watch.stop();
      return upstream.close();
    },
  });
}

async function serve(endpoint: Endpoint, req: IncomingMessage, res: ServerResponse): Promise<void> {
  const requestId = endpoint.newId();
  res.setHeader('X-Request-Id', requestId);
  res.on('error', () => undefined);
  const began = performance.now();
  const revoked = createCancellation();
  const held: Held = {
    principal: '',
    gone: createCancellation(),
    revoked,
    stopWatching: () => undefined,
    giveBack: () => undefined,
    isOver: false,
  };
  // One listener for all: every call comes here.
  res.on('close', () => {
    if (!res.writableFinished) held.gone.abort();
    const answered = res.writableFinished || (res.headersSent && endpoint.streams.has(res));
    const status = answered ? res.statusCode : 499;
    endpoint.ended({ requestId, method: req.method ?? '', status, tookMs: Math.round(performance.now() - began) });
  });
  const { publicUrl, log, limits, outbox } = endpoint;
  try {
    const answer = await answerRequest(endpoint, req, res, held);
    if (answer === null) return;
    const recipient = outbox.open(res, held.principal, log);
    const writing = writeAnswer(res, answer, { requestId, publicUrl, log, keepAliveMs: limits.keepAliveMs, recipient, revoked });
    if (writing instanceof Promise) await writing;
  } catch (error) {
    writeProblem(res, error, { requestId, publicUrl, log });
  } finally {
    // A call of a client that is gone continues for a while, so only its end is the end of the re-validation.
    held.stopWatching();
    held.giveBack();
    held.isOver = true;
  }
}

/** What a request keeps reserved until it is answered. */
interface Held {
  /** Empty: the token is not valid. */
  principal: string;
  /** Aborted when the client is gone. */
  readonly gone: Cancellation;
  readonly revoked: Cancellation;
  /** Ends the re-validation. */
  stopWatching: () => void;
  giveBack: () => void;
  isOver: boolean;
}

function alsoAtEnd(held: Held, then: () => void): void {
  // An event may still be inspected for a client that has gone.
  if (held.isOver) {
    then();
    return;
  }
  const { giveBack } = held;
  held.giveBack = () => {
    giveBack();
    then();
  };
}

/** The steps of a request, in their order. A step that fails answers it. null: it has already been answered. */
async function answerRequest(endpoint: Endpoint, req: IncomingMessage, res: ServerResponse, held: Held): Promise<Answer | null> {
  const arrivedAt = endpoint.now();
  const head = receiveHead(endpoint, req, res, (principal) => {
    held.principal = principal;
  });
  // Await even a `head` that is no promise: once the call stack of the headers has ended, node usually has the body, too
  // (`bodyAtHand`).
  const arrived = await head;
  if (arrived === 'answered') return null;
  if ('kind' in arrived) return arrived;
  const { method, headers, targetName, claims, principal } = arrived;

  // The sender of a large body is admitted before it is read, too. At that time the gateway can only refuse.
  const receiving = receive(endpoint.intake, endpoint.limits, req, principal, () => admitCaller(endpoint, arrived));
  const received = receiving instanceof Promise ? await receiving : receiving;
  if ('kind' in received) return received;
  held.giveBack = received.giveBack;
  const { body } = received;
  const wholeAt = performance.now();
  if (method !== 'POST' && body.length > 0) return problem(new AppError('invalid_request', `${method} takes no body.`));
  const claimed = sessionOf(endpoint, arrived);
  const session = claimed === 'missing' ? null : claimed;
  const read = method === 'POST' ? readBody(endpoint.intake, principal, body) : null;
  const reading = read instanceof Promise ? await read : read;
  if (reading?.ok === false) return parseError(headers, reading.reason);
  const noRoom = reading === null ? null : received.keep(reading.built);
  if (noRoom !== null) return noRoom;
  // Each message of a batch counts. The first one has been counted.
  const more = reading !== null && Array.isArray(reading.value) ? Math.min(reading.value.length, MAX_BATCH) - 1 : 0;
  if (more > 0 && !endpoint.isFromPeer(req)) {
    const wait = endpoint.rateLimit({ address: endpoint.addressOf(req), principal }, more);
    if (wait !== null) return tooMany('Too many requests.', wait);
  }
  if (session !== null) {
    endpoint.saw(session.id);
    // Another replica may own the session.
    const elsewhere = session.replica === null ? 'here' : await endpoint.owners.answerOrForward(session, req, body, res);
    if (elsewhere === 'answered') return null;
    if (elsewhere === 'broken') return brokenReplica(reading);
    if (elsewhere === 'misdirected') return { kind: 'empty', status: MISDIRECTED };
  }
  const everywhere = targetName === AGGREGATE;
  const work = reading === null ? readBodiless(method, headers, claimed) : readPost({ reading, headers, session, everywhere });
  if (!('do' in work)) return work;

  // Before the gate: a call that waits must not be decided with what was known when it came. The elements of a batch take their own turns.
  if (method === 'POST' && work.do !== 'batch') {
    const turn = turnToCall(principal);
    const end = turn instanceof Promise ? await turn : turn;
    alsoAtEnd(held, end);
    // Nobody waits for the answer any more.
    if (held.gone.aborted && work.do !== 'notification' && work.do !== 'response') return null;
  }
  const { gone, revoked } = held;
  // The whole request has arrived: every fact that decides about it is read after its last byte.
  const admittedAt = performance.now();
  const admitted = admitCaller(endpoint, arrived);
  const admission = admitted instanceof Promise ? await admitted : admitted;
  if ('kind' in admission) return reading === null ? admission : outage(work.id, admission);
  const version = isSessionRevision(headers.protocol.version) ? headers.protocol.version : undefined;
  const changes = createAdmissionChanges(admission);
  const whenAnswered = (then: () => void): void => alsoAtEnd(held, then);
  // The members are listed one by one because every call comes here: spreading an object is slow to make and to read.
  const caller: Caller = {
    deps: endpoint,
    claims,
    admission,
    targetName,
    arrivedAt,
    wholeAt,
    admittedAt,
    gone,
    revoked,
    version,
    changes,
    whenAnswered,
  };
  const mayGoOn = mayKeepStream(work, caller);
  if (mayGoOn !== null) {
    // No function: it would keep the admission, with its policies, as long as `end` below, which a stream needs until it ends.
    const needed = everywhere ? usableTargets(admission).length : 1;
    const noSlot = endpoint.streams.open(principal, needed, res, gone);
    if (noSlot !== null) return noSlot;
  }
  const end = (): void => {
    revoked.abort();
    gone.abort();
  };
  held.stopWatching = endpoint.watch.add({ claims, mayGoOn, changed: changes.emit, end });
  return await carryOut(caller, work);
}

/** The session that the request names, if it belongs to this caller on this target. The seal binds it to its principal. */
function sessionOf({ seal, now }: Endpoint, { claims, targetName, headers: { sessionId } }: Arrived): ClaimedSession {
  if (sessionId === undefined) return 'missing';
  return openSession(seal, claims, targetName, sessionId, now());
}

function parseError({ protocol }: McpHeaders, reason: string): Answer {
  // 2026-07-28 leaves out an id that could not be read; in earlier revisions it is null.
  const id = protocol.version === STATELESS_REVISION ? undefined : null;
  return { kind: 'message', status: 400, text: errorMessage(id, { code: CODES.parse, message: `Parse error: ${reason}` }) };
}

function brokenReplica(reading: (JsonReading & { readonly ok: true }) | null): Answer {
  const text = 'The replica that owns the session failed; the gateway does not know whether the request was carried out';
  if (reading === null) return problem(new AppError('unavailable', text, { retryAfter: 1 }));
  const { value } = reading;
  return rpcError(isObject(value) && isId(value.id) ? value.id : null, CODES.internal, text);
}

/** A client that waits for an answer to its message gets a message. */
function outage(id: Work['id'], refusal: Answer): Answer {
  const isOutage = refusal.kind === 'problem' && refusal.error.status === 503;
  return isOutage ? unavailable(id, refusal.error.retryAfter) : refusal;
}
