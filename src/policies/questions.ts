/** Answers questions about policies with the engine that decides requests. */
import { perObject } from '../base/kept.ts';
import { pause } from '../base/turns/slices.ts';
import type { Effect } from '../engine/compile/policy.ts';
import type { DecidingPolicy, DecisionReason, Engine, NamedObject } from '../engine/decision.ts';
import type { Question } from '../engine/explain.ts';
import { isDecidableResource } from '../protocol/uri.ts';

export interface Answered {
  readonly effect: Effect;
  /** `not_canonical`: the URI is ambiguous, so the gateway refuses it before it evaluates any policy. */
  readonly reason: DecisionReason | 'not_canonical';
  readonly policy: DecidingPolicy | null;
}

/** Kept, because a matrix asks about the same objects for each row. */
const isDecidable = perObject(
  ({ resource_type, resource_name }: NamedObject): boolean => resource_type !== 'resource' || isDecidableResource(resource_name),
);

/** Returns the answer that a request would get; for a URI template, the answer when it is listed or completed. */
export function decideOne(engine: Engine, { principal, targetId, object }: Question): Answered {
  if (object === null) return engine.decideTarget(principal, targetId);
  if (!isDecidable(object)) return { effect: 'deny', reason: 'not_canonical', policy: null };
  return engine.decide(principal, targetId, object);
}

/** Returns `decideOne` of each question, in order. Pauses in between. */
export async function decideEach(engine: Engine, questions: Iterable<Question>): Promise<Answered[]> {
  const answers: Answered[] = [];
  for (const question of questions) {
    await pause();
    answers.push(decideOne(engine, question));
  }
  return answers;
}
