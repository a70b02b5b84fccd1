/** Password hashes: argon2id with the parameters of OWASP's password storage cheat sheet. Only a few are computed at a time. */
import { randomBytes } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { hash, type Options, verify } from '@node-rs/argon2';
import { AppError } from '../../base/errors.ts';
import { createLine } from '../../base/turns/line.ts';

export type Passwords = ReturnType<typeof createPasswords>;

// `algorithm` keeps its default, argon2id: the library's constant is an ambient const enum, which isolated modules cannot read.
const OWASP: Options = { memoryCost: 19_456, timeCost: 2, parallelism: 1 };
const MAX_AT_ONCE = 2;
const WAITING = 64;
const refusal = (): AppError =>
  new AppError('too_many_requests', 'Too many passwords are being checked at the moment. Try again in a few seconds.', {
    retryAfter: 2,
  });

/**
 * Each hash keeps a core busy for some 50 ms. If the machine has several `cores`, one is left for requests. `from` in the returned functions:
 * the network of the caller. Networks take turns, because one person can have thousands of addresses.
 */
export function createPasswords(cores: number = availableParallelism()) {
  const atOnce = Math.max(1, Math.min(MAX_AT_ONCE, cores - 1));
  const inTurn = createLine({ atOnce, waiting: WAITING, refusal });
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
