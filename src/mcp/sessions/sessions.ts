/**
 * Handles that clients keep for the gateway: session ids, ids of the target's requests, event ids and request state. All are
 * sealed: any replica can open them, and only their principal can use them, on their target. Pure except for the seal.
 */
import { createHash } from 'node:crypto';
import type { JsonObject, JsonValue } from '../../base/json/json.ts';
import { jsonText } from '../../base/json/text.ts';
import { keep, perObject } from '../../base/kept.ts';
import { partsOf } from '../../base/turns/slices.ts';
import type { NamedObject } from '../../engine/decision.ts';
import type { Askable } from '../../protocol/capabilities.ts';
import type { RpcId } from '../../protocol/message.ts';
import type { SessionRevision } from '../../protocol/mode.ts';
import { SESSION_LIFETIME_MS, type SessionRules } from '../../sessions/rules.ts';
import { type Access, addressOf, type Target } from '../../targets/target.ts';
import type { Seal } from './seal.ts';
import { type Owner, ofTarget, SEAL_ISSUER } from './tasks.ts';

/**
 * A session of one principal with one target, or with all of them at the aggregate endpoint. It does not authenticate: the
 * token is checked on every request.
 */
export interface Session {
  readonly id: string;
  /** The target fingerprint (`fingerprintOf`), or AGGREGATE for a session at the aggregate endpoint. */
  readonly fingerprint: string;
  /** The credentials and epoch with which the upstream session was opened (`bindingOf`). */
  readonly binding: string;
  /** null: the target keeps no session. */
  readonly upstreamId: string | null;
  readonly revision: SessionRevision;
  /** Kinds of lists whose changes may be announced to the client. */
  readonly lists: readonly ListKind[];
  /** The owner: the replica in whose memory the session was opened. null: any replica can serve it. */
  readonly replica: string | null;
  readonly issuedAt: number;
}

/** The upstream session. It may be replaced while the client's session continues. */
export interface UpstreamSession {
  readonly upstreamId: string | null;
  readonly revision: SessionRevision;
}

export const LIST_KINDS = ['tools', 'prompts', 'resources'] as const;
export type ListKind = (typeof LIST_KINDS)[number];

export const AGGREGATE = '*';

/** The request whose answer a stream carries, so that a resumed stream is decided and checked like the one that broke off. */
export interface StreamOrigin {
  readonly id: RpcId;
  readonly method: string;
  /** What the request was decided on; null: on the use of the target. */
  readonly object: NamedObject | null;
  readonly decisionId: string;
}

const STATE_LIFETIME_MS = 10 * 60 * 1000;
const MAX_SEALED_LENGTH = 4096;
/** An event id has the ids of the target's session and event, and of the request, which clients and targets choose. */
const MAX_EVENT_ID_LENGTH = 8192;

const ofSession = (owner: Owner, targetName: string, session: Session): string =>
  JSON.stringify([SEAL_ISSUER, owner.sub, targetName, session.id]);

/** The target fingerprint: a digest of id and address. A target that has moved must not get what the old server issued. */
export const fingerprintOf = perObject((target: Target): string =>
  createHash('sha256')
    .update(JSON.stringify([target.id, addressOf(target)]))
    .digest('base64url'),
);

/**
 * Whether the session is still valid here. Its name may now belong to a different target, the target may have moved, or an
 * administrator may have ended it.
 */
export function isSessionAt(session: Session, target: Target, rules: SessionRules): boolean {
  return (session.fingerprint === AGGREGATE || session.fingerprint === fingerprintOf(target)) && !rules.ended.has(session.id);
}

/** The revision for the version header: the client's, unless the upstream session was replaced by one of a different revision. */
export function versionOf(
  caller: { readonly version: SessionRevision | undefined },
  { session, link }: SessionPair,
): SessionRevision | undefined {
  return link.revision === session.revision ? caller.version : link.revision;
}

/** What an upstream session depends on besides the target fingerprint: credentials, and the epoch, which recycling increases. */
export function bindingOf({ binding }: Access, epoch: number): string {
  return epoch === 0
    ? binding
    : createHash('sha256')
        .update(JSON.stringify([binding, epoch]))
        .digest('base64url');
}

export function sealSession(seal: Seal, owner: Owner, targetName: string, session: Session): string {
  const { id, fingerprint, binding, upstreamId, revision, lists, replica, issuedAt } = session;
  const content: SessionContent = {
    i: id,
    t: fingerprint,
    b: binding,
    u: upstreamId,
    v: revision,
    l: lists,
    h: replica,
    a: issuedAt,
  };
  return seal.seal('session', ofTarget(owner, targetName), content);
}

/** null for every text that is not a valid session of this principal on this target: foreign, edited, expired or malformed. */
export function openSession(seal: Seal, owner: Owner, targetName: string, text: string, now: number): Session | null {
  if (text.length > MAX_SEALED_LENGTH) return null;
  const content = openedBefore(seal, owner, targetName, text);
  if (content === null || now - content.a > SESSION_LIFETIME_MS) return null;
  const { i: id, t: fingerprint, b: binding, u: upstreamId, v: revision, l: lists, h: replica, a: issuedAt } = content;
  return { id, fingerprint, binding, upstreamId, revision, lists, replica, issuedAt };
}

/** Opened session ids, because each request of a session repeats its id. */
const opened = new WeakMap<Seal, Map<string, Opened>>();
const OPENED_KEPT = 10_000;

/** A sealed text opens for only one principal and target, so the text alone is the key. */
interface Opened extends Owner {
  readonly targetName: string;
  readonly content: SessionContent;
}

function openedBefore(seal: Seal, { sub }: Owner, targetName: string, text: string): SessionContent | null {
  const known = opened.get(seal) ?? new Map<string, Opened>();
  opened.set(seal, known);
  const before = known.get(text);
  if (before !== undefined) {
    return before.sub === sub && before.targetName === targetName ? before.content : null;
  }
  const content = seal.open('session', ofTarget({ sub }, targetName), text) as SessionContent | null;
  if (content === null) return null;
  keep(known, text, { sub, targetName, content }, OPENED_KEPT);
  return content;
}

interface SessionContent {
  readonly i: string;
  readonly t: string;
  readonly b: string;
  readonly u: string | null;
  readonly v: SessionRevision;
  readonly l: readonly ListKind[];
  readonly h: string | null;
  readonly a: number;
}

/** A session together with its upstream session in use. */
export interface SessionPair {
  readonly session: Session;
  readonly link: UpstreamSession;
}

/**
 * A request that the target sent on this session. Its answer may be posted to any replica, but only on this session. `fingerprint`:
 * the target fingerprint (`fingerprintOf`), because a server that has replaced the target must not get the answer.
 */
export interface AskedRequest {
  readonly id: RpcId;
  readonly method: string;
  /** The permission (`may_ask`) that the request needs; null: none. */
  readonly permission: Askable | null;
}

export function sealAskedId(
  seal: Seal,
  owner: Owner,
  fingerprint: string,
  { session, link }: SessionPair,
  asked: AskedRequest,
): string {
  const content: AskedContent = { i: asked.id, m: asked.method, p: asked.permission, u: link.upstreamId };
  return seal.seal('asked', ofSession(owner, fingerprint, session), content);
}

/** `upstreamId`: the upstream session that asked. It may have been replaced since. */
export function openAskedId(
  seal: Seal,
  owner: Owner,
  fingerprint: string,
  session: Session,
  id: RpcId,
): (AskedRequest & { readonly upstreamId: string | null }) | null {
  if (typeof id !== 'string') return null;
  const content = seal.open('asked', ofSession(owner, fingerprint, session), id) as AskedContent | null;
  return content && { id: content.i, method: content.m, permission: content.p, upstreamId: content.u };
}

interface AskedContent {
  readonly i: RpcId;
  readonly m: string;
  readonly p: Askable | null;
  readonly u: string | null;
}

/**
 * The target's event ids address a stream. They are sealed, so that they cannot replay the stream of a different session. undefined: the id is too
 * long for a header, so no client can resume with it.
 */
export function sealEventId(
  seal: Seal,
  owner: Owner,
  targetName: string,
  { session, link }: SessionPair,
  eventId: string,
  origin: StreamOrigin | null,
): string | undefined {
  const content: EventContent = {
    e: eventId,
    u: link.upstreamId,
    ...(origin && { i: origin.id, m: origin.method, o: origin.object, d: origin.decisionId }),
  };
  const sealed = seal.seal('event', ofSession(owner, targetName, session), content);
  return sealed.length > MAX_EVENT_ID_LENGTH ? undefined : sealed;
}

/** `eventId` null: the upstream session of that stream has been replaced, so the stream starts from the beginning. */
export interface ResumePoint {
  readonly eventId: string | null;
  readonly origin: StreamOrigin | null;
}

/** `link` null: it is not known yet, and not compared. */
export function openEventId(
  seal: Seal,
  owner: Owner,
  targetName: string,
  { session, link }: { readonly session: Session; readonly link: UpstreamSession | null },
  text: string,
): ResumePoint | null {
  if (text.length > MAX_EVENT_ID_LENGTH) return null;
  const content = seal.open('event', ofSession(owner, targetName, session), text) as EventContent | null;
  if (content === null) return null;
  const { e: eventId, u: upstreamId, i: id, m: method, o: object, d: decisionId } = content;
  if (link !== null && upstreamId !== link.upstreamId) return { eventId: null, origin: null };
  if (id === undefined || method === undefined || decisionId === undefined) return { eventId, origin: null };
  // An older version has sealed it without the object, so nothing can decide whether its stream may be resumed.
  return object === undefined ? null : { eventId, origin: { id, method, object, decisionId } };
}

interface EventContent {
  readonly e: string;
  readonly u: string | null;
  readonly i?: RpcId;
  readonly m?: string;
  readonly o?: NamedObject | null;
  readonly d?: string;
}

/** What a `requestState` of 2026-07-28 is bound to: a retry must be the same request of the same principal. */
export interface StateBinding {
  readonly fingerprint: string;
  readonly method: string;
  readonly name: string | null;
  readonly arguments: JsonValue | undefined;
}

export function stateBinding(fingerprint: string, method: string, params: JsonObject | undefined): StateBinding {
  const name = method === 'resources/read' ? params?.uri : params?.name;
  return { fingerprint, method, name: typeof name === 'string' ? name : null, arguments: params?.arguments };
}

/** Pauses if the arguments are long. */
export function* sealState(
  seal: Seal,
  owner: Owner,
  targetName: string,
  binding: StateBinding,
  state: string,
  now: number,
): Generator<undefined, string> {
  const digest = yield* bindingDigest(binding);
  return seal.seal('state', ofTarget(owner, targetName), { s: state, b: digest, x: now + STATE_LIFETIME_MS });
}

/** The target's own state, unchanged. null: it belongs to a different principal or request, or has expired. Pauses like `sealState`. */
export function* openState(
  seal: Seal,
  owner: Owner,
  targetName: string,
  binding: StateBinding,
  text: string,
  now: number,
): Generator<undefined, string | null> {
  const content = seal.open('state', ofTarget(owner, targetName), text) as { s: string; b: string; x: number } | null;
  return content !== null && content.b === (yield* bindingDigest(binding)) && now <= content.x ? content.s : null;
}

/** How many characters of a text are hashed in one step. */
const HASHED_AT_ONCE = 64 * 1024;

/** The order of members is not part of a value: a client may serialize its retry in a different order. */
function* bindingDigest(binding: StateBinding): Generator<undefined, string> {
  const { fingerprint, method, name } = binding;
  const text = yield* jsonText([fingerprint, method, name, binding.arguments ?? null], true);
  const hash = createHash('sha256');
  for (const part of partsOf([text], HASHED_AT_ONCE)) {
    hash.update(part);
    if (text.length > HASHED_AT_ONCE) yield;
  }
  return hash.digest('base64url');
}
