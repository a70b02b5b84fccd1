/** Promises that something else resolves, and time limits for promises. */

/**
 * A value that is usually there at once. Await it only if it is a promise: each await in a request costs about as much as reading a
 * message, and the listener for a body should be attached before the body arrives. On the path of a call, an async function ends with
 * `return await`: a promise that it returns as it is costs two more steps and another promise.
 */
export type Now<T> = T | Promise<T>;

/** Returns the result of `next`, which is called at once if the value is there. */
export function whenThere<T, U>(value: Now<T>, next: (value: T) => Now<U>): Now<U> {
  return value instanceof Promise ? value.then(next) : next(value);
}

const turnOver = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

let endOfTurn: Promise<void> | null = null;

/** Resolves when this turn of the event loop has read what its sockets have. All that ask in one turn get the same promise. */
export function turnEnd(): Promise<void> {
  endOfTurn ??= turnOver().then(() => {
    endOfTurn = null;
  });
  return endOfTurn;
}

/** A turn waits for nothing: it only looks at what the sockets have. So this many turns are short while there is little to do. */
const MOST_TURNS = 4;

/**
 * Resolves in a later turn of the event loop: the first in which `count` did not grow. Larger batches cost less for each of their members,
 * and what arrives meanwhile would keep the thread busy anyway.
 */
export async function gathered(count: () => number): Promise<void> {
  for (let turn = 0, before = -1; turn < MOST_TURNS && count() > before; turn++) {
    before = count();
    await turnOver();
  }
}

/** Returns a promise together with the function that resolves it. */
export function deferred<T = void>(): { readonly promise: Promise<T>; readonly resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => undefined;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** Returns the result of the work. null: it takes longer than `ms` milliseconds. Rejects if the work fails first. */
export async function inTime<T>(work: Promise<T>, ms: number): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<null>((resolve) => {
    timer = setTimeout(() => resolve(null), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
