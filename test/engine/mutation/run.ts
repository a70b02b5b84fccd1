/** Makes mutants and has them judged. The same seeds give the same mutants. */

import { type CompiledDocument, compile } from '../../../src/engine/compile/compile.ts';
import { loadPolicyModule, type PolicyModule } from '../../../src/engine/engine.ts';
import { FAULTS, spoil } from './documents.ts';
import { PATCHES, patched } from './sources.ts';
import { notices, type Trial, trials } from './suite.ts';

export interface Mutants {
  /** Seeds for each kind of fault of a document. */
  readonly seeds: number;
  /** Every nth patch of the compiler's source. */
  readonly everyNthPatch: number;
  /** The maximum number of policy sets that each mutant is tried on. */
  readonly trials: number;
}

export interface Score {
  readonly mutants: number;
  readonly killed: number;
  readonly survivors: readonly string[];
  /** The average number of policy sets until a mutant was noticed. */
  readonly effort: number;
}

interface Known extends Trial {
  readonly document: CompiledDocument;
}

export async function runMutants({ seeds, everyNthPatch, trials: count }: Mutants): Promise<Score> {
  const module = await loadPolicyModule();
  const known = trials(count).map((trial) => ({ ...trial, document: documentOf(module, trial) }));
  const survivors: string[] = [];
  let [mutants, efforts] = [0, 0];
  for (const trial of known) {
    if (notices(module, trial.document, trial)) throw new Error('The suite finds fault with the unchanged compiler');
  }
  function judge(name: string, mutate: (trial: Known, i: number) => CompiledDocument | null | 'thrown'): void {
    mutants++;
    for (const [i, trial] of known.entries()) {
      efforts++;
      const document = mutate(trial, i);
      if (document === 'thrown' || (document !== null && notices(module, document, trial))) return;
    }
    survivors.push(name);
  }

  for (const [kind, fault] of Object.entries(FAULTS)) {
    for (let seed = 0; seed < seeds; seed++) {
      // Each seed starts with a different policy set, so that mutants of a kind differ.
      judge(`${kind} (seed ${seed})`, (_, i) => {
        const trial = known[(i + seed * 7) % known.length];
        if (trial === undefined) return null;
        const spoilt = spoil(trial.document, fault, numbers(seed * 1_000 + i));
        return spoilt !== null && notices(module, spoilt, trial) ? 'thrown' : null;
      });
    }
  }
  for (const patch of PATCHES.filter((_, i) => i % everyNthPatch === 0)) {
    const { copy, remove } = await patched(patch);
    try {
      judge(`${patch[0]}: ${patch[1]} -> ${patch[2]}`, ({ policies }) => {
        try {
          return copy.compile(policies, { checkPattern: module.checkStoredPattern }).document;
        } catch {
          return 'thrown';
        }
      });
    } finally {
      remove();
    }
  }
  return { mutants, killed: mutants - survivors.length, survivors, effort: efforts / mutants };
}

const documentOf = (module: PolicyModule, { policies }: Trial): CompiledDocument =>
  compile(policies, { checkPattern: module.checkStoredPattern }).document;

/** Returns a small generator (mulberry32) of random numbers below a limit. */
function numbers(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}
