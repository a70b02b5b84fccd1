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

/** Each hash keeps a core busy for some 50 ms. If the machine has several `cores`, one is left for requests. */
export function createPasswords(cores: number = availableParallelism()) {
  const atOnce = Math.max(1, Math.min(MAX_AT_ONCE, cores - 1));
  let running = 0;
  const waiting: (() => void)[] = [];

  async function inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (running < atOnce) running++;
    else if (waiting.length >= WAITING) {
      throw new AppError('too_many_requests', 'Too many passwords are being checked at the moment. Try again in a few seconds.', {
        retryAfter: 2,
      });
    } else await new Promise<void>((resolve) => waiting.push(resolve));
    try {
      return await work();
    } finally {
      // Hand the slot to the next waiting caller directly, so that no new caller can take it in between.
      const next = waiting.shift();
      if (next) next();
      else running--;
    }
  }

  /** The hash of a random password, which is verified if the user does not exist. */
  let decoy: Promise<string> | null = null;
  return {
    /** Throws AppError `too_many_requests` if too many callers wait. `verify` does the same. */
    hash: (password: string): Promise<string> => inTurn(() => hash(password, OWASP)),
    /** Takes equally long if the user does not exist (null), and then returns false. */
    verify: (passwordHash: string | null, password: string): Promise<boolean> =>
      inTurn(async () => {
        decoy ??= hash(randomBytes(16).toString('hex'), OWASP);
        const fits = await verify(passwordHash ?? (await decoy), password);
        return fits && passwordHash !== null;
      }),
  };
}
