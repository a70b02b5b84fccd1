/**
 * Records what this replica has seen of each target, and suspends targets that fail (circuit breaker). Clients have little
 * influence on it:
 *
 * If a target is unreachable, it is suspended for everybody. Any other fault counts only while a session is opened or a list is
 * requested, and only for the principal that met it, because a target sees client input there.
 *
 * A timeout also keeps other principals with the same credentials away if two principals met it and the target has given no
 * answer for a while. Each of the others is kept away once, so that several accounts of one person cannot close a target to all.
 */
import { entered, perObject } from '../../base/kept.ts';
import { addressOf, type Target } from '../../targets/target.ts';
import {
  FAULTS,
  isFault,
  ProcessFault,
  type Reach,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamRequest,
} from './upstream.ts';

/** A target, and the principal on whose behalf it is asked. */
export interface Asked extends Reach {
  readonly principal: string;
  /** The list that is asked for, which can hang alone. Absent: a session. */
  readonly list?: string;
}

/** `http`: the target answered with an error status. */
export const FAULT_KINDS = [...FAULTS, 'http'] as const;

export interface LastFault {
  readonly at: number;
  readonly kind: (typeof FAULT_KINDS)[number];
  /** For administrators only: it may contain addresses. */
  readonly message: string;
  /** The end of the process's standard error. null: the target is not a process, or printed nothing. */
  readonly stderr: string | null;
}

export interface TargetReport {
  /** `suspended`: the target is not asked before `retry_at`. */
  readonly status: 'unknown' | 'ok' | 'failing' | 'suspended';
  readonly last_success_at: number | null;
  readonly last_fault: LastFault | null;
  readonly retry_at: number | null;
}

export type Health = ReturnType<typeof createHealth>;

interface Circuit {
  failures: number;
  /** Whether the last failure was a timeout. */
  slow: boolean;
  /** Until when the target is suspended, by the monotonic clock. 0: the circuit is closed. */
  until: number;
  /** Until when one request tests whether the target answers again. Other requests wait for its result. */
  probeUntil: number;
}

/** `missed`: the principals for whom the target was suspended; null: for all. One principal's faults must not keep the clients of others busy. */
type Recovered = (targetId: string, missed: ReadonlySet<string> | null) => void;

interface Seen {
  successAt: number | null;
  fault: LastFault | null;
}

/** The wait after a fault that came at once. The first such fault may be chance and causes no wait. */
const FIRST_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;
/** The wait after a timeout. */
const FIRST_SLOW_WAIT_MS = 5_000;
const MAX_SLOW_WAIT_MS = 60_000;
/** How long a test request blocks the next one: as long as a connection may take, because a call may take much longer. */
const PROBE_MS = 6_000;
/** For this time after an answer, the timeouts of other principals do not suspend the target. */
const TRUSTED_MS = 60_000;
/** Faults that say nothing about the target, or that are already counted for everybody. */
const UNCOUNTED: readonly UpstreamFault['fault'][] = [
  ...(['aborted', 'busy', 'credential', 'transport', 'suspended', 'account', 'changed'] as const),
  ...(['unreachable', 'denied_address'] as const),
];
const KEPT = 10_000;
const PRINCIPALS_KEPT = 100;
const MESSAGE_LENGTH = 2_000;

/**
 * `now`: milliseconds since the epoch. `elapsed`: milliseconds of a monotonic clock. A clock that is set back must not suspend a target for
 * as long.
 */
export function createHealth(now: () => number, elapsed: () => number = now) {
  const seen = new Map<string, Seen>();
  const reached = new Map<string, Circuit>();
  const opened = new Map<string, Map<string, Circuit>>();
  /** When the target last answered a principal with these credentials. */
  const answers = new Map<string, { at: number }>();
  const listeners = new Set<Recovered>();

  function entryOf(target: Target): Seen {
    return entered(seen, addressKey(target), () => ({ successAt: null, fault: null }), KEPT);
  }

  const epochOf = (at: number): number => now() + at - elapsed();

  function mayTry(circuit: Circuit): boolean {
    const at = elapsed();
    if (circuit.until === 0) return true;
    if (at < circuit.until || at < circuit.probeUntil) return false;
    circuit.probeUntil = at + PROBE_MS;
    return true;
  }

  function fail(circuit: Circuit, kind: UpstreamFault['fault']): void {
    circuit.failures++;
    circuit.slow = kind === 'timeout';
    circuit.probeUntil = 0;
    const { failures } = circuit;
    const wait =
      kind === 'timeout'
        ? Math.min(MAX_SLOW_WAIT_MS, FIRST_SLOW_WAIT_MS * 2 ** (failures - 1))
        : Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** (failures - 2));
    // A request that started earlier must not shorten the wait.
    if (kind === 'timeout' || failures > 1) circuit.until = Math.max(circuit.until, elapsed() + wait);
  }

  function suspended(circuit: Circuit): UpstreamFault {
    return { fault: 'suspended', until: epochOf(Math.max(circuit.until, circuit.probeUntil, elapsed())) };
  }

  function recovered(target: Target, missed: ReadonlySet<string> | null): void {
    for (const listener of listeners) listener(target.id, missed);
  }

  /** A test request that outlives the connection timeout has reached the target, even if its call continues for hours. */
  function closeIfConnected(target: Target, circuit: Circuit): void {
    if (circuit.probeUntil === 0 || elapsed() < circuit.probeUntil) return;
    recovered(target, null);
    circuit.until = 0;
    circuit.probeUntil = 0;
  }

  /** Records a fault. `text` is what the caller is told. */
  function note(target: Target, kind: LastFault['kind'], text: string, cause: unknown): void {
    const stderr = cause instanceof ProcessFault && cause.stderr !== '' ? cause.stderr : null;
    const why = causesOf(cause);
    const message = (why === '' ? text : `${text}: ${why}`).slice(0, MESSAGE_LENGTH);
    entryOf(target).fault = { at: now(), kind, message, stderr };
  }

  function settled(request: UpstreamRequest, answer: UpstreamAnswer | UpstreamFault): void {
    const { target } = request;
    const circuit = reached.get(addressKey(target));
    if (!isFault(answer)) {
      reached.delete(addressKey(target));
      if (circuit !== undefined) recovered(target, null);
      if (answer.status < 300) entryOf(target).successAt = now();
      return;
    }
    if (answer.fault === 'unreachable' || answer.fault === 'denied_address') {
      fail(entered(reached, addressKey(target), newCircuit, KEPT), answer.fault);
      note(target, answer.fault, 'cannot be reached', answer.cause);
    } else if (circuit !== undefined) circuit.probeUntil = 0;
  }

  /**
   * Returns the principal's own circuit. If the timeouts of others count, the principal's circuit starts with their wait and is
   * independent from then on.
   */
  function circuitFor(asked: Asked): Circuit | undefined {
    const circuits = opened.get(circuitsKey(asked));
    const own = circuits?.get(asked.principal);
    if (circuits === undefined || own !== undefined) return own;
    const met = [...circuits.values()].filter(({ slow }) => slow);
    if (met.length < 2 || elapsed() < (answers.get(bindingKey(asked))?.at ?? -Infinity) + TRUSTED_MS) return undefined;
    const until = Math.max(...met.map((circuit) => circuit.until));
    return entered(circuits, asked.principal, () => ({ ...newCircuit(), until }), PRINCIPALS_KEPT);
  }

  return {
    /** Wraps an upstream: it suspends unreachable targets and records every result. */
    watched: (upstream: Upstream): Upstream => ({
      send(request) {
        const circuit = reached.get(addressKey(request.target));
        if (circuit !== undefined) closeIfConnected(request.target, circuit);
        if (circuit !== undefined && request.method !== 'DELETE' && !mayTry(circuit)) {
          return Promise.resolve(suspended(circuit));
        }
        return upstream.send(request).then((answer) => {
          settled(request, answer);
          return answer;
        });
      },
      close: () => upstream.close(),
    }),
    /** Returns a fault if the target must not be asked for a session or a list now. null: ask, then call `failed` or `answered`. */
    refusal(asked: Asked): UpstreamFault | null {
      const circuit = circuitFor(asked);
      return circuit === undefined || mayTry(circuit) ? null : suspended(circuit);
    },
    failed(asked: Asked, kind: UpstreamFault['fault']): void {
      if (UNCOUNTED.includes(kind)) {
        const circuit = circuitFor(asked);
        if (circuit !== undefined) circuit.probeUntil = 0;
        return;
      }
      const circuits = entered(opened, circuitsKey(asked), () => new Map<string, Circuit>(), KEPT);
      fail(entered(circuits, asked.principal, newCircuit, PRINCIPALS_KEPT), kind);
    },
    answered(asked: Asked): void {
      entered(answers, bindingKey(asked), () => ({ at: 0 }), KEPT).at = elapsed();
      const circuits = opened.get(circuitsKey(asked));
      if (circuits === undefined) return;
      opened.delete(circuitsKey(asked));
      const missed = [...circuits].flatMap(([principal, { until }]) => (until > 0 ? [principal] : []));
      // More principals than are kept may have missed it.
      const isAll = circuits.size >= PRINCIPALS_KEPT;
      if (missed.length > 0) recovered(asked.target, isAll ? null : new Set(missed));
    },
    note,
    /** Calls the listener when a suspended target answers again. Returns how to unsubscribe. */
    onRecovered(listener: Recovered): () => void {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    report(target: Target): TargetReport {
      const address = addressKey(target);
      const { successAt = null, fault = null } = seen.get(address) ?? {};
      const all = [...opened]
        .filter(([key]) => (JSON.parse(key) as string[])[0] === address)
        .flatMap(([, circuits]) => [...circuits.values()]);
      const own = reached.get(address);
      const until = Math.max(0, ...[...all, ...(own === undefined ? [] : [own])].map((circuit) => circuit.until));
      const isFailing = fault !== null && (successAt === null || fault.at >= successAt);
      const isSuspended = until > elapsed();
      const status = isSuspended ? 'suspended' : isFailing ? 'failing' : successAt === null ? 'unknown' : 'ok';
      return { status, last_success_at: successAt, last_fault: fault, retry_at: isSuspended ? Math.round(epochOf(until)) : null };
    },
  };
}

const addressKey = perObject((target: Target): string => JSON.stringify([target.id, addressOf(target)]));

/** Requests with the same key reach the same server with the same credentials. */
export const bindingKey = ({ target, access }: Reach): string => JSON.stringify([target.id, addressOf(target), access.binding]);

const circuitsKey = ({ target, access, list }: Asked): string => JSON.stringify([addressKey(target), access.binding, list]);

const newCircuit = (): Circuit => ({ failures: 0, slow: false, until: 0, probeUntil: 0 });

function causesOf(cause: unknown): string {
  const words: string[] = [];
  for (let error = cause; error instanceof Error && words.length < 4; error = error.cause) {
    const { code } = error as NodeJS.ErrnoException;
    const said = error.message === '' ? (code ?? error.name) : error.message;
    words.push(code === undefined || said.includes(code) ? said : `${said} (${code})`);
  }
  return words.join('; ');
}
