/** Engines that are kept, because compiling takes long: those that decide requests, and those for questions about policy sets. */
import { createHash } from 'node:crypto';
import { inSlices } from '../base/turns/slices.ts';
import type { Policy } from './compile/policy.ts';
import { createEngine, type EngineOptions, type LoadedEngine, type PolicyModule } from './engine.ts';

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

/** Engines of further changes may be made before that of the last one is loaded. */
const KEPT = 3;

interface Made {
  readonly policies: readonly Policy[];
  readonly engine: Promise<LoadedEngine>;
}

/**
 * Makes the engines that decide requests. The gateway makes the engine of a set before it stores the set, because all later requests wait for
 * it.
 */
export function createNextEngine(options: Pick<EngineOptions, 'module' | 'onFault'>) {
  /** The most recently used one comes first. */
  let made: readonly Made[] = [];

  function keep(used: Made): Promise<LoadedEngine> {
    made = [used, ...made.filter((other) => other !== used)].slice(0, KEPT);
    // Also if it was kept before: it can have failed while it was compared.
    used.engine.catch(() => {
      made = made.filter((other) => other !== used);
    });
    return used.engine;
  }

  async function engineOf(policies: readonly Policy[]): Promise<LoadedEngine> {
    const sorted = policies.toSorted(byId);
    for (const known of made) {
      if (await inSlices(isSameInSteps(known.policies, sorted))) return keep(known);
    }
    return keep({ policies: sorted, engine: createEngine({ ...options, policies: sorted, revision: 0 }) });
  }

  return {
    /** Makes the engine of the set, and keeps it until there are newer ones. Rejects as `createEngine` does. */
    prepare: engineOf,
    /** Returns the engine of the stored set. Rejects as `createEngine` does. */
    engineOf: async (policies: readonly Policy[], revision: number): Promise<LoadedEngine> => ({
      ...(await engineOf(policies)),
      revision,
    }),
  };
}

const byId = (a: Policy, b: Policy): number => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);

/** Whether the compiler would make the same of both sets, which are sorted by id. */
function* isSameInSteps(one: readonly Policy[], other: readonly Policy[]): Generator<undefined, boolean> {
  if (one.length !== other.length) return false;
  for (const [i, policy] of one.entries()) {
    const same = other[i];
    if (policy === same) continue;
    if (same === undefined || compiledOf(policy) !== compiledOf(same)) return false;
    yield;
  }
  return true;
}

/** Everything that the compiler reads of the policy. */
function compiledOf({
  id,
  name,
  effect,
  priority,
  enabled,
  target_id,
  resource_type,
  resource_pattern,
  subjects,
}: Policy): string {
  const values = subjects.map(({ subject_type, subject_value }) => JSON.stringify([subject_type, subject_value]));
  return JSON.stringify([id, name, effect, priority, enabled, target_id, resource_type, resource_pattern, values.sort()]);
}
