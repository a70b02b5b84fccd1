/** Engines of policy sets that are asked about, beside the one that decides requests. */
import { createEngine, type LoadedEngine, type PolicyModule } from '../decision/engine.ts';
import type { Policy } from './document.ts';

/** Of a stored set. The last one is kept: compiling takes long, and most questions are about the set of the question before. */
export type SetEngines = (policies: readonly Policy[], revision: number) => Promise<LoadedEngine>;

export function createSetEngines(module: PolicyModule): SetEngines {
  let last: { readonly json: string; readonly engine: Promise<LoadedEngine> } | null = null;
  return (policies, revision) => {
    const json = JSON.stringify([revision, policies]);
    if (last?.json === json) return last.engine;
    const engine = createEngine({ module, policies, revision });
    const made = { json, engine };
    last = made;
    engine.catch(() => {
      if (last === made) last = null;
    });
    return engine;
  };
}
