/**
 * Targets that are processes on this host. `initialize` starts a process, or joins one that callers of the same scope share.
 * Sessions live and end with their process. The number, idle time and lifetime of processes are limited.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { createFlow } from '../../../base/budgets.ts';
import type { Cancellable } from '../../../base/cancellation.ts';
import { readLargeJson } from '../../../base/json/large.ts';
import { CLIENT_RULES } from '../../../base/json/selection.ts';
import { inTime } from '../../../base/promises.ts';
import { type RpcMessage, type RpcRequest, readMessage } from '../../../protocol/message.ts';
import { type Located, MESSAGE_SPAN_DEPTH } from '../../../protocol/rebuild.ts';
import { type Access, addressOf, type Credentials, type StdioTarget } from '../../../targets/target.ts';
import { statusAnswer } from '../answers.ts';
import { sourceAt, sourceOf } from '../connect.ts';
import { competitors, type Slot, toEvict } from '../eviction.ts';
import type { Unread } from '../unread.ts';
import {
  CHANGED,
  ifStillAllowed,
  isFault,
  isStillAllowed,
  openingOf,
  ProcessFault,
  type Reach,
  silenceOf,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
} from '../upstream.ts';
import { SharedProcess, type SharedProcessDeps, type SharedProcessSession } from './shared-process.ts';

export interface StdioLimits {
  /** The commands that targets may use, compared byte for byte. */
  readonly allowed: readonly string[];
  readonly maxProcesses: number;
  /** How long a process may be without a client message and an open stream. */
  readonly idleMs: number;
  readonly lifetimeMs: number;
}

export interface StdioDeps extends Omit<SharedProcessDeps, 'unread'> {
  readonly stdio: StdioLimits;
  readonly unread: Unread;
}

/** If all process slots are taken, a process that has been idle for this long is evicted. */
const GIVE_WAY_MS = 30_000;
/** Starts of a user's own processes: each takes as much processor time as hundreds of calls. */
const STARTS = { perKey: { perSecond: 1, burst: 40 }, all: { perSecond: 20, burst: 400 } };
/** How long a new process waits for its user's next start, or for a slot while another process ends. */
const ROOM_MS = 5_000;
/** How long a process may finish its requests after its lifetime. */
const OVERTIME_MS = 60_000;
/** A shared process that ends by itself within this time of its start counts as a further failure in a row. */
const STEADY_MS = 30_000;
const FIRST_BACK_OFF_MS = 1_000;
const BACK_OFF_MS = 30_000;
/** The time that ending a process takes at most, with a margin. */
const CLOSE_MS = 6_000;

/** Sessions of shared processes. The users of one target cannot take the room of all other targets, and one user not that of the others. */
const MAX_SESSIONS = { ofUser: 625, ofTarget: 2_500, all: 10_000 };

/** Rules for messages that the gateway built itself. They are within limits and well-formed. */
const OWN_RULES = { ...CLIENT_RULES, exact: false, spanDepth: MESSAGE_SPAN_DEPTH };

interface Seat extends Slot {
  readonly host: SharedProcess;
  readonly session: SharedProcessSession;
  /** The credentials that the session was opened with. It must not be used with different ones, nor at a different address. */
  readonly binding: string;
}

export function createStdioUpstream({ limits, stdio, log, newId, now, unread }: StdioDeps) {
  /** All processes, including those that are ending. */
  const hosts = new Set<SharedProcess>();
  const ending = new Set<SharedProcess>();
  /** The owner of each process that only one user may use. */
  const owners = new WeakMap<SharedProcess, string>();
  /** The address of each process. A target can have many sessions, and its environment thousands of characters. */
  const addresses = new WeakMap<SharedProcess, string>();
  const seats = new Map<string, Seat>();
  /** Sessions of shared processes that are being opened. */
  const opening = new Set<Slot>();
  const shared = new Map<string, SharedProcess>();
  const setbacks = new Map<string, { readonly failures: number; readonly until: number }>();
  /** How many own processes each user has started lately. Processes for everybody do not count: they start seldom, and any user can be the first to need one. */
  const starts = createFlow(STARTS, () => performance.now());
  let isClosed = false;

  const sweeper = setInterval(sweep, Math.min(5_000, Math.max(20, Math.min(stdio.idleMs, stdio.lifetimeMs) / 4)));
  sweeper.unref();

  function sweep(): void {
    const at = now();
    for (const host of hosts) {
      if (ending.has(host)) continue;
      const age = at - host.startedAt;
      if (age > stdio.lifetimeMs + OVERTIME_MS) host.end('it is too old, and a request is still under way');
      else if (age > stdio.lifetimeMs && host.underWay === 0) host.end('it is too old');
      else if (!host.isBusy && at - host.lastUsed > stdio.idleMs) host.end('it was idle');
      else if (host.shared) sweepSessions(host, at);
    }
    for (const [key, { until }] of setbacks) if (at > until + STEADY_MS) setbacks.delete(key);
  }

  /** Ends sessions whose clients left without ending them. */
  function sweepSessions(host: SharedProcess, at: number): void {
    for (const session of host.sessions.values()) {
      if (session.streams > 0 || at - session.lastUsed <= stdio.idleMs) continue;
      host.leave(session);
      seats.delete(session.id);
    }
  }

  /** How many processes of their own one user may have. Each user gets a few, even if the total limit is low. */
  const maxOwned = Math.max(Math.min(4, stdio.maxProcesses), Math.floor(stdio.maxProcesses / 4));

  /**
   * Returns the processes one of which must end before the owner may start another, and how long that must have been idle. null: there
   * is a slot. Processes that are ending still take theirs.
   */
  function inTheWay(owner: string | null): { readonly among: readonly SharedProcess[]; readonly idleMs: number } | null {
    const own = owner === null ? [] : [...hosts].filter((host) => owners.get(host) === owner);
    if (own.length >= maxOwned) return { among: own, idleMs: 0 };
    return hosts.size < stdio.maxProcesses ? null : { among: [...hosts], idleMs: GIVE_WAY_MS };
  }

  /**
   * Ends the process that has been idle for the longest time. If none was idle for long enough, and a user has at least two processes more than
   * the one that asks, the user with the most loses the one that was used least recently, an idle one first.
   */
  function evict(among: readonly SharedProcess[], idleMs: number, asking: string): void {
    const givesWay = (host: SharedProcess): boolean => !host.isBusy && now() - host.lastUsed >= idleMs;
    const use = ({ isBusy, underWay }: SharedProcess): number => Number(isBusy) + Number(underWay > 0);
    const byLastUse = among.toSorted((a, b) => use(a) - use(b) || a.lastUsed - b.lastUsed);
    const longest = byLastUse.find(givesWay);
    const owned = byLastUse.flatMap((host) => {
      const user = owners.get(host);
      return user === undefined ? [] : [{ user, host }];
    });
    if (longest !== undefined) longest.end('it was idle, and another process needs its slot');
    else toEvict(owned, asking, 0, () => false)?.host.end('its user has the most processes, and another user needs a slot');
  }

  /**
   * Starts a process as soon as its user may start one and a slot is free, or returns one that is running. null: not in time. No other code runs
   * between the count and the start.
   */
  async function whenRoom(
    owner: string | null,
    running: () => SharedProcess | null,
    access: Access,
    begin: () => SharedProcess,
  ): Promise<SharedProcess | UpstreamFault | null> {
    const deadline = now() + ROOM_MS;
    while (!isClosed) {
      const host = running();
      if (host !== null) return host;
      const left = deadline - now();
      const restMs = owner === null ? 0 : starts.wait(owner) * 1_000;
      const others = inTheWay(owner);
      if (restMs > 0) {
        if (left <= 0) return null;
        await sleep(Math.min(Math.ceil(restMs), left), undefined, { ref: false });
      } else if (others === null) {
        if (owner !== null) starts.charge(owner, 1);
        return begin();
      } else {
        const { among, idleMs } = others;
        if (!among.some((other) => ending.has(other))) evict(among, idleMs, access.user);
        const leaving = among.filter((other) => ending.has(other));
        if (leaving.length === 0 || left <= 0) return null;
        await inTime(Promise.race(leaving.map(({ gone }) => gone)), left);
      }
      if (!(await isStillAllowed(access))) return CHANGED;
    }
    return null;
  }

  function start(
    target: StdioTarget & { readonly id: string },
    credentials: Credentials,
    key: string | null,
    owner: string | null,
  ): SharedProcess {
    const { name, command, args, cwd } = target;
    const env = { ...target.env, ...credentials.env };
    const patience = { openingMs: openingOf(target, limits), silenceMs: silenceOf(target, limits) };
    const source = owner === null ? target.id : sourceOf(target.id, owner);
    const spec = { name, source, command, args, cwd, env, secrets: Object.values(credentials.env), ...patience };
    const host: SharedProcess = new SharedProcess(
      spec,
      key !== null,
      { limits, newId, now, log, unread: unread.open(target.id, owner) },
      (failed) => {
        ending.add(host);
        for (const id of host.sessions.keys()) seats.delete(id);
        if (key === null) return;
        if (shared.get(key) === host) shared.delete(key);
        if (failed) setBack(key, host);
      },
    );
    hosts.add(host);
    addresses.set(host, addressOf(target));
    if (owner !== null) owners.set(host, owner);
    if (key !== null) shared.set(key, host);
    void host.gone.then(() => {
      hosts.delete(host);
      ending.delete(host);
    });
    return host;
  }

  /** Records a failure of a shared process. The first may be chance; each further failure doubles the wait. */
  function setBack(key: string, host: SharedProcess): void {
    const before = now() - host.startedAt > STEADY_MS ? 0 : (setbacks.get(key)?.failures ?? 0);
    const failures = before + 1;
    const wait = failures === 1 ? 0 : Math.min(BACK_OFF_MS, FIRST_BACK_OFF_MS * 2 ** (failures - 2));
    setbacks.set(key, { failures, until: now() + wait });
  }

  async function hostFor(target: StdioTarget, access: Access, credentials: Credentials): Promise<SharedProcess | UpstreamFault> {
    const { scope, owner = null } = access;
    if (!stdio.allowed.includes(target.command)) {
      log.warn({ target: target.name, command: target.command }, 'target command refused: the configuration does not allow it');
      return { fault: 'transport' };
    }
    const key = scope === null ? null : JSON.stringify([target.id, addressOf(target), scope, credentials.identity]);
    const running = (): SharedProcess | null => (key === null ? null : current(key));
    const host = running();
    if (host !== null) return host;
    const until = setbacks.get(key ?? '')?.until ?? 0;
    if (now() < until) {
      const cause = new Error('the process ended by itself several times; it is not started again for a while');
      return { fault: 'suspended', until, cause };
    }
    return (await whenRoom(owner, running, access, () => start(target, credentials, key, owner))) ?? noRoom(target);
  }

  /** Returns the running shared process. A process past its lifetime takes no new sessions. */
  function current(key: string): SharedProcess | null {
    const host = shared.get(key);
    return host !== undefined && !isOld(host) ? host : null;
  }

  function isOld(host: SharedProcess): boolean {
    return now() - host.startedAt > stdio.lifetimeMs;
  }

  function noRoom({ name }: StdioTarget): UpstreamFault {
    const why = 'no process slot is free, or too many processes were started for its user';
    log.warn({ target: name, processes: hosts.size }, `target process not started: ${why}`);
    return { fault: 'busy' };
  }

  async function open(
    request: UpstreamRequest,
    target: StdioTarget,
    credentials: Credentials,
    message: RpcMessage,
    located: Located,
  ): Promise<UpstreamAnswer | UpstreamFault> {
    if (message.kind !== 'request' || message.method !== 'initialize' || request.session !== undefined) return statusAnswer(400);
    const slot = { targetId: request.target.id, user: request.access.user };
    // The number of sessions that share no process is that of the processes.
    if (request.access.scope === null) return openIn(slot, request, target, credentials, message, located);
    if (!makeRoom(slot)) {
      log.warn({ target: target.name }, 'session of a shared process refused: there is no room');
      return { fault: 'busy' };
    }
    opening.add(slot);
    return openIn(slot, request, target, credentials, message, located).finally(() => opening.delete(slot));
  }

  async function openIn(
    slot: Slot,
    { access, signal }: UpstreamRequest,
    target: StdioTarget,
    credentials: Credentials,
    message: RpcRequest,
    located: Located,
  ): Promise<UpstreamAnswer | UpstreamFault> {
    const host = await hostFor(target, access, credentials);
    if (isFault(host)) return host;
    const opened = await host.open(access.user, message, located, signal);
    const session = isFault(opened) ? undefined : host.sessions.get(opened.sessionId ?? '');
    if (session !== undefined) seats.set(session.id, { ...slot, host, session, binding: access.binding });
    return opened;
  }

  /** Makes room for one more session of a shared process. False: there is none, and no session can be evicted. */
  function makeRoom(wanted: Slot): boolean {
    const open = [...seats.values()].filter(({ host }) => host.shared);
    const competing = competitors(open, [...opening], wanted, MAX_SESSIONS);
    if (competing === null) return true;
    const byLastUse = competing.sessions.toSorted((a, b) => a.session.lastUsed - b.session.lastUsed);
    const evicted = toEvict(byLastUse, wanted.user, competing.opening, ({ session }) => session.streams === 0);
    if (evicted !== null) leave(evicted, new ProcessFault('busy', 'the session was ended: another session needs its room'));
    return evicted !== null;
  }

  const isBound = ({ host, targetId, binding }: Seat, { target, access }: Reach): boolean =>
    targetId === target.id && addresses.get(host) === addressOf(target) && binding === access.binding;

  function post(
    { host, session }: Seat,
    message: RpcMessage,
    located: Located,
    signal: Cancellable | undefined,
  ): UpstreamAnswer | UpstreamFault {
    // The 404 makes the session move to a new process with this request.
    if (host.shared && message.kind === 'request' && isOld(host)) return statusAnswer(404);
    return host.post(session, message, located, signal);
  }

  function leave(seat: Seat, cause?: Error): UpstreamAnswer {
    seats.delete(seat.session.id);
    seat.host.leave(seat.session, cause);
    return statusAnswer(200);
  }

  return {
    /** Returns how many processes exist, including those that are ending. */
    processes: (): number => hosts.size,
    async send(request: UpstreamRequest): Promise<UpstreamAnswer | UpstreamFault> {
      const { target, access, method, signal } = request;
      if (target.transport !== 'stdio') return { fault: 'transport' };
      if (isClosed) return { fault: 'busy', cause: new Error('the gateway is shutting down') };
      const seat = seats.get(request.session?.upstreamId ?? '');
      // A session can always be ended, even if the credentials have changed.
      if (method === 'DELETE') return seat?.targetId === target.id ? leave(seat) : statusAnswer(404);
      const { credentials } = access;
      if (credentials === 'unusable') return { fault: 'credential' };
      // Processes speak only the stateful revisions.
      if (request.stateless !== undefined) return statusAnswer(400);
      const isOwn = seat !== undefined && isBound(seat, request);
      if (request.session !== undefined && !isOwn) return statusAnswer(404);
      if (method === 'GET') return isOwn ? seat.host.listen(seat.session, signal) : statusAnswer(400);
      const reading = readLargeJson(request.body ?? '', OWN_RULES, sourceAt(request));
      const located = 'then' in reading ? await reading : reading;
      if (!located.ok) return statusAnswer(400);
      const message = readMessage(located.value);
      if (message.kind === 'invalid') return statusAnswer(400);
      // A message that was handled in the meantime may have ended the session.
      if (isOwn && seats.get(seat.session.id) !== seat) return statusAnswer(404);
      return ifStillAllowed(request, async () =>
        isOwn ? post(seat, message, located, signal) : open(request, target, credentials, message, located),
      );
    },
    async close(): Promise<void> {
      isClosed = true;
      clearInterval(sweeper);
      for (const host of hosts) host.end('the gateway is shutting down');
      await inTime(Promise.all([...hosts].map(({ gone }) => gone)), CLOSE_MS);
    },
  };
}
