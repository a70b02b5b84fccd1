/** The first steps of a request on `/mcp`: what can be checked without its message, and who has sent it. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type AuthRefusal, isRefusal, principalKey, type TokenClaims, type VerifyToken } from '../auth/principal.ts';
import { AppError } from '../base/errors.ts';
import { perObject } from '../base/kept.ts';
import type { Log } from '../base/log.ts';
import { type Now, whenThere } from '../base/promises.ts';
import { type Head, headOf } from '../http/head.ts';
import { LEFT_UNREAD, type Outbox } from '../http/limits/outbox.ts';
import { beforeRefusal } from '../http/limits/rate-limit.ts';
import { type Answer, problem, problemUnavailable } from '../protocol/answer.ts';
import { accepts, isJsonContent, type McpHeaders, readHeaders } from '../protocol/headers.ts';
import type { Admission, Admit } from '../state/admission.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { AGGREGATE } from './sessions/sessions.ts';

export interface ArrivalDeps {
  readonly verify: VerifyToken;
  readonly admit: Admit;
  /** Origin of the gateway as clients know it, without a trailing slash. */
  readonly publicUrl: string;
  /** Whether another replica has forwarded the request. That replica has already checked what depends on the connection. */
  readonly isFromPeer: (req: IncomingMessage) => boolean;
  /** Checks the `Host` and `Origin` headers and lets allowed pages read the answer. `answered`: it was a CORS preflight. */
  readonly checkOrigin: (req: IncomingMessage, res: ServerResponse) => AppError | 'answered' | null;
  readonly addressOf: (req: IncomingMessage) => string;
  /** Counts `messages` (default: 1). Seconds to wait, or null. `principal` is null if the caller's token is not valid. */
  readonly rateLimit: (key: { readonly address: string; readonly principal: string | null }, messages?: number) => number | null;
  /** Seconds to wait, or null. It is checked on the replica that decides, which may differ from the one the client reached. */
  readonly denialLimit: (principal: string) => number | null;
  readonly log: Log;
}

/** A request with a valid token. */
export interface Arrived {
  readonly method: 'POST' | 'GET' | 'DELETE';
  readonly headers: McpHeaders;
  readonly targetName: string;
  readonly claims: TokenClaims;
  readonly principal: string;
}

const TARGET_PATH = new RegExp(`^/mcp(?:/(${TARGET_NAME.source.slice(1, -1)}))?(?:\\?.*)?$`, 's');
const UNDER_MCP = /^\/mcp(?:[/?]|$)/;

const headersIn = perObject(({ raw }: Head) => readHeaders(raw));

export function isUnderMcp(req: IncomingMessage): boolean {
  return UNDER_MCP.test(req.url ?? '');
}

type Count = (principal: string | null) => Promise<Answer> | null;

/** `heard`: called with the principal when its token is verified. */
export function receiveHead(
  deps: ArrivalDeps & { readonly outbox: Outbox },
  req: IncomingMessage,
  res: ServerResponse,
  heard: (principal: string) => void,
): Now<Arrived | Answer | 'answered'> {
  const fromPeer = deps.isFromPeer(req);
  const count: Count = (principal) => {
    const address = deps.addressOf(req);
    const wait = fromPeer ? null : deps.rateLimit({ address, principal });
    return wait === null ? null : tooManyLater(req, principal ?? address, 'Too many requests.', wait);
  };
  const read = readHead(fromPeer ? null : deps.checkOrigin, req, res, count);
  if (read === 'answered' || !('targetName' in read)) return read;
  const { method, targetName, headers } = read;

  return whenThere(deps.verify(headers), (claims): Now<Arrived | Answer> => {
    const tooManyOfCaller = count(isRefusal(claims) ? null : principalKey(claims));
    if (tooManyOfCaller !== null) return tooManyOfCaller;
    if (isRefusal(claims)) return unauthenticated(deps, targetName, claims);
    // An access token is valid at one endpoint only, and must not lead to a different one (RFC 8707).
    if (claims.resource !== null && claims.resource !== endpointOf(targetName)) {
      return unauthenticated(deps, targetName, {
        refused: 'invalid_token',
        detail: 'The access token is for a different address.',
      });
    }
    const own = principalKey(claims);
    heard(own);
    const denied = deps.denialLimit(own);
    if (denied !== null) return tooManyLater(req, own, 'Too many of your requests were denied.', denied);
    if (deps.outbox.refusal(own) !== null) return tooManyLater(req, own, LEFT_UNREAD, 1);
    const unfit = checkHeaders(method, headers);
    return unfit === null ? { method, headers, targetName, claims, principal: own } : problem(unfit);
  });
}

/** What is checked without the token. Every request is counted once: one that is refused here as a stranger's, all others by their caller. */
function readHead(
  checkOrigin: ArrivalDeps['checkOrigin'] | null,
  req: IncomingMessage,
  res: ServerResponse,
  count: Count,
): Pick<Arrived, 'method' | 'targetName' | 'headers'> | Now<Answer> | 'answered' {
  const { method } = req;
  const isKnown = method === 'POST' || method === 'GET' || method === 'DELETE';
  // A preflight is answered by `checkOrigin`, so it is counted before. It has no token.
  const tooManyPreflights = isKnown ? null : count(null);
  if (tooManyPreflights !== null) return tooManyPreflights;
  const refuse = (refusal: AppError): Now<Answer> => (isKnown ? count(null) : null) ?? problem(refusal);
  const refused = checkOrigin?.(req, res) ?? null;
  if (refused === 'answered') return 'answered';
  if (refused !== null) return refuse(refused);
  const path = TARGET_PATH.exec(req.url ?? '');
  if (path === null) return refuse(new AppError('not_found', 'Use the path /mcp/<target>, or /mcp for all targets.'));
  if (!isKnown) {
    return problem(new AppError('method_not_allowed', 'Use POST, GET or DELETE.'), { allow: 'POST, GET, DELETE' });
  }
  const headers = headersIn(headOf(req));
  if ('problem' in headers) return refuse(new AppError('invalid_request', headers.problem));
  return { method, targetName: path[1] ?? AGGREGATE, headers };
}

/** The caller according to a state at least as new as this call; or the answer that refuses it. */
export function admitCaller(deps: ArrivalDeps, { claims, targetName }: Arrived): Now<Admission | Answer> {
  const answered = (admission: Admission | AuthRefusal): Admission | Answer =>
    isRefusal(admission) ? unauthenticated(deps, targetName, admission) : admission;
  const failed = (err: unknown): Answer => {
    if (err instanceof AppError) return problemUnavailable(err);
    deps.log.error({ err }, 'reading the state of the gateway failed');
    return problemUnavailable(undefined);
  };
  try {
    const admitted = deps.admit(claims);
    return admitted instanceof Promise ? admitted.then(answered).catch(failed) : answered(admitted);
  } catch (err) {
    return failed(err);
  }
}

const endpointOf = (targetName: string): string => (targetName === AGGREGATE ? '/mcp' : `/mcp/${targetName}`);

/** RFC 9728 section 5.1 and RFC 6750 section 3. */
function unauthenticated({ publicUrl }: ArrivalDeps, targetName: string, refusal: AuthRefusal): Answer {
  const metadata = `${publicUrl}/.well-known/oauth-protected-resource${endpointOf(targetName)}`;
  const error = refusal.refused === 'invalid_token' ? ', error="invalid_token"' : '';
  return problem(new AppError(refusal.refused, refusal.detail), {
    'www-authenticate': `Bearer resource_metadata="${metadata}", scope="mcp"${error}`,
  });
}

/** As for REST: refusals that are answered at once would take the thread from others. */
async function tooManyLater(req: IncomingMessage, who: string, detail: string, retryAfter: number): Promise<Answer> {
  await beforeRefusal(req, who);
  return tooMany(detail, retryAfter);
}

export function tooMany(detail: string, retryAfter: number): Answer {
  return problem(new AppError('too_many_requests', detail, { retryAfter }));
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
