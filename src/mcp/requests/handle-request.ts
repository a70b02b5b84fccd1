/** Handles the request of an admitted caller: decide, record, forward, filter, answer. */

import type { Outcome } from '../../audit/records/records.ts';
import type { Now } from '../../base/promises.ts';
import { type Answer, refuse, tooManyCalls, unavailable } from '../../protocol/answer.ts';
import { LISTEN } from '../../protocol/listen.ts';
import type { Rejection } from '../../protocol/message.ts';
import { methodNotFound, type Operation, readExtension } from '../../protocol/operation.ts';
import { mayUseTarget } from '../../state/admission.ts';
import { forwardAnswer } from '../answers/upstream-messages.ts';
import { authorize, ifRecorded, recordEnd, type Verdict } from '../context/authorize.ts';
import { type Caller, type ClientRequest, contextOf, type RequestContext } from '../context/context.ts';
import { denied, forwardFailure } from '../context/failure.ts';
import { mayReply, whenConnected } from '../context/own-account.ts';
import { callerOfStream } from '../context/readmission.ts';
import { taskScopeAt } from '../context/tasks-of-caller.ts';
import { openTask, type Task, toolOf } from '../sessions/tasks.ts';
import { listeningStream } from './listening.ts';
import { prepare } from './prepare.ts';
import { forwardStateful, openedSession, type Reached } from './session-requests.ts';
import { discovered, forwardStateless } from './stateless-requests.ts';

export async function handleRequest(arrived: Caller, request: ClientRequest): Promise<Answer> {
  const { deps } = arrived;
  const { client, message } = request;
  const { id, method, params } = message;
  const leave = deps.calls.take(arrived.claims);
  if (leave === null) return tooManyCalls(id);
  /** Ends the call if a step throws. Otherwise a slot of the caller, and the outcome, would be lost. */
  let endOfFault: (outcome: Outcome) => void = leave;
  try {
    // Retries that reply to the gateway's own question are rare: others must not wait for a promise.
    const caller = mayReply(request) ? await whenConnected(arrived, request) : arrived;
    if (caller === null) {
      leave();
      return unavailable(id);
    }
    const resolved = resolve(caller, request);
    if ('code' in resolved) {
      leave();
      return refuse(id, resolved);
    }

    // Decide, and record: nothing may follow from a decision that is not durable (law 5).
    const { operation } = resolved;
    const verdict = await ifRecorded(caller, authorize(caller, { method, operation, params }));
    if (verdict === null) {
      leave();
      return unavailable(id);
    }
    const ending = endOnce(caller, method, verdict, leave);
    const { end } = ending;
    endOfFault = end;
    if (!verdict.allowed) {
      end('denied');
      return denied(caller, client.mode, message, operation, verdict);
    }

    // Rebuild the message from its checked members (law 9).
    const { changeItem } = request;
    const awaited = {
      id,
      method,
      params,
      operation,
      task: resolved.task,
      client,
      decisionId: verdict.decisionId,
      changeItem,
      end,
    };
    const context = contextOf(caller, verdict.target, client.mode, awaited);
    const preparing = prepare(context, request);
    const prepared = preparing instanceof Promise ? await preparing : preparing;
    if ('kind' in prepared) {
      end('error');
      return prepared;
    }

    // Forward.
    ending.forwarded();
    const forwarding = prepared.listened === null ? context : { ...context, ...prepared.listened };
    const reached = await (client.mode === 'stateless'
      ? forwardStateless(forwarding, client, prepared)
      : forwardStateful(forwarding, prepared));
    if ('kind' in reached) {
      end('error');
      return reached;
    }

    // Filter, record what a list shows, and answer.
    return await answerWith({ ...forwarding, linked: reached.linked }, reached);
  } catch (err) {
    endOfFault('error');
    throw err;
  }
}

/**
 * Resolves methods that the target lists, and tasks, whose ids are sealed. Resolves nothing if the caller may not use the
 * target: the request is then decided as a use of the target and refused, so the answer reveals nothing about those methods.
 */
function resolve(
  caller: Caller,
  { client: { mode }, message: { method, params }, operation }: ClientRequest,
): { readonly operation: Operation; readonly task: Task | null } | Rejection {
  const target = caller.admission.snapshot.targets.get(caller.targetName);
  if (operation.kind === 'task') {
    const task = target === undefined ? null : openTask(taskScopeAt(caller, target), operation.taskId);
    return task === null ? { operation, task } : { operation: toolOf(task), task };
  }
  if (operation.kind !== 'extension' || target === undefined || !mayUseTarget(caller.admission, target))
    return { operation, task: null };
  const listed = target.extension_methods.find((extension) => extension.method === method);
  if (listed === undefined) return methodNotFound(mode);
  const read = readExtension(listed, params);
  return 'code' in read ? read : { operation: read, task: null };
}

function answerWith(context: RequestContext, { answer, error }: Reached): Now<Answer> {
  if (answer.status !== 200) return forwardFailure(context, answer, error);
  const { listening, awaited } = context;
  if (listening !== undefined && answer.type === 'stream') {
    const caller = callerOfStream(context.caller);
    return { kind: 'stream', events: listeningStream({ ...context, caller, listening }, answer), drain: false };
  }
  const answering = forwardAnswer(context, answer);
  switch (awaited.method) {
    case 'initialize':
      return answering.then((answered) => openedSession(context, answer, answered));
    case 'server/discover':
      return answering.then((answered) => discovered(context, answered));
    default:
      return answering;
  }
}

function endOnce({ deps, targetName, arrivedAt, wholeAt }: Caller, method: string, verdict: Verdict, leave: () => void) {
  let ended = false;
  let addedMs: number | null = null;
  return {
    /** Called when the request is sent to its target. */
    forwarded(): void {
      addedMs = performance.now() - wholeAt;
    },
    /** Only the first end counts. */
    end(outcome: Outcome | null): void {
      if (ended) return;
      ended = true;
      leave();
      if (outcome === null) return;
      recordEnd({ deps, arrivedAt }, verdict, outcome);
      // The client decides how long such a stream lasts, so its duration measures nothing.
      if (method === LISTEN) return;
      deps.observe.ended({ method, targetName, outcome, tookMs: performance.now() - wholeAt, addedMs });
    },
  };
}
