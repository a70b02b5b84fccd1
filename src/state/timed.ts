/** An engine that measures how long its answers take. */
import type { Engine } from '../engine/decision.ts';

/** Calls `observe` with the duration of each question in milliseconds. */
export function timedEngine(engine: Engine, observe: (ms: number) => void): Engine {
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
    decideTarget: (principal, target) => answered(performance.now(), engine.decideTarget(principal, target)),
  };
}
