/**
 * What clients hold on behalf of the gateway: session ids, ids of requests that the target asks, event ids and request
 * state. All are sealed, so that any replica can use them and nobody but their principal, on their target, can. Pure but
 * for the seal.
 */
import { createHash } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import type { JsonValue } from '../http/json.ts';
import type { SessionRevision } from './era.ts';
import type { RpcId } from './message.ts';
import type { Seal } from './seal.ts';

/** A session of one principal with one target. It authenticates nobody: the token is checked on every request. */
export interface Session {
  readonly id: string;
  /** `placeOf` its target. */
  readonly place: string;
  /** null where the target keeps no session. */
  readonly upstreamId: string | null;
  readonly revision: SessionRevision;
  readonly issuedAt: number;
}

/** The request whose answer a stream carries, so that a resumed stream is checked like the one that broke off. */
export interface StreamOrigin {
  readonly id: RpcId;
  readonly method: string;
  readonly decisionId: string;
}

type Owner = Pick<Principal, 'issuer' | 'sub'>;

const SESSION_LIFETIME_MS = 24 * 60 * 60 * 1000;
const STATE_LIFETIME_MS = 10 * 60 * 1000;
const MAX_SEALED_LENGTH = 4096;

const ofTarget = (owner: Owner, targetName: string): string => JSON.stringify([owner.issuer, owner.sub, targetName]);
const ofSession = (owner: Owner, targetName: string, session: Session): string =>
  JSON.stringify([owner.issuer, owner.sub, targetName, session.id]);

/** A target that has moved is another server, which must get nothing that the old one gave out. */
export function placeOf({ id, url }: { readonly id: string; readonly url: string }): string {
  return createHash('sha256')
    .update(JSON.stringify([id, url]))
    .digest('base64url');
}

export function sealSession(seal: Seal, owner: Owner, targetName: string, session: Session): string {
  const { id, place, upstreamId, revision, issuedAt } = session;
  return seal.seal('session', ofTarget(owner, targetName), { i: id, t: place, u: upstreamId, v: revision, a: issuedAt });
}

/** null alike for another's session, another target's, an edited one, an old one and nonsense. */
export function openSession(seal: Seal, owner: Owner, targetName: string, text: string, now: number): Session | null {
  if (text.length > MAX_SEALED_LENGTH) return null;
  const content = seal.open('session', ofTarget(owner, targetName), text) as SessionContent | null;
  if (content === null || now - content.a > SESSION_LIFETIME_MS) return null;
  return { id: content.i, place: content.t, upstreamId: content.u, revision: content.v, issuedAt: content.a };
}

interface SessionContent {
  readonly i: string;
  readonly t: string;
  readonly u: string | null;
  readonly v: SessionRevision;
  readonly a: number;
}

/** A request that the target sent on this session; its answer may be posted to any replica, on this session only. */
export interface AskedRequest {
  readonly id: RpcId;
  readonly method: string;
}

export function sealAskedId(seal: Seal, owner: Owner, targetName: string, session: Session, asked: AskedRequest): string {
  return seal.seal('asked', ofSession(owner, targetName, session), { i: asked.id, m: asked.method });
}

export function openAskedId(seal: Seal, owner: Owner, targetName: string, session: Session, id: RpcId): AskedRequest | null {
  if (typeof id !== 'string') return null;
  const content = seal.open('asked', ofSession(owner, targetName, session), id) as { i: RpcId; m: string } | null;
  return content === null ? null : { id: content.i, method: content.m };
}

/** Upstream event ids address a stream; sealed, they cannot be used to replay another session's stream. */
export function sealEventId(
  seal: Seal,
  owner: Owner,
  targetName: string,
  session: Session,
  eventId: string,
  origin: StreamOrigin | null,
): string {
  const content = origin === null ? { e: eventId } : { e: eventId, i: origin.id, m: origin.method, d: origin.decisionId };
  return seal.seal('event', ofSession(owner, targetName, session), content);
}

export interface ResumePoint {
  readonly eventId: string;
  readonly origin: StreamOrigin | null;
}

export function openEventId(seal: Seal, owner: Owner, targetName: string, session: Session, text: string): ResumePoint | null {
  if (text.length > MAX_SEALED_LENGTH) return null;
  const content = seal.open('event', ofSession(owner, targetName, session), text) as EventContent | null;
  if (content === null) return null;
  const { e, i, m, d } = content;
  return {
    eventId: e,
    origin: i === undefined || m === undefined || d === undefined ? null : { id: i, method: m, decisionId: d },
  };
}

interface EventContent {
  readonly e: string;
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
