/**
 * AbortController and AbortSignal in one plain object. Each request makes two and rarely uses them, and two objects of Node's own
 * classes would cost more than reading the message.
 */

import { deferred } from './promises.ts';

/** The part of AbortSignal that the gateway uses. Every AbortSignal is a Cancellable. */
export interface Cancellable {
  readonly aborted: boolean;
  readonly reason: unknown;
  /** Each listener is called once. */
  addEventListener(type: 'abort', listener: () => void, options: { readonly once: true }): void;
  removeEventListener(type: 'abort', listener: () => void): void;
}

export interface Cancellation extends Cancellable {
  abort(reason?: unknown): void;
}

class PlainCancellation implements Cancellation {
  aborted = false;
  reason: unknown = undefined;
  private listeners: (() => void)[] = [];

  abort(reason?: unknown): void {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason;
    const { listeners } = this;
    this.listeners = [];
    for (const listener of listeners) listener();
  }

  addEventListener(_type: 'abort', listener: () => void): void {
    if (!this.aborted) this.listeners.push(listener);
  }

  removeEventListener(_type: 'abort', listener: () => void): void {
    const at = this.listeners.indexOf(listener);
    if (at !== -1) this.listeners.splice(at, 1);
  }
}

/** Calls the listener when the signal aborts; at once if it already has. */
export function onAbort(signal: Cancellable | undefined, listener: () => void): void {
  if (signal?.aborted) listener();
  else signal?.addEventListener('abort', listener, { once: true });
}

/** Resolves like the work, or with null as soon as the signal aborts. */
export async function unlessAborted<T>(work: Promise<T>, signal: Cancellable | undefined): Promise<T | null> {
  const { promise: aborted, resolve } = deferred<null>();
  const abort = (): void => resolve(null);
  onAbort(signal, abort);
  try {
    return await Promise.race([aborted, work]);
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

export const createCancellation = (): Cancellation => new PlainCancellation();

/** The same as an AbortSignal, for `AbortSignal.any` and for libraries. */
export function signalOf(cancellable: Cancellable): AbortSignal {
  if (cancellable instanceof AbortSignal) return cancellable;
  const controller = new AbortController();
  if (cancellable.aborted) controller.abort(cancellable.reason);
  else cancellable.addEventListener('abort', () => controller.abort(cancellable.reason), { once: true });
  return controller.signal;
}
