/**
 * `/mcp/<target>`, and the aggregate endpoint `/mcp`, over HTTP: the steps from a request to its answer. A step that fails
 * answers the request.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { VerifyToken } from '../auth/principal.ts';
import { type AuthRefusal, isRefusal, type TokenClaims } from '../auth/principal.ts';
import { createFlow, type Stock } from '../base/budgets.ts';
import { type Cancellation, createCancellation } from '../base/cancellation.ts';
import { AppError } from '../base/errors.ts';
import { isObject } from '../base/json/json.ts';
import type { AddressRule } from '../base/network-address.ts';
import { createOutbox } from '../http/outbox.ts';
import { MISDIRECTED } from '../replicas/peers.ts';
import { type Admission, mayUseTarget } from '../state/admission.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { deleteAggregate, getAggregate } from './aggregate/stream.ts';
import { createDeliveries } from './limits/deliveries.ts';
import { createIntake, type Intake, readBody, receive } from './limits/intake.ts';
import { createTargetReader } from './limits/reading.ts';
import { createSlots, principalKey } from './limits/slots.ts';
import { type Answer, problem, problemUnavailable, rpcError, unavailable } from './protocol/answer.ts';
import { accepts, isJsonContent, type McpHeaders, readHeaders } from './protocol/headers.ts';
import { LISTEN } from './protocol/listen.ts';
import { CODES, errorMessage, isId } from './protocol/message.ts';
import { isSessionRevision, STATELESS_REVISION } from './protocol/mode.ts';
import { writeAnswer, writeProblem } from './reply.ts';
import { REVOKED, type RequestDeps } from './requests/context.ts';
import { createInFlightRequests } from './requests/in-flight.ts';
import { observed } from './requests/observe.ts';
import {
  type AdmissionChanges,
  createAdmissionChanges,
  createRevalidation,
  type Revalidated,
  type Revalidation,
} from './requests/revalidation.ts';
import { type ClaimedSession, handleDelete, handleGet } from './requests/session-messages.ts';
import { createUpstreamSessions } from './requests/upstream-sessions.ts';
import { type Admitting, type Inbound, route } from './route.ts';
import type { SessionOwners } from './sessions/owners.ts';
import { AGGREGATE, fingerprintOf, openSession, type Session } from './sessions/sessions.ts';
import { createUpstreams } from './transports.ts';
import type { StdioLimits } from './upstream/stdio/stdio.ts';

export interface McpDeps
  extends Omit<RequestDeps, 'upstream' | 'links' | 'inFlight' | 'modes' | 'calls' | 'deliveries' | 'reader' | 'outbox'> {
  readonly verify: VerifyToken;
  readonly stdio: StdioLimits;
  /** The stock from `createBodies`, shared with REST. */
  readonly bodies: Stock;
  /** Decides which addresses the gateway may connect to for a target. */
  readonly addresses: AddressRule;
  /** Origin of the gateway as clients know it, without a trailing slash. */
  readonly publicUrl: string;
  readonly holders: SessionOwners;
  /** Called with the session of each request that belongs to one. */
  readonly saw: (sessionId: string) => void;
  /** Whether another replica has forwarded the request. That replica has already checked what depends on the connection. */
  readonly isFromPeer: (req: IncomingMessage) => boolean;
  /** Checks the `Host` and `Origin` headers and lets allowed pages read the answer. `answered`: it was a CORS preflight. */
  readonly checkOrigin: (req: IncomingMessage, res: ServerResponse) => AppError | 'answered' | null;
  /** The client's address, for rate limits. */
  readonly addressOf: (req: IncomingMessage) => string;
  /** Called for every request when it is over. */
  readonly ended: (request: EndedRequest) => void;
  /** Seconds to wait, or null. `principal` is null if the caller's token is not valid. */
  readonly rateLimit: (key: { readonly address: string; readonly principal: string | null }) => Promise<number | null>;
  /** Seconds to wait, or null. It is checked on the replica that decides, which may differ from the one the client reached. */
  readonly denialLimit: (principal: string) => number | null;
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

export interface McpHandler {
  (req: IncomingMessage, res: ServerResponse, next: () => void): void;
  /** Ends the standalone streams, which would keep a server from closing. In-flight requests go on. */
  endStreams(): void;
  /** How many streams, upstream sessions and processes are open now. */
  counts(): McpCounts;
  /** Closes all connections to targets. */
  close(): Promise<void>;
}

export interface McpCounts {
  /** Streams on which clients listen. */
  readonly streams: number;
  /** Upstream sessions that this process uses. */
  readonly upstreamSessions: number;
  /** Processes of `stdio` targets. */
  readonly processes: number;
}

const TARGET_PATH = new RegExp(`^/mcp(?:/(${TARGET_NAME.source.slice(1, -1)}))?(?:\\?.*)?$`, 's');
const UNDER_MCP = /^\/mcp(?:[/?]|$)/;

/** What the handler needs in addition to the services that each request gets. */
interface Endpoint extends McpDeps, RequestDeps {
  /** Open standalone streams, by principal. */
  readonly streams: Map<string, Set<Cancellation>>;
  /** Answers that are standalone streams: the client may close them at any time. */
  readonly standing: WeakSet<ServerResponse>;
  readonly watch: Revalidation;
  readonly intake: Intake;
}

export function createMcpHandler(deps: McpDeps): McpHandler {
  const { upstream: targets, modes, processes } = createUpstreams(deps);
  const upstream = observed(targets, deps.observe.failed);
  const links = createUpstreamSessions({ ...deps, upstream });
  const watch = createRevalidation(deps.admit, deps.limits.watchMs);
  const calls = createSlots(deps.limits.callsPerPrincipal);
  const deliveries = createDeliveries({
    limits: deps.limits.deliveries,
    log: deps.log,
    now: () => performance.now(),
    onDropped: deps.undelivered,
  });
  const { readingOfTarget: perKey, readingOfAll: all } = deps.limits;
  const reader = createTargetReader(createFlow({ perKey, all }, () => performance.now()));
  const endpoint: Endpoint = {
    ...deps,
    upstream,
    reader,
    links,
    inFlight: createInFlightRequests(),
    modes,
    calls,
    deliveries,
    watch,
    streams: new Map(),
    standing: new WeakSet(),
    intake: createIntake(deps.limits, deps.bodies, () => performance.now()),
    outbox: createOutbox(deps.limits),
  };
  const handle = (req: IncomingMessage, res: ServerResponse, next: () => void): void => {
    if (UNDER_MCP.test(req.url ?? '')) void serve(endpoint, req, res);
    else next();
  };
  const endStreams = (): void => {
    for (const stream of [...endpoint.streams.values()].flatMap((streams) => [...streams])) stream.abort();
  };
  const close = (): Promise<void> => {
    watch.stop();
    return upstream.close();
  };
  const counts = (): McpCounts => ({
    streams: [...endpoint.streams.values()].reduce((sum, { size }) => sum + size, 0),
    upstreamSessions: links.count(),
    processes: processes(),
  });
  return Object.assign(handle, { endStreams, counts, close });
}

async function serve(endpoint: Endpoint, req: IncomingMessage, res: ServerResponse): Promise<void> {
  const requestId = endpoint.newId();
  res.setHeader('X-Request-Id', requestId);
  res.on('error', () => undefined);
  const began = performance.now();
  res.on('close', () => {
    const answered = res.writableFinished || (res.headersSent && endpoint.standing.has(res));
    const status = answered ? res.statusCode : 499;
    endpoint.ended({ requestId, method: req.method ?? '', status, tookMs: Math.round(performance.now() - began) });
  });
  const { publicUrl, log, limits, outbox } = endpoint;
  const context = { requestId, publicUrl, log, keepAliveMs: limits.keepAliveMs };
  const held: Held = { principal: '', giveBack: () => undefined };
  try {
    const answer = await answerRequest(endpoint, req, res, held);
    if (answer !== null) await writeAnswer(res, answer, { ...context, recipient: outbox.open(res, held.principal, log) });
  } catch (error) {
    writeProblem(res, error, context);
  } finally {
    held.giveBack();
  }
}

/** What a request keeps reserved until it is answered. */
interface Held {
  /** Empty: the token is not valid. */
  principal: string;
  giveBack: () => void;
}

/** null: the request has already been answered. */
async function answerRequest(endpoint: Endpoint, req: IncomingMessage, res: ServerResponse, held: Held): Promise<Answer | null> {
  const arrivedAt = endpoint.now();
  const fromPeer = endpoint.isFromPeer(req);
  const refused = fromPeer ? null : endpoint.checkOrigin(req, res);
  if (refused === 'answered') return null;
  if (refused !== null) return problem(refused);
  const path = TARGET_PATH.exec(req.url ?? '');
  if (path === null) return problem(new AppError('not_found', 'The path is /mcp/<target>, or /mcp for all of them.'));
  const targetName = path[1] ?? AGGREGATE;
  if (req.method !== 'POST' && req.method !== 'GET' && req.method !== 'DELETE') {
    return problem(new AppError('method_not_allowed', 'Use POST, GET or DELETE.'), { allow: 'POST, GET, DELETE' });
  }
  const headers = readHeaders(req.rawHeaders);
  if ('problem' in headers) return problem(new AppError('invalid_request', headers.problem));

  const claims = await endpoint.verify(headers.authorization);
  const principal = isRefusal(claims) ? null : principalKey(claims);
  const wait = fromPeer ? null : await endpoint.rateLimit({ address: endpoint.addressOf(req), principal });
  if (wait !== null) return tooMany('Too many requests.', wait);
  if (isRefusal(claims)) return unauthenticated(endpoint, targetName, claims);
  held.principal = principalKey(claims);
  const denied = endpoint.denialLimit(held.principal);
  if (denied !== null) return tooMany('Too many of your requests were denied.', denied);
  if (endpoint.outbox.refusal(held.principal) !== null) {
    return tooMany('Your clients have left too many bytes of their answers unread. Read them, or close those connections.', 1);
  }

  const unfit = checkHeaders(req.method, headers);
  if (unfit !== null) return problem(unfit);
  const early = async (): Promise<Answer | null> => {
    const admission = await admitted(endpoint, claims, targetName);
    return 'kind' in admission ? admission : null;
  };
  const received = await receive(endpoint.intake, endpoint.limits, req, principalKey(claims), early);
  if ('kind' in received) return received;
  held.giveBack = received.giveBack;
  const { body } = received;
  const wholeAt = performance.now();
  if (req.method !== 'POST' && body.length > 0) return problem(new AppError('invalid_request', `${req.method} takes no body.`));
  const claimed = sessionOf(endpoint, claims, targetName, headers);
  const session = claimed === 'missing' ? null : claimed;
  const inbound = req.method === 'POST' ? await readPost(endpoint, claims, body, headers, session, targetName) : null;
  if (inbound !== null && 'answer' in inbound) return inbound.answer;
  if (session !== null) {
    endpoint.saw(session.id);
    // Another replica may own the session.
    const elsewhere = session.holder === null ? 'here' : await endpoint.holders.place(session, req, body, res);
    if (elsewhere === 'answered') return null;
    if (elsewhere === 'broken') return brokenReplica(inbound);
    if (elsewhere === 'misdirected') return { kind: 'empty', status: MISDIRECTED };
  }

  const gone = clientGone(res);
  const version = isSessionRevision(headers.protocol.version) ? headers.protocol.version : undefined;
  const changes = createAdmissionChanges();
  const admit: Admitting = async (id) => {
    // The whole request has arrived: every fact that decides about it is read after its last byte.
    const admission = await admitted(endpoint, claims, targetName);
    if (!('kind' in admission)) return { claims, admission, targetName, arrivedAt, wholeAt, gone, version, changes };
    const isOutage = admission.kind === 'problem' && admission.error.status === 503;
    return isOutage && req.method === 'POST' ? unavailable(id, admission.error.retryAfter) : admission;
  };
  if (inbound !== null) {
    const { value } = inbound.reading;
    if (!isObject(value) || value.method !== LISTEN) {
      watchOver(endpoint, res, gone, { claims, mayGoOn: null });
      return route(endpoint, inbound, admit);
    }
    const noSlot = holdStream(endpoint, claims, res, gone);
    if (noSlot !== null) return noSlot;
    watchOver(endpoint, res, gone, { claims, mayGoOn: mayUseWhereItIs(targetName), changed: changes.emit });
    return route(endpoint, inbound, admit);
  }
  return serveSession(endpoint, req.method, headers, claimed, admit, res, gone, changes);
}

/** The caller according to a state at least as new as this call; or the answer that refuses it. */
async function admitted(endpoint: Endpoint, claims: TokenClaims, targetName: string): Promise<Admission | Answer> {
  try {
    const admission = await endpoint.admit(claims);
    return isRefusal(admission) ? unauthenticated(endpoint, targetName, admission) : admission;
  } catch (err) {
    if (err instanceof AppError) return problemUnavailable(err);
    endpoint.log.error({ err }, 'reading the state of the gateway failed');
    return problemUnavailable(undefined);
  }
}

/** The session that the request names, if it belongs to this caller on this target. The seal binds it to its principal. */
function sessionOf({ seal, now }: Endpoint, claims: TokenClaims, targetName: string, { sessionId }: McpHeaders): ClaimedSession {
  if (sessionId === undefined) return 'missing';
  return openSession(seal, { issuer: claims.iss, sub: claims.sub }, targetName, sessionId, now());
}

function brokenReplica(inbound: Inbound | null): Answer {
  const text = 'The replica that owns the session failed; the gateway does not know whether the request was carried out';
  if (inbound === null) return problem(new AppError('unavailable', text, { retryAfter: 1 }));
  const { value } = inbound.reading;
  return rpcError(isObject(value) && isId(value.id) ? value.id : null, CODES.internal, text);
}

/** GET and DELETE belong to sessions; the stateless mode (2026-07-28) has neither. */
async function serveSession(
  endpoint: Endpoint,
  method: string,
  headers: McpHeaders,
  claimed: ClaimedSession,
  admit: Admitting,
  res: ServerResponse,
  gone: Cancellation,
  changes: AdmissionChanges,
): Promise<Answer> {
  if ((headers.protocol.version ?? '') >= STATELESS_REVISION) {
    return problem(new AppError('method_not_allowed', 'This revision has POST only.'), { allow: 'POST' });
  }
  const caller = await admit(null);
  if ('kind' in caller) return caller;
  const everywhere = caller.targetName === AGGREGATE;
  const [get, end] = everywhere ? [getAggregate, deleteAggregate] : [handleGet, handleDelete];
  if (method === 'DELETE') return end(endpoint, caller, claimed);
  if (claimed === null || claimed === 'missing') return get(endpoint, caller, claimed, undefined);
  const noSlot = holdStream(endpoint, caller.claims, res, gone);
  if (noSlot !== null) return noSlot;
  const { claims, targetName } = caller;
  const mayGoOn = (admission: Admission): boolean => mayGoOnIn(admission, targetName, claimed);
  watchOver(endpoint, res, gone, { claims, mayGoOn, changed: changes.emit });
  return get(endpoint, caller, claimed, headers.lastEventId);
}

/** Takes a slot for a stream until the stream is closed. Returns null, or why there is no slot. */
function holdStream(
  { streams, standing, limits }: Endpoint,
  claims: TokenClaims,
  res: ServerResponse,
  gone: Cancellation,
): Answer | null {
  // A client that left before this triggers no further event: it would keep its slot for ever.
  if (gone.aborted) return problem(new AppError('invalid_request', 'The client is gone.'));
  const key = principalKey(claims);
  const open = streams.get(key) ?? new Set();
  if (open.size >= limits.streamsPerPrincipal) return tooMany('Too many open streams.', 10);
  streams.set(key, open.add(gone));
  standing.add(res);
  res.once('close', () => {
    open.delete(gone);
    if (open.size === 0 && streams.get(key) === open) streams.delete(key);
  });
  return null;
}

/** A stream without a session belongs to the target fingerprint of the first check: it ends when the target moves. */
function mayUseWhereItIs(targetName: string): (admission: Admission) => boolean {
  let place: string | undefined;
  return (admission) => {
    const target = admission.snapshot.targets.get(targetName);
    place ??= target && fingerprintOf(target);
    return place !== undefined && mayUse(admission, targetName, place);
  };
}

function mayGoOnIn(admission: Admission, targetName: string, session: Session): boolean {
  if (admission.snapshot.sessions.ended.has(session.id)) return false;
  return session.place === AGGREGATE || mayUse(admission, targetName, session.place);
}

/** `place`: the fingerprint of the target when the stream was opened. */
function mayUse(admission: Admission, targetName: string, place: string): boolean {
  const target = admission.snapshot.targets.get(targetName);
  return target !== undefined && fingerprintOf(target) === place && mayUseTarget(admission, target);
}

/** Re-validates the caller until the answer is written or the client is gone. */
function watchOver(
  { watch }: Endpoint,
  res: ServerResponse,
  gone: Cancellation,
  { claims, mayGoOn, changed }: Omit<Revalidated, 'end'>,
): void {
  if (res.closed) return;
  res.on('close', watch.add({ claims, mayGoOn, changed, end: () => gone.abort(REVOKED) }));
}

function tooMany(detail: string, retryAfter: number): Answer {
  return problem(new AppError('too_many_requests', detail, { retryAfter }));
}

/** RFC 9728 section 5.1 and RFC 6750 section 3. */
function unauthenticated(endpoint: Endpoint, targetName: string, refusal: AuthRefusal): Answer {
  const path = targetName === AGGREGATE ? '/mcp' : `/mcp/${targetName}`;
  const metadata = `${endpoint.publicUrl}/.well-known/oauth-protected-resource${path}`;
  const error = refusal.refused === 'invalid_token' ? ', error="invalid_token"' : '';
  return problem(new AppError(refusal.refused, refusal.detail), {
    'www-authenticate': `Bearer resource_metadata="${metadata}"${error}`,
  });
}

function checkHeaders(method: string, headers: McpHeaders): AppError | null {
  if (method === 'POST' && !isJsonContent(headers.contentType)) {
    return new AppError('unsupported_media_type', 'Send application/json in UTF-8.');
  }
  if (headers.contentEncoding !== undefined && headers.contentEncoding !== 'identity') {
    return new AppError('unsupported_media_type', 'Send the body without a content encoding.');
  }
  const types = method === 'POST' ? ['application/json', 'text/event-stream'] : method === 'GET' ? ['text/event-stream'] : [];
  if (!accepts(headers.accept, types)) return new AppError('not_acceptable', `Accept ${types.join(' and ')}.`);
  return null;
}

async function readPost(
  { intake }: Endpoint,
  claims: TokenClaims,
  body: Buffer,
  headers: McpHeaders,
  session: Session | null,
  targetName: string,
): Promise<Inbound | { readonly answer: Answer }> {
  const reading = await readBody(intake, principalKey(claims), body);
  if (reading.ok) return { reading, headers, session, everywhere: targetName === AGGREGATE };
  // 2026-07-28 leaves out an id that could not be read; in earlier revisions it is null.
  const id = headers.protocol.version === STATELESS_REVISION ? undefined : null;
  const text = errorMessage(id, { code: CODES.parse, message: `Parse error: ${reading.reason}` });
  return { answer: { kind: 'message', status: 400, text } };
}

function clientGone(res: ServerResponse): Cancellation {
  const gone = createCancellation();
  if (res.closed) gone.abort();
  res.on('close', () => {
    if (!res.writableFinished) gone.abort();
  });
  return gone;
}
