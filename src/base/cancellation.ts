/** An abort signal in one plain object: each request makes two, and those of Node would cost more than reading the message. */

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

export const createCancellation = (): Cancellation => new PlainCancellation();

/** The same as an AbortSignal, for `AbortSignal.any` and for libraries. */
export function signalOf(cancellable: Cancellable): AbortSignal {
  if (cancellable instanceof AbortSignal) return cancellable;
  const controller = new AbortController();
  if (cancellable.aborted) controller.abort(cancellable.reason);
  else cancellable.addEventListener('abort', () => controller.abort(cancellable.reason), { once: true });
  return controller.signal;
}
