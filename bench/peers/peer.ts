/** The interface of every engine in the benchmark. */
import type { Policy } from '../../src/engine/compile/policy.ts';
import type { Question } from '../workload.ts';

export interface Answer {
  readonly effect: 'allow' | 'deny';
  /** The deciding policy, null where none did; undefined where the engine does not tell. */
  readonly policyId?: string | null;
}

export interface Running {
  readonly ask: (question: Question) => Answer | Promise<Answer>;
  /** Returns the memory of a separate process, in bytes. */
  readonly memory?: () => number;
  readonly close?: () => Promise<void> | void;
}

export interface Peer {
  readonly name: string;
  /** `network`: the figures hold a round trip over loopback and JSON both ways. */
  readonly kind: 'embedded' | 'network';
  /** Null, or what would have to be installed. */
  readonly missing: () => string | null;
  /** Sets larger than this are not asked of it: they take minutes to load or to answer. */
  readonly upTo: number;
  /** Whether the engine can express these policies. */
  readonly expresses?: (policies: readonly Policy[]) => boolean;
  /** `policies` in reading order. */
  readonly start: (policies: readonly Policy[]) => Promise<Running>;
}
