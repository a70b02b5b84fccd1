/** The systems that are measured. */
import type { Guardian } from '../../test/support/databases/guardian.ts';
import type { Issuer } from './issuer.ts';
import type { Place } from './load-orders.ts';

export interface System extends Place {
  /** The tool as this system calls it. */
  readonly tool: string;
  /** Process whose time, with that of all its descendants, a call costs. */
  readonly pid: number;
  /** It must refuse callers without a token, and every other tool. */
  readonly guarded?: true;
  /** A database server that works for it: measured too, not counted into it. */
  readonly database?: { readonly name: string; readonly pid: number };
  /** Once its process has ended. */
  readonly release?: () => Promise<void>;
}

export interface Surroundings {
  readonly guardian: Guardian;
  /** The address of the target behind all systems. */
  readonly upstream: string;
  readonly issuer: Issuer;
  /** Nothing that takes minutes is installed. */
  readonly quick: boolean;
  say(line: string): void;
}

export interface Candidate {
  readonly name: string;
  /** The features that were switched on. */
  readonly on: string;
  /** Rejects with the reason why it cannot be had here. */
  start(surroundings: Surroundings): Promise<System>;
}
