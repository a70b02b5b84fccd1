/** A cache of decisions. Entries do not expire: a key contains everything that a decision depends on. */
import { hash } from 'node:crypto';
import { createRecent, entered } from '../base/kept.ts';
import type { Decision, Engine, NamedObject, PrincipalFacts } from './decision.ts';
import { SHORT_MS } from './estimate.ts';

/** Do not cache decisions whose key is longer: they are not worth their memory. */
const MAX_KEY = 4_096;

/** A key contains role and groups, or their digest if they have more characters. */
const MAX_FACTS = 256;

/** The number of policy sets that have a number: those of engines that requests may still use, and some more. */
const MAX_SETS = 64;

/** About what a cached decision takes beside its key, in characters. Most keys are not longer than this. */
const DECISION_LENGTH = 128;

/** Holds at most `capacity` decisions, those that were used last, and fewer if many have long names. */
export function createDecisionCache(capacity: number) {
  const kept = createRecent<string, Decision>(2 * DECISION_LENGTH * capacity, (key) =>
    Math.max(2 * DECISION_LENGTH, DECISION_LENGTH + key.length),
  );

  /** Keys contain a number instead of two hashes, because it is shorter. No number is ever reused for a different set. */
  const sets = new Map<string, number>();
  let given = 0;
  function setNumber({ dataHash, engineHash }: Engine): number {
    return entered(sets, `${dataHash} ${engineHash}`, () => ++given, MAX_SETS);
  }

  function remember(key: string, decision: Decision): void {
    // Do not cache a fault: it may not happen again.
    if (decision.reason === 'error' || key.length > MAX_KEY) return;
    kept.set(key, decision);
  }
  function orAsk(key: string, ask: () => Decision): Decision {
    const known = kept.get(key);
    if (known !== undefined) return known;
    const decision = ask();
    remember(key, decision);
    return decision;
  }

  return {
    /** The number of decisions in the cache. */
    get size() {
      return kept.size;
    },
    /** Returns an engine that evaluates only what is not cached. One cache serves all engines of a process, old and new. */
    over: (engine: Engine): Engine => {
      const set = setNumber(engine);
      return {
        revision: engine.revision,
        dataHash: engine.dataHash,
        engineHash: engine.engineHash,
        decide: (principal, target, object) =>
          orAsk(objectKey(callerKey(set, principal, target), object), () => engine.decide(principal, target, object)),
        decideMany: (principal, target, objects) => {
          const caller = callerKey(set, principal, target);
          const keys = objects.map((object) => objectKey(caller, object));
          const decisions = keys.map(kept.get);
          const missing = [...decisions.keys()].filter((i) => decisions[i] === undefined);
          const asked = missing.flatMap((i) => objects[i] ?? []);
          const answers = engine.decideMany(principal, target, asked);
          missing.forEach((i, at) => {
            const answer = answers[at];
            if (answer !== undefined) remember(keys[i] ?? '', answer);
            decisions[i] = answer;
          });
          return decisions.map((decision) => decision ?? { effect: 'deny', reason: 'error', policy: null });
        },
        estimate: (principal, target, objects) => {
          const ms = engine.estimate(principal, target, objects);
          if (ms <= SHORT_MS) return ms;
          const caller = callerKey(set, principal, target);
          const missing = objects.filter((object) => kept.get(objectKey(caller, object)) === undefined);
          return missing.length === objects.length ? ms : engine.estimate(principal, target, missing);
        },
        decideTarget: (principal, target) =>
          orAsk(callerKey(set, principal, target), () => engine.decideTarget(principal, target)),
      };
    },
  };
}

/** Each text follows its length, so that two different callers never share a key, not even with odd names. */
function callerKey(set: number, { sub, role, groups }: PrincipalFacts, target: string): string {
  let facts = `${role.length}:${role}${groups.length}`;
  for (const group of groups) facts += `:${group.length}:${group}`;
  if (facts.length > MAX_FACTS) facts = `#${hash('sha256', facts, 'base64')}`;
  return `${set}:${target.length}:${target}${sub.length}:${sub}${facts}`;
}

const objectKey = (caller: string, { resource_type, resource_name }: NamedObject): string =>
  `${caller}|${resource_type}:${resource_name}`;
