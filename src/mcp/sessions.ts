/**
 * What clients hold on behalf of the gateway: session ids, ids of requests that the target asks, event ids and request
 * state. All are sealed, so that any replica can use them and nobody but their principal, on their target, can. Pure but
 * for the seal.
 */
import { createHash } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import type { JsonValue } from '../http/json.ts';
import { SESSION_LIFETIME_MS, type SessionRules } from '../sessions/rules.ts';
import { type Access, addressOf, type Target } from '../targets/target.ts';
import type { SessionRevision } from './era.ts';
import type { RpcId } from './message.ts';
import type { Seal } from './seal.ts';

/** A session of one principal with one target, or with all of them. It authenticates nobody: the token is checked on every request. */
export interface Session {
  readonly id: string;
  /** `placeOf` its target; EVERYWHERE where it is with all of them. */
  readonly place: string;
  /** What the target's own session was opened with (`bindingOf`). */
  readonly binding: string;
  /** null where the target keeps no session. */
  readonly upstreamId: string | null;
  readonly revision: SessionRevision;
  /** Kinds of lists that it may be told have changed. */
  readonly lists: readonly ListKind[];
  /** The replica in whose memory it was opened; null where any replica can serve it. */
  readonly holder: string | null;
  readonly issuedAt: number;
}

/** The target's half of a session. It may be replaced while the client's half goes on. */
export interface Link {
  readonly upstreamId: string | null;
  readonly revision: SessionRevision;
}

export const LIST_KINDS = ['tools', 'prompts', 'resources'] as const;
export type ListKind = (typeof LIST_KINDS)[number];

export const EVERYWHERE = '*';

/** The request whose answer a stream carries, so that a resumed stream is checked like the one that broke off. */
export interface StreamOrigin {
  readonly id: RpcId;
  readonly method: string;
  readonly decisionId: string;
}

type Owner = Pick<Principal, 'issuer' | 'sub'>;

const STATE_LIFETIME_MS = 10 * 60 * 1000;
const MAX_SEALED_LENGTH = 4096;

const ofTarget = (owner: Owner, targetName: string): string => JSON.stringify([owner.issuer, owner.sub, targetName]);
const ofSession = (owner: Owner, targetName: string, session: Session): string =>
  JSON.stringify([owner.issuer, owner.sub, targetName, session.id]);

/** Targets never change, so that each has its digest once. */
const places = new WeakMap<Target, string>();

/** A target that has moved is another server, which must get nothing that the old one gave out. */
export function placeOf(target: Target): string {
  const known = places.get(target);
  if (known !== undefined) return known;
  const place = createHash('sha256')
    .update(JSON.stringify([target.id, addressOf(target)]))
    .digest('base64url');
  places.set(target, place);
  return place;
}

/** The name may have been given to another target, the target have moved, or an administrator have ended it since. */
export function isSessionAt(session: Session, target: Target, rules: SessionRules): boolean {
  return (session.place === EVERYWHERE || session.place === placeOf(target)) && !rules.ended.has(session.id);
}

/** What the client says the revision is, unless the target's half has come to speak another one since. */
export function versionOf(
  caller: { readonly version: SessionRevision | undefined },
  { session, link }: Linked,
): SessionRevision | undefined {
  return link.revision === session.revision ? caller.version : link.revision;
}

/** What an upstream session depends on besides its place: the credentials it was opened with, and that nobody recycled it since. */
export function bindingOf({ binding }: Access, epoch: number): string {
  return epoch === 0
    ? binding
    : createHash('sha256')
        .update(JSON.stringify([binding, epoch]))
        .digest('base64url');
}

export function sealSession(seal: Seal, owner: Owner, targetName: string, session: Session): string {
  const { id, place, binding, upstreamId, revision, lists, holder, issuedAt } = session;
  const content: SessionContent = { i: id, t: place, b: binding, u: upstreamId, v: revision, l: lists, h: holder, a: issuedAt };
  return seal.seal('session', ofTarget(owner, targetName), content);
}

/** null alike for another's session, another target's, an edited one, an old one and nonsense. */
export function openSession(seal: Seal, owner: Owner, targetName: string, text: string, now: number): Session | null {
  if (text.length > MAX_SEALED_LENGTH) return null;
  const content = openedBefore(seal, owner, targetName, text);
  if (content === null || now - content.a > SESSION_LIFETIME_MS) return null;
  const { i: id, t: place, b: binding, u: upstreamId, v: revision, l: lists, h: holder, a: issuedAt } = content;
  return { id, place, binding, upstreamId, revision, lists, holder, issuedAt };
}

/** A session's id comes with each of its requests. */
const opened = new WeakMap<Seal, Map<string, Opened>>();
const OPENED_KEPT = 10_000;

/** A sealed text opens for one owner and target alone, so that it needs no more than its own place. */
interface Opened extends Owner {
  readonly targetName: string;
  readonly content: SessionContent;
}

function openedBefore(seal: Seal, { issuer, sub }: Owner, targetName: string, text: string): SessionContent | null {
  const known = opened.get(seal) ?? new Map<string, Opened>();
  opened.set(seal, known);
  const before = known.get(text);
  if (before !== undefined) {
    return before.issuer === issuer && before.sub === sub && before.targetName === targetName ? before.content : null;
  }
  const content = seal.open('session', ofTarget({ issuer, sub }, targetName), text) as SessionContent | null;
  if (content === null) return null;
  const oldest = known.keys().next().value;
  if (known.size >= OPENED_KEPT && oldest !== undefined) known.delete(oldest);
  known.set(text, { issuer, sub, targetName, content });
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

/** A session together with the half of its target that is in use. */
export interface Linked {
  readonly session: Session;
  readonly link: Link;
}

/**
 * A request that the target sent on this session; its answer may be posted to any replica, on this session only. `place`:
 * where the target was (`placeOf`), because the answer is not for a server that has come in its place.
 */
export interface AskedRequest {
  readonly id: RpcId;
  readonly method: string;
}

export function sealAskedId(seal: Seal, owner: Owner, place: string, { session, link }: Linked, asked: AskedRequest): string {
  const content: AskedContent = { i: asked.id, m: asked.method, u: link.upstreamId };
  return seal.seal('asked', ofSession(owner, place, session), content);
}

/** `upstreamId`: of the half that asked, which may have been replaced since. */
export function openAskedId(
  seal: Seal,
  owner: Owner,
  place: string,
  session: Session,
  id: RpcId,
): (AskedRequest & { readonly upstreamId: string | null }) | null {
  if (typeof id !== 'string') return null;
  const content = seal.open('asked', ofSession(owner, place, session), id) as AskedContent | null;
  return content && { id: content.i, method: content.m, upstreamId: content.u };
}

interface AskedContent {
  readonly i: RpcId;
  readonly m: string;
  readonly u: string | null;
}

/** Upstream event ids address a stream; sealed, they cannot be used to replay another session's stream. */
export function sealEventId(
  seal: Seal,
  owner: Owner,
  targetName: string,
  { session, link }: Linked,
  eventId: string,
  origin: StreamOrigin | null,
): string {
  const content: EventContent = {
    e: eventId,
    u: link.upstreamId,
    ...(origin && { i: origin.id, m: origin.method, d: origin.decisionId }),
  };
  return seal.seal('event', ofSession(owner, targetName, session), content);
}

/** `eventId` null: the stream was of a half that has been replaced, and begins anew. */
export interface ResumePoint {
  readonly eventId: string | null;
  readonly origin: StreamOrigin | null;
}

export function openEventId(
  seal: Seal,
  owner: Owner,
  targetName: string,
  { session, link }: Linked,
  text: string,
): ResumePoint | null {
  if (text.length > MAX_SEALED_LENGTH) return null;
  const content = seal.open('event', ofSession(owner, targetName, session), text) as EventContent | null;
  if (content === null) return null;
  const { e: eventId, u: upstreamId, i: id, m: method, d: decisionId } = content;
  if (upstreamId !== link.upstreamId) return { eventId: null, origin: null };
  return {
    eventId,
    origin: id === undefined || method === undefined || decisionId === undefined ? null : { id, method, decisionId },
  };
}

interface EventContent {
  readonly e: string;
  readonly u: string | null;
  readonly i?: RpcId;
  readonly m?: string;
  readonly d?: string;
}

/** What a `requestState` of 2026-07-28 belongs to: a retry must be the same request of the same principal. */
export interface StateBinding {
  readonly place: string;
  readonly method: string;
  readonly name: string | null;
  readonly arguments: JsonValue | undefined;
}

export function sealState(
  seal: Seal,
  owner: Owner,
  targetName: string,
  binding: StateBinding,
  state: string,
  now: number,
): string {
  return seal.seal('state', ofTarget(owner, targetName), { s: state, b: bindingDigest(binding), x: now + STATE_LIFETIME_MS });
}

/** The upstream's own state, exactly as it was; null for another's, another request's or an old one. */
export function openState(
  seal: Seal,
  owner: Owner,
  targetName: string,
  binding: StateBinding,
  text: string,
  now: number,
): string | null {
  const content = seal.open('state', ofTarget(owner, targetName), text) as { s: string; b: string; x: number } | null;
  return content !== null && content.b === bindingDigest(binding) && now <= content.x ? content.s : null;
}

function bindingDigest(binding: StateBinding): string {
  const { place, method, name } = binding;
  const text = canonical([place, method, name, binding.arguments ?? null]);
  return createHash('sha256').update(text).digest('base64url');
}

/** Member order is not part of a value, and a client may serialize its retry anew. */
function canonical(value: JsonValue): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name] ?? null)}`).join()}}`;
}
