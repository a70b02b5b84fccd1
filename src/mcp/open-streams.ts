/** The streams on which clients listen: how many a principal may have, and which caller may keep one. */
import type { ServerResponse } from 'node:http';
import type { Cancellation } from '../base/cancellation.ts';
import { AppError } from '../base/errors.ts';
import { type Answer, problem } from '../protocol/answer.ts';
import { type Admission, mayUseTarget } from '../state/admission.ts';
import { tooMany } from './arrival.ts';
import type { Caller } from './context/context.ts';
import type { McpLimits } from './limits/limits.ts';
import { AGGREGATE, fingerprintOf } from './sessions/sessions.ts';
import type { Work } from './work.ts';

export type OpenStreams = ReturnType<typeof createOpenStreams>;

export function createOpenStreams(limits: Pick<McpLimits, 'streamsPerPrincipal' | 'targetStreamsPerPrincipal'>) {
  /** By principal, with how many streams of targets each needs. */
  const streams = new Map<string, Map<Cancellation, number>>();
  const answers = new WeakSet<ServerResponse>();
  return {
    /** Takes a slot until the stream is closed, or returns why there is none. `needed`: how many streams of targets it needs. */
    open(principal: string, needed: number, res: ServerResponse, gone: Cancellation): Answer | null {
      // A client that left before this triggers no further event: it would keep its slot for ever.
      if (gone.aborted) return problem(new AppError('invalid_request', 'The client is gone.'));
      const open = streams.get(principal) ?? new Map<Cancellation, number>();
      const used = [...open.values()].reduce((sum, streams) => sum + streams, needed);
      const isOver = open.size >= limits.streamsPerPrincipal || (open.size > 0 && used > limits.targetStreamsPerPrincipal);
      if (isOver) {
        const { streamsPerPrincipal: own, targetStreamsPerPrincipal: ofTargets } = limits;
        return tooMany(
          `You have too many open streams: at most ${own}, with at most ${ofTargets} streams of targets behind them. Close some.`,
          10,
        );
      }
      streams.set(principal, open.set(gone, needed));
      answers.add(res);
      res.once('close', () => {
        open.delete(gone);
        if (open.size === 0 && streams.get(principal) === open) streams.delete(principal);
      });
      return null;
    },
    /** Whether the answer is such a stream: the client may close it at any time. */
    has: (res: ServerResponse): boolean => answers.has(res),
    count: (): number => [...streams.values()].reduce((sum, { size }) => sum + size, 0),
    end(): void {
      for (const stream of [...streams.values()].flatMap((open) => [...open.keys()])) stream.abort();
    },
  };
}

/**
 * Whether the caller may keep the stream that this work opens. null: it opens none. A stream belongs to a session, or to the
 * target as it is now: it ends when the session ends or the target moves.
 */
export function mayKeepStream(work: Work, { admission, targetName }: Caller): ((now: Admission) => boolean) | null {
  if (work.do === 'GET') {
    const { session } = work;
    if (session === null || session === 'missing') return null;
    return (now) =>
      !now.snapshot.sessions.ended.has(session.id) &&
      (session.fingerprint === AGGREGATE || mayUse(now, targetName, session.fingerprint));
  }
  if (work.do !== 'request' || work.request.operation.kind !== 'listen') return null;
  const target = admission.snapshot.targets.get(targetName);
  return (now) => target !== undefined && mayUse(now, targetName, fingerprintOf(target));
}

/** `fingerprint`: the fingerprint of the target when the stream was opened. */
function mayUse(admission: Admission, targetName: string, fingerprint: string): boolean {
  const target = admission.snapshot.targets.get(targetName);
  return target !== undefined && fingerprintOf(target) === fingerprint && mayUseTarget(admission, target);
}
