/** Engines for questions about policy sets, separate from the engine that decides requests. */
import { createHash } from 'node:crypto';
import { inSlices } from '../base/turns/slices.ts';
import type { Policy } from './compile/policy.ts';
import { createEngine, type LoadedEngine, type PolicyModule } from './engine.ts';

/** Builds the engine of a stored set. Caches the last one: compiling takes long, and most questions are about the same set. */
export type EngineCache = (policies: readonly Policy[], revision: number) => Promise<LoadedEngine>;

export function createEngineCache(module: PolicyModule): EngineCache {
  let last: {
    readonly policies: readonly Policy[];
    readonly revision: number;
    readonly hash: string;
    engine: Promise<LoadedEngine>;
  } | null = null;
  return async (policies, revision) => {
    if (last?.policies === policies && last.revision === revision) return last.engine;
    const hash = await inSlices(hashInSteps(policies, revision));
    if (last?.hash === hash) return last.engine;
    const engine = createEngine({ module, policies, revision });
    const made = { policies, revision, hash, engine };
    last = made;
    engine.catch(() => {
      if (last === made) last = null;
    });
    return engine;
  };
}

function* hashInSteps(policies: readonly Policy[], revision: number): Generator<undefined, string> {
  const hash = createHash('sha256').update(String(revision));
  for (const policy of policies) {
    hash.update(JSON.stringify(policy));
    yield;
  }
  return hash.digest('base64');
}
