/**
 * Upstream sessions: the sessions that the gateway opens at targets. A client keeps its session id until the session ends.
 * The gateway opens a new upstream session when the credentials have changed, an administrator recycles it, the target has
 * lost it, or a session at the aggregate endpoint first needs this target. Several replicas may notice at once. They end up
 * with the same upstream session, because each cause has one row.
 */
import { createHash } from 'node:crypto';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import { decodeLarge, readLargeJson } from '../../base/json/large.ts';
import { TARGET_RULES } from '../../base/json/selection.ts';
import { isUnread } from '../../base/json/steps.ts';
import type { Log } from '../../base/log.ts';
import type { SessionSetting, SessionStore } from '../../sessions/session-store.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import type { Access, RoutedTarget } from '../../targets/target.ts';
import type { McpLimits } from '../limits/limits.ts';
import { reduceClientCapabilities } from '../protocol/capabilities.ts';
import { isSessionRevision } from '../protocol/mode.ts';
import type { Seal } from '../sessions/seal.ts';
import { AGGREGATE, bindingOf, fingerprintOf, type Session, type UpstreamSession } from '../sessions/sessions.ts';
import type { Asked, Health } from '../upstream/health.ts';
import { readAll } from '../upstream/http.ts';
import type { Attempt, Pace } from '../upstream/pace.ts';
import { isFault, type Upstream, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from '../upstream/upstream.ts';
import { decideListed } from './authorize.ts';

/** A session at one target, with the caller's current access. */
export interface SessionTarget {
  readonly session: Session;
  readonly target: RoutedTarget;
  readonly access: Access;
  readonly admission: Admission;
}

export function sessionAt(session: Session, target: RoutedTarget, admission: Admission): SessionTarget {
  return { session, target, access: target.accessOf(admission.principal), admission };
}

/** The session has ended, on this replica or on another. */
export const ENDED = { ended: true } as const;
export type UpstreamSessionFailure = UpstreamFault | typeof ENDED;

export interface UpstreamSessions {
  /** The upstream session for the target and the access as they are now. Opens one if needed. */
  current(place: SessionTarget): Promise<UpstreamSession | UpstreamSessionFailure>;
  /** The same for requests to several targets: does not wait for a target that is late, but asks it in the background. */
  joined(place: SessionTarget): Promise<UpstreamSession | UpstreamSessionFailure>;
  /** Replaces an upstream session that the target no longer knows. */
  replace(place: SessionTarget, lost: UpstreamSession): Promise<UpstreamSession | UpstreamSessionFailure>;
  /** The newest upstream session that any replica has opened for this target and access; null: none. Opens nothing. */
  newest(place: SessionTarget): Promise<UpstreamSession | null>;
  /** The upstream session that this process uses for this target and access; null: none. Opens nothing. */
  open(place: SessionTarget): UpstreamSession | null;
  /** Reports the target whenever this process uses a new upstream session. Returns a function that unsubscribes. */
  onOpened(session: Session, listener: (targetId: string) => void): () => void;
  /** The capabilities that the target announced when this process opened the upstream session. */
  helloOf(session: Session, targetId: string): ServerHello | null;
  /** Delays `notifications/initialized` to targets until `begin`: what they send after it needs a client that listens. */
  hold(session: Session): void;
  /** Tells targets that the client is ready; does nothing if they know. Does not wait for targets that are late. */
  begin(session: Session, admission: Admission): Promise<void>;
  /** The number of upstream sessions that this process uses. */
  count(): number;
  /** Forgets the upstream sessions of a session that has ended. */
  forget(session: Session): void;
}

/** The part of the target's answer to `initialize` that is kept. */
export interface ServerHello {
  readonly capabilities: JsonObject;
}

export interface UpstreamSessionsParts {
  readonly upstream: Upstream;
  readonly sessions: SessionStore;
  readonly seal: Seal;
  readonly limits: McpLimits;
  readonly health: Health;
  readonly pace: Pace;
  readonly now: () => number;
  readonly log: Log;
}

export function isUpstreamSessionFailure(value: UpstreamSession | UpstreamSessionFailure): value is UpstreamSessionFailure {
  return 'fault' in value || 'ended' in value;
}

const LINKS_KEPT = 20_000;
const ID = 'portcullis';
const INITIALIZED = { jsonrpc: '2.0', method: 'notifications/initialized' };
const LEVEL = 'level';
/** The longest log level of the protocol has nine characters. */
const MAX_LEVEL_LENGTH = 64;
const MAX_HELLO_BYTES = 1024 * 1024;
/** Larger capabilities are not kept: they stay in memory as long as the upstream session is known. */
const MAX_CAPABILITIES_LENGTH = 16 * 1024;
/** How many lost upstream sessions of one session are followed to their successors. */
const MAX_LOST = 100;
const OPENING = 'initialize';
const LATE: UpstreamFault = { fault: 'suspended' };

/** An open upstream session whose target has not yet been told that the client is ready. */
interface Held {
  readonly targetId: string;
  readonly binding: string;
  readonly link: UpstreamSession;
}

interface Entry {
  readonly binding: string;
  readonly link: Promise<UpstreamSession | UpstreamSessionFailure>;
  /** Resolves when `initialize` is sent to the target. */
  readonly asked: Promise<void>;
  attempt: Attempt | null;
  settled: UpstreamSession | null;
  hello: ServerHello | null;
}

/** Reports the progress of finding or opening an upstream session. */
interface Finding {
  /** Whether not to ask the target, because it is late and the principal already waits for it. */
  isBusy(): boolean;
  asking(attempt: Attempt): void;
  heard(hello: ServerHello | null): void;
}

export function createUpstreamSessions(parts: UpstreamSessionsParts): UpstreamSessions {
  const { upstream, sessions, seal, limits, health, pace, now, log } = parts;
  /** By session, then by target. The least recently used sessions are evicted, and looked up again when needed. */
  const known = new Map<string, Map<string, Entry>>();
  const listeners = new Map<string, (targetId: string) => void>();
  /** Upstream sessions that wait until their client is ready, by session. */
  const waiting = new Map<string, Held[]>();

  function entriesOf(session: Session): Map<string, Entry> {
    const entries = known.get(session.id) ?? new Map<string, Entry>();
    known.delete(session.id);
    known.set(session.id, entries);
    const oldest = known.keys().next().value;
    if (known.size > LINKS_KEPT && oldest !== undefined) {
      known.delete(oldest);
      waiting.delete(oldest);
    }
    return entries;
  }

  /** `before`: this process has used a different upstream session. `asking`: ask even if the target is late and already asked. */
  function settle(place: SessionTarget, binding: string, lost: UpstreamSession | null, before: boolean, asking = true): Entry {
    const entries = entriesOf(place.session);
    let ask: () => void = () => undefined;
    const asked = new Promise<void>((resolve) => {
      ask = resolve;
    });
    const finding: Finding = {
      isBusy: () => !asking && pace.isAsking(askedAt(place), OPENING),
      asking(attempt) {
        entry.attempt = attempt;
        ask();
      },
      heard(hello) {
        entry.hello = hello;
      },
    };
    const entry: Entry = {
      binding,
      asked,
      attempt: null,
      settled: null,
      hello: null,
      link: bounded(find(place, binding, lost, before, finding)),
    };
    entries.set(place.target.id, entry);
    void entry.link.then((link) => {
      if (isUpstreamSessionFailure(link)) {
        if (entries.get(place.target.id) === entry) entries.delete(place.target.id);
        return;
      }
      entry.settled = link;
      try {
        listeners.get(place.session.id)?.(place.target.id);
      } catch (err) {
        log.error({ err }, 'upstream session opened, but its listener failed');
      }
    });
    return entry;
  }

  /** Limits the wait, so that a target or a database that does not answer cannot block the session's requests for ever. */
  function bounded(
    finding: Promise<UpstreamSession | UpstreamSessionFailure>,
  ): Promise<UpstreamSession | UpstreamSessionFailure> {
    return new Promise((resolve) => {
      const late = new Error('opening the upstream session took too long');
      const withinMs = 3 * limits.openMs;
      const timer = setTimeout(() => resolve({ fault: 'timeout', cause: late, withinMs }), withinMs).unref();
      finding
        .catch((cause: unknown) => ({ fault: 'broken_off', cause }) as const)
        .then((found) => {
          clearTimeout(timer);
          resolve(found);
        });
    });
  }

  async function find(
    place: SessionTarget,
    binding: string,
    lost: UpstreamSession | null,
    before: boolean,
    finding: Finding,
  ): Promise<UpstreamSession | UpstreamSessionFailure> {
    const { session, target } = place;
    const row = await sessions.find(session.id);
    if (row === null) return ENDED;
    const known = await newestOf(session, target.id, binding, lost);
    if (known !== null) {
      // This upstream session lacks the settings that the client has meanwhile sent to the other one.
      if (before) await setUp(place, known, await sessions.settings(session.id, target.id));
      return known;
    }
    const opened = await openAt(place, row.client, finding);
    if ('fault' in opened) return opened;
    finding.heard(opened.hello);
    const { link } = opened;
    const cause = causeOf(target.id, binding, lost);
    try {
      const held = waiting.get(session.id);
      if (held === undefined) await announce(place, link);
      else held.push({ targetId: target.id, binding, link });
      await setUp(place, link, await sessions.settings(session.id, target.id));
      const upstream_id = link.upstreamId === null ? null : seal.seal('link', session.id, { u: link.upstreamId });
      const ours = await sessions.insertUpstream(session.id, cause, { upstream_id, revision: link.revision }, now());
      // The client or an administrator may meanwhile have ended the session.
      const kept = (await sessions.find(session.id)) !== null;
      if (ours && kept) return link;
      void post(place, link, 'DELETE');
      return (kept ? await stored(session, cause) : null) ?? ENDED;
    } catch (cause) {
      void post(place, link, 'DELETE');
      throw cause;
    }
  }

  /**
   * The newest upstream session with this binding: the last successor of `lost`, or of the one that the client opened. null:
   * there is none.
   */
  async function newestOf(
    session: Session,
    targetId: string,
    binding: string,
    lost: UpstreamSession | null,
  ): Promise<UpstreamSession | null> {
    const own = session.place !== AGGREGATE && session.binding === binding ? session : null;
    let newest: UpstreamSession | null = lost === null ? own : null;
    for (let from: UpstreamSession | null = lost ?? own, followed = 0; followed < MAX_LOST; followed++) {
      const next = await stored(session, causeOf(targetId, binding, from));
      if (next === null || next.upstreamId === from?.upstreamId) break;
      newest = next;
      from = next;
    }
    return newest;
  }

  async function stored(session: Session, cause: string): Promise<UpstreamSession | null> {
    const row = await sessions.upstream(session.id, cause);
    if (row === null || !isSessionRevision(row.revision)) return null;
    if (row.upstream_id === null) return { upstreamId: null, revision: row.revision };
    const content = seal.open('link', session.id, row.upstream_id) as { u: string } | null;
    return content && { upstreamId: content.u, revision: row.revision };
  }

  async function openAt(
    place: SessionTarget,
    client: { readonly capabilities: JsonObject; readonly clientInfo: JsonObject },
    { isBusy, asking }: Finding,
  ): Promise<{ link: UpstreamSession; hello: ServerHello | null } | UpstreamFault> {
    if (isBusy()) return LATE;
    const asked = askedAt(place);
    const refusal = health.refusal(asked);
    if (refusal !== null) return refusal;
    const attempt = pace.begin(asked, OPENING);
    const overdue = (): void => {
      if (attempt.overdue()) health.failed(asked, 'timeout');
    };
    const isAmong = place.session.place === AGGREGATE;
    const timer = isAmong ? setTimeout(overdue, limits.joinMs).unref() : undefined;
    asking(attempt);
    const opened = await introduce(place, client).finally(() => clearTimeout(timer));
    if (!isFault(opened)) health.answered(asked);
    else {
      if (isAmong && opened.fault === 'timeout') overdue();
      else health.failed(asked, opened.fault);
      if (opened.fault !== 'suspended') health.note(place.target, opened.fault, 'no session could be opened', opened.cause);
    }
    attempt.ended(!isFault(opened));
    return opened;
  }

  async function introduce(
    { target, access, session }: SessionTarget,
    client: { readonly capabilities: JsonObject; readonly clientInfo: JsonObject },
  ): Promise<{ link: UpstreamSession; hello: ServerHello | null } | UpstreamFault> {
    const params = {
      protocolVersion: session.revision,
      capabilities: reduceClientCapabilities(client.capabilities, 'stateful', target.may_ask),
      clientInfo: client.clientInfo,
    };
    const body = JSON.stringify({ jsonrpc: '2.0', id: ID, method: 'initialize', params });
    const signal = AbortSignal.timeout(limits.openMs);
    const late: UpstreamFault = { fault: 'timeout', withinMs: limits.openMs };
    const answer = await upstream.send({ method: 'POST', target, access, body, signal });
    if (isFault(answer)) return answer.fault === 'aborted' ? { ...late, cause: answer.cause } : answer;
    const result = await resultOf(answer, Math.min(MAX_HELLO_BYTES, limits.answerBytes), target.id);
    if (result === null || !isSessionRevision(result.protocolVersion) || !isObject(result.capabilities)) {
      if (signal.aborted) return late;
      return { fault: 'malformed', cause: new Error(`initialize was answered with HTTP ${answer.status} and no session`) };
    }
    const { protocolVersion, capabilities } = result;
    const link: UpstreamSession = { upstreamId: answer.sessionId, revision: protocolVersion };
    return { link, hello: JSON.stringify(capabilities).length > MAX_CAPABILITIES_LENGTH ? null : { capabilities } };
  }

  /** Sends the client's settings to a new upstream session: the client would not repeat them. One timeout covers all. */
  async function setUp(place: SessionTarget, link: UpstreamSession, settings: readonly SessionSetting[]): Promise<void> {
    const signal = AbortSignal.timeout(limits.openMs);
    const uris = settings.filter(({ key }) => key !== LEVEL).map(({ value }) => value);
    const allowed = decideListed(
      place.admission,
      place.target.id,
    )(uris.map((uri) => ({ resource_type: 'resource', resource_name: uri }) as const));
    const level = settings.find(({ key }) => key === LEVEL)?.value;
    if (level !== undefined) await post(place, link, 'POST', request('logging/setLevel', { level }), signal);
    for (const [index, uri] of uris.entries()) {
      if (allowed[index] !== true) continue;
      if (signal.aborted) return log.warn({ target: place.target.name }, 'restoring settings of an upstream session timed out');
      await post(place, link, 'POST', request('resources/subscribe', { uri }), signal);
    }
  }

  /** The client may become ready late: by then the target may have moved, or the caller may have lost access to it. */
  async function tell(session: Session, admission: Admission, { targetId, binding, link }: Held): Promise<void> {
    const target = [...admission.snapshot.targets.values()].find(({ id }) => id === targetId);
    if (target === undefined || !mayUseTarget(admission, target)) return;
    const place = sessionAt(session, target, admission);
    if (bindingAt(place) === binding) await announce(place, link);
  }

  async function announce(place: SessionTarget, link: UpstreamSession): Promise<void> {
    const attempt = pace.begin(askedAt(place), INITIALIZED.method);
    await pace.wait(askedAt(place), INITIALIZED.method, post(place, link, 'POST', INITIALIZED).then(attempt.ended));
  }

  async function post(
    { target, access }: SessionTarget,
    link: UpstreamSession,
    method: 'POST' | 'DELETE',
    message?: object,
    signal = AbortSignal.timeout(limits.openMs),
  ): Promise<boolean> {
    const request: UpstreamRequest = {
      method,
      target,
      access,
      session: link,
      version: link.revision,
      signal,
      ...(message === undefined ? {} : { body: JSON.stringify(message) }),
    };
    const answer = await upstream.send(request);
    if (isFault(answer)) {
      log.warn({ target: target.name, fault: answer.fault, err: answer.cause }, 'setting up an upstream session failed');
      return false;
    }
    if (message !== undefined && 'id' in message) await resultOf(answer, MAX_HELLO_BYTES, target.id);
    else answer.discard();
    return true;
  }

  async function joined(place: SessionTarget): Promise<UpstreamSession | UpstreamSessionFailure> {
    const binding = bindingAt(place);
    const before = known.get(place.session.id)?.get(place.target.id);
    const isSame = before?.binding === binding;
    const isLost = isSame && before.attempt?.isLost() === true;
    const entry = isSame && !isLost ? before : settle(place, binding, null, before !== undefined && !isSame, false);
    // A slow database does not make the target late.
    await Promise.race([entry.link, entry.asked]);
    if (entry.settled !== null) return entry.settled;
    const link = await pace.wait(askedAt(place), OPENING, entry.link);
    if (link !== null) return link;
    return entry.attempt?.isLost() === true ? joined(place) : LATE;
  }

  return {
    joined,
    current(place) {
      const binding = bindingAt(place);
      const entry = known.get(place.session.id)?.get(place.target.id);
      // If opening took too long for other requests, this one does not wait for it either.
      if (entry?.binding === binding) {
        const refusal = entry.settled === null ? health.refusal(askedAt(place)) : null;
        return refusal === null ? entry.link : Promise.resolve(refusal);
      }
      const { session } = place;
      if (entry === undefined && session.place !== AGGREGATE && session.binding === binding) return Promise.resolve(session);
      return settle(place, binding, null, entry !== undefined).link;
    },
    replace(place, lost) {
      const binding = bindingAt(place);
      const entry = known.get(place.session.id)?.get(place.target.id);
      // Another request has already noticed the loss.
      if (entry?.binding === binding && (entry.settled === null || entry.settled.upstreamId !== lost.upstreamId))
        return entry.link;
      return settle(place, binding, lost, false).link;
    },
    newest: (place) => newestOf(place.session, place.target.id, bindingAt(place), null),
    open(place) {
      const entry = known.get(place.session.id)?.get(place.target.id);
      return entry?.binding === bindingAt(place) ? entry.settled : null;
    },
    onOpened(session, listener) {
      listeners.set(session.id, listener);
      return () => {
        if (listeners.get(session.id) === listener) listeners.delete(session.id);
      };
    },
    hold(session) {
      const oldest = waiting.keys().next().value;
      if (waiting.size >= LINKS_KEPT && oldest !== undefined) waiting.delete(oldest);
      waiting.set(session.id, []);
    },
    async begin(session, admission) {
      const held = waiting.get(session.id) ?? [];
      waiting.delete(session.id);
      await Promise.all(held.map((half) => tell(session, admission, half)));
    },
    helloOf: (session, targetId) => known.get(session.id)?.get(targetId)?.hello ?? null,
    count: () =>
      [...known.values()].reduce(
        (sum, entries) => sum + [...entries.values()].filter(({ settled }) => settled !== null).length,
        0,
      ),
    forget(session) {
      known.delete(session.id);
      waiting.delete(session.id);
    },
  };
}

function bindingAt({ session, access, admission, target }: SessionTarget): string {
  const binding = bindingOf(access, admission.snapshot.sessions.epochOf(admission.principal.sub, target.id));
  // A session at the aggregate endpoint survives the move of a target, but the new server must not get what the old one issued.
  return session.place === AGGREGATE ? JSON.stringify([fingerprintOf(target), binding]) : binding;
}

/** The target, access and principal for which an upstream session is opened. */
export function askedAt({ target, access, admission }: SessionTarget): Asked {
  return { target, access, principal: admission.principal.sub };
}

function request(method: string, params: JsonObject): object {
  return { jsonrpc: '2.0', id: ID, method, params };
}

function causeOf(targetId: string, binding: string, lost: UpstreamSession | null): string {
  return createHash('sha256')
    .update(JSON.stringify([targetId, binding, lost?.upstreamId ?? null]))
    .digest('hex');
}

/** The result of the gateway's own request, whether it comes as JSON or in a stream; null for anything else. */
async function resultOf(answer: UpstreamAnswer, maxBytes: number, targetId: string): Promise<JsonObject | null> {
  try {
    if (answer.status !== 200) return null;
    if (answer.type !== 'stream') {
      const bytes = await readAll(answer, maxBytes);
      const text = isFault(bytes) ? null : await decodeLarge(bytes, targetId);
      return text === null ? null : ownResult(await readLargeJson(text, TARGET_RULES, targetId));
    }
    for await (const events of answer.events) {
      for (const { data } of events) {
        const result = data === '' ? null : ownResult(await readLargeJson(data, TARGET_RULES, targetId));
        if (result !== null) return result;
      }
    }
    return null;
  } catch {
    return null;
  } finally {
    answer.discard();
  }
}

function ownResult(reading: { readonly ok: boolean; readonly value?: JsonValue }): JsonObject | null {
  const message = reading.ok ? reading.value : undefined;
  const result = isObject(message) && message.id === ID ? message.result : undefined;
  return isObject(result) && !isUnread(result) && !isUnread(result.capabilities) ? result : null;
}

/** The setting in a request that the target has accepted. The gateway repeats it to a new upstream session. null: no setting. */
export function settingOf(
  method: string,
  params: JsonObject | undefined,
): { readonly setting: SessionSetting; readonly on: boolean } | null {
  const { uri, level } = params ?? {};
  if (method === 'logging/setLevel' && typeof level === 'string' && level.length <= MAX_LEVEL_LENGTH)
    return { setting: { key: LEVEL, value: level }, on: true };
  if (typeof uri !== 'string' || (method !== 'resources/subscribe' && method !== 'resources/unsubscribe')) return null;
  const key = createHash('sha256').update(uri).digest('hex');
  return { setting: { key, value: uri }, on: method === 'resources/subscribe' };
}
