/**
 * The standalone stream of a session. When the caller's rights change, the gateway tells the client that its lists may have
 * changed. When the upstream session is replaced, the stream continues on its successor.
 */

import { type Cancellable, onAbort, signalOf } from '../../base/cancellation.ts';
import type { OutEvent } from '../../protocol/answer.ts';
import type { Admission } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import { createMerge } from '../answers/merge.ts';
import { forwardStream } from '../answers/upstream-messages.ts';
import type { Caller, UpstreamContext } from '../context/context.ts';
import { type SessionTarget, sessionAt } from '../context/upstream-opening.ts';
import { isUpstreamSessionFailure } from '../context/upstream-sessions.ts';
import { bindingOf, type ListKind, type SessionPair } from '../sessions/sessions.ts';
import type { UpstreamStream } from '../upstream/upstream.ts';
import { sendInSession } from './session-requests.ts';

export const listChanged = (kind: ListKind): string =>
  JSON.stringify({ jsonrpc: '2.0', method: `notifications/${kind}/list_changed` });

/** Everything on which a caller's lists depend, policies included. If the text changes, the lists may have changed. */
export function rightsOf({ principal, snapshot }: Admission, target: RoutedTarget): string {
  const { role, groups } = principal;
  return JSON.stringify([role, groups, snapshot.engine.revision, bindingNow({ principal, snapshot }, target)]);
}

/** The binding that the upstream session must have now. */
export function bindingNow({ principal, snapshot }: Admission, target: RoutedTarget): string {
  return bindingOf(target.accessOf(principal), snapshot.sessions.epochOf(principal.sub, target.id));
}

/** Calls the listener when the caller's rights at the target have changed. Returns a function that unsubscribes. */
export function onRightsChanged(
  { caller, target }: Pick<UpstreamContext, 'caller' | 'target'>,
  listener: (admission: Admission, moved: RoutedTarget) => void,
): () => void {
  let rights = rightsOf(caller.admission, target);
  return caller.changes.listen((admission) => {
    const moved = admission.snapshot.targets.get(target.name);
    const rightsNow = moved === undefined ? rights : rightsOf(admission, moved);
    if (moved === undefined || rightsNow === rights) return;
    rights = rightsNow;
    listener(admission, moved);
  });
}

/** `first`: the stream that `context` describes, with a `callerOfStream`; `connection` aborts it. */
export async function* standaloneStream(
  context: UpstreamContext & { readonly linked: SessionPair },
  first: UpstreamStream,
  connection: AbortController,
): AsyncGenerator<OutEvent> {
  const { caller, target } = context;
  const { session } = context.linked;
  const merged = createMerge<OutEvent>();
  let current = connection;
  let binding = bindingNow(caller.admission, target);
  const follow = (stream: UpstreamStream, within: UpstreamContext, own: AbortController): void => {
    void merged.add(forwardStream(within, stream)).then(() => {
      // If the target ended the stream, the client opens it again.
      if (current === own) merged.end();
    });
  };
  const reconnect = async (moved: RoutedTarget): Promise<void> => {
    const own = new AbortController();
    const before = current;
    current = own;
    before.abort();
    const sessionTarget = sessionAt(session, moved, caller);
    const reached = await connectAt(caller, sessionTarget, AbortSignal.any([signalOf(caller.gone), own.signal]));
    if (current !== own) return;
    // If the target offers no stream, the client still gets the gateway's own notifications.
    if (reached === 'none') return;
    // The stream ends, so that the client opens it again.
    if (reached === null) return merged.end();
    const within = {
      ...context,
      target: moved,
      access: sessionTarget.access,
      linked: reached.linked,
      awaited: null,
    };
    follow(reached.stream, within, own);
  };
  const leave = onRightsChanged(context, (admission, moved) => {
    for (const kind of session.lists) merged.push({ data: listChanged(kind) }, kind);
    const next = bindingNow(admission, moved);
    if (next === binding) return;
    binding = next;
    void reconnect(moved);
  });
  const stop = (): void => merged.end();
  onAbort(caller.gone, stop);
  follow(first, context, connection);
  try {
    yield* merged.items;
  } finally {
    leave();
    caller.gone.removeEventListener('abort', stop);
    current.abort();
  }
}

export interface Connected {
  readonly stream: UpstreamStream;
  readonly linked: SessionPair;
}

/** HTTP statuses after which the target may offer its stream later. */
const BUSY = [409, 429];

/**
 * Opens the standalone stream of the upstream session. `none`: the target offers no stream. null: it cannot be opened now.
 * `after` returns the id of the event after which the stream resumes.
 */
export async function connectAt(
  caller: Caller,
  sessionTarget: SessionTarget,
  signal: Cancellable,
  after: (linked: SessionPair) => string | null = () => null,
): Promise<Connected | 'none' | null> {
  const { session } = sessionTarget;
  const link = await caller.deps.links.current(sessionTarget);
  if (isUpstreamSessionFailure(link)) return 'ended' in link ? 'none' : null;
  const lastEventId = after({ session, link }) ?? undefined;
  const reached = await sendInSession(caller, sessionTarget, { method: 'GET', signal, lastEventId }, null);
  if ('ended' in reached) return 'none';
  if ('fault' in reached) return null;
  const { answer, linked } = reached;
  if (answer.status === 200 && answer.type === 'stream') return { stream: answer, linked };
  answer.discard();
  return BUSY.includes(answer.status) || answer.status >= 500 ? null : 'none';
}
