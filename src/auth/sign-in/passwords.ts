/** Password hashes: argon2id with the parameters of OWASP's password storage cheat sheet. Only a few are computed at a time. */
import { randomBytes } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { hash, type Options, verify } from '@node-rs/argon2';
import { AppError } from '../../base/errors.ts';

export type Passwords = ReturnType<typeof createPasswords>;

// `algorithm` keeps its default, argon2id: the library's constant is an ambient const enum, which isolated modules cannot read.
const OWASP: Options = { memoryCost: 19_456, timeCost: 2, parallelism: 1 };
const MAX_AT_ONCE = 2;
const WAITING = 64;

interface Waiting {
  begin(): void;
  refuse(refusal: AppError): void;
}

/**
 * Each hash keeps a core busy for some 50 ms. If the machine has several `cores`, one is left for requests. `from` in the returned functions:
 * the network of the caller. Networks take turns, because one person can have thousands of addresses.
 */
export function createPasswords(cores: number = availableParallelism()) {
  const atOnce = Math.max(1, Math.min(MAX_AT_ONCE, cores - 1));
  let running = 0;
  /** The waiting callers by network. The first network has the next turn. */
  const queues = new Map<string, Waiting[]>();

  function admit(from: string): void {
    const all = [...queues.values()];
    if (all.reduce((sum, queue) => sum + queue.length, 0) < WAITING) return;
    const message = 'Too many passwords are being checked at the moment. Try again in a few seconds.';
    const refusal = new AppError('too_many_requests', message, { retryAfter: 2 });
    // One network must not keep out the others.
    const most = all.reduce((longest, queue) => (queue.length > longest.length ? queue : longest));
    if (most.length <= (queues.get(from)?.length ?? 0) + 1) throw refusal;
    most.pop()?.refuse(refusal);
  }

  /** Hands the slot to the next waiting caller directly, so that no new caller can take it in between. */
  function handOn(): void {
    const [turn] = queues;
    if (turn === undefined) {
      running--;
      return;
    }
    const [from, [first, ...rest]] = turn;
    queues.delete(from);
    if (rest.length > 0) queues.set(from, rest);
    first?.begin();
  }

  async function inTurn<T>(from: string, work: () => Promise<T>): Promise<T> {
    if (running < atOnce) running++;
    else {
      admit(from);
      await new Promise<void>((begin, refuse) => queues.set(from, [...(queues.get(from) ?? []), { begin, refuse }]));
    }
    try {
      return await work();
    } finally {
      handOn();
    }
  }

  /** The hash of a random password, which is verified if the user does not exist. */
  let decoy: Promise<string> | null = null;
  return {
    /** Throws AppError `too_many_requests` if too many callers wait. `verify` does the same. */
    hash: (password: string, from: string): Promise<string> => inTurn(from, () => hash(password, OWASP)),
    /** Takes equally long if the user does not exist (null), and then returns false. */
    verify: (passwordHash: string | null, password: string, from: string): Promise<boolean> =>
      inTurn(from, async () => {
        decoy ??= hash(randomBytes(16).toString('hex'), OWASP);
        const fits = await verify(passwordHash ?? (await decoy), password);
        return fits && passwordHash !== null;
      }),
  };
}
