/** The decisions, and the state that they use. */

import { rightStore } from '../auth/right-store.ts';
import { inSlices } from '../base/turns/slices.ts';
import { createDecisionCache } from '../engine/cache.ts';
import { keepPatterns } from '../engine/compile/pattern.ts';
import type { Engine } from '../engine/decision.ts';
import { loadPolicyModule } from '../engine/engine.ts';
import { createNextEngine } from '../engine/engines.ts';
import { createStoredSet } from '../policies/stored-set.ts';
import { enabledProviders } from '../providers/provider-store.ts';
import { sessionRules } from '../sessions/rules.ts';
import type { Admit } from '../state/admission.ts';
import { readIdentities } from '../state/identity-store.ts';
import { createCurrent } from '../state/live-state.ts';
import { routedTargets } from '../targets/credentials.ts';
import { type Base, timed } from './base.ts';

export const GATE_TIMEOUT_MS = 5_000;
// Everything is read and compiled at the start, perhaps beside other starts on the same machine.
const FIRST_LOAD_TIMEOUT_MS = 60_000;
const DECISIONS_KEPT = 50_000;

export type Decisions = Awaited<ReturnType<typeof createDecisions>>;

export async function createDecisions({ config, log, vault, database, changes, metrics, now }: Base) {
  const module = await loadPolicyModule();
  const decisions = createDecisionCache(DECISIONS_KEPT);
  const readStoredSet = createStoredSet();
  const onFault = (err: unknown): void => log.error({ err }, 'decision failed and became a deny');
  const next = createNextEngine({ module, onFault });
  const current = createCurrent({
    database,
    changes,
    policies: async (db) => (await readStoredSet(db)).policies,
    targets: (db, ids) => routedTargets(db, vault, ids),
    sessions: (db) => sessionRules(db, now()),
    rights: (db) => rightStore(db).all(),
    providers: enabledProviders,
    identities: readIdentities,
    build: async (policies, revision) => {
      await inSlices(keepPatterns(policies.flatMap(({ enabled, resource_pattern }) => (enabled ? [resource_pattern] : []))));
      const engine = await next.engineOf(policies, revision);
      for (const finding of engine.findings) log.error({ finding, revision }, 'stored policy cannot be compiled as it is');
      return timedEngine(decisions.over(engine), (ms) => metrics.decision.observe(ms));
    },
    gateTimeoutMs: GATE_TIMEOUT_MS,
    boundMs: config.freshnessMs,
    now: () => performance.now(),
    clock: now,
    localSignIn: config.localSignIn,
  });
  const admit: Admit = (claims) => timed(metrics.gate, () => current.admit(claims));
  // A gateway that cannot load its state must not continue to start.
  await current.fresh(FIRST_LOAD_TIMEOUT_MS);
  return { module, current, admit, readStoredSet, prepare: next.prepare };
}

/** Calls `observe` with the duration of each question in milliseconds. */
function timedEngine(engine: Engine, observe: (ms: number) => void): Engine {
  const answered = <T>(began: number, answer: T): T => {
    observe(performance.now() - began);
    return answer;
  };
  return {
    revision: engine.revision,
    dataHash: engine.dataHash,
    engineHash: engine.engineHash,
    decide: (principal, target, object) => answered(performance.now(), engine.decide(principal, target, object)),
    decideMany: (principal, target, objects) => answered(performance.now(), engine.decideMany(principal, target, objects)),
    estimate: engine.estimate,
    decideTarget: (principal, target) => answered(performance.now(), engine.decideTarget(principal, target)),
  };
}
