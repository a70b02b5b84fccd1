/** Decides a request by the policies, and records the decision before anything follows from it. */

import { captureArguments } from '../../audit/records/arguments.ts';
import { type AuditReason, type DecisionCause, decisionRecord, type Outcome } from '../../audit/records/records.ts';
import { principalKey } from '../../auth/principal.ts';
import type { JsonObject } from '../../base/json/json.ts';
import { laneOnce } from '../../base/turns/lane.ts';
import type { Decision } from '../../engine/decision.ts';
import type { Operation } from '../../protocol/operation.ts';
import { type Admission, isDecidedAlike, isLongDecision, mayUseTarget } from '../../state/admission.ts';
import type { RoutedTarget } from '../../targets/target.ts';
import type { Caller } from './context.ts';
import { readmit } from './readmission.ts';

export interface Question {
  /** The method as the audit log shows it. */
  readonly method: string;
  readonly operation: Operation;
  /** Parameters of the request. The target may want its arguments recorded. */
  readonly params?: JsonObject | undefined;
  readonly cause?: DecisionCause;
}

export type Verdict =
  | { readonly allowed: true; readonly decisionId: string; readonly target: RoutedTarget }
  /** `no_target`: the target does not exist, or the caller may not use it at all. Both get the same answer. */
  | {
      readonly allowed: false;
      readonly decisionId: string;
      readonly answer: 'no_target' | 'denied';
      readonly reason: AuditReason;
    };

const DENY = { effect: 'deny', policy: null } as const;

/** Decides and records. Rejects when the decision cannot be made durable: then nothing may follow from it. */
export async function authorize(caller: Caller, { method, operation, params, cause }: Question): Promise<Verdict> {
  const { deps, targetName } = caller;
  const object = operation.kind === 'object' ? operation.object : null;
  const { admission, target, answer } = isLong(caller, operation)
    ? await makeInLane(caller, operation, cause)
    : make(caller, caller.admission, operation);
  const { principal, snapshot } = admission;
  const decision = target === undefined ? NO_TARGET : answer;
  const allowed = target !== undefined && decision.effect === 'allow';
  const usable = allowed || (target !== undefined && object !== null && mayUseTarget(admission, target));
  // Check access first: otherwise the time spent on large arguments would reveal that the target exists (law 10).
  const capture = usable ? target.capture_arguments : null;
  const decisionId = deps.newId();
  await deps.audit.decision(
    decisionRecord(
      decisionId,
      deps.now(),
      {
        principal,
        target: { id: target?.id ?? null, name: targetName },
        method,
        resource_type: object?.resource_type ?? null,
        resource_name: object?.resource_name ?? null,
        arguments: capture === null ? null : captureArguments(capture.mask, method, params),
      },
      decision,
      snapshot.engine,
    ),
    cause ?? 'request',
  );
  if (allowed) return { allowed, decisionId, target };
  return { allowed: false, decisionId, answer: usable ? 'denied' : 'no_target', reason: decision.reason };
}

type Answer = Omit<Decision, 'reason'> & { readonly reason: AuditReason };

const NO_TARGET: Answer = { ...DENY, reason: 'no_target' };
const FAULT: Answer = { ...DENY, reason: 'error' };

/** A decision, and what it was made on. */
interface Made {
  readonly admission: Admission;
  readonly target: RoutedTarget | undefined;
  readonly answer: Answer;
}

/**
 * The id by which the target is decided. A name without a target is decided like a target without policies of its own: otherwise the time that
 * long names of objects take would tell which targets exist (law 10).
 */
const targetIdIn = ({ snapshot }: Admission, name: string): string => snapshot.targets.get(name)?.id ?? name;

function isLong({ admission, targetName }: Caller, operation: Operation): boolean {
  if (operation.kind !== 'object' || !operation.canonical) return false;
  return isLongDecision(admission, targetIdIn(admission, targetName), [operation.object]);
}

const make = ({ targetName }: Caller, admission: Admission, operation: Operation): Made => ({
  admission,
  target: admission.snapshot.targets.get(targetName),
  answer: decide(admission, targetIdIn(admission, targetName), operation),
});

const MOST_TURNS = 3;

/**
 * Decides in the lane, so that long decisions for one sender do not keep the requests of others waiting. A change that was answered meanwhile
 * must count (law 4): then it is decided again.
 */
async function makeInLane(caller: Caller, operation: Operation, cause: Question['cause']): Promise<Made> {
  const { admission: first, claims, targetName } = caller;
  const sender = cause === 'delivery' ? targetIdIn(first, targetName) : principalKey(claims);
  let admission = first;
  for (let turn = 1; ; turn++) {
    const at = admission;
    const made = await laneOnce(sender, () => make(caller, at, operation), false);
    const now = await readmit(caller);
    if (now === null) return { ...made, answer: FAULT };
    if (turn === MOST_TURNS || decidesAlike(at, now, targetName)) return made;
    admission = now;
  }
}

const decidesAlike = (a: Admission, b: Admission, targetName: string): boolean =>
  isDecidedAlike(a, b) && a.snapshot.targets.get(targetName) === b.snapshot.targets.get(targetName);

function decide({ snapshot: { engine }, principal }: Admission, targetId: string, operation: Operation): Answer {
  try {
    if (operation.kind !== 'object') return engine.decideTarget(principal, targetId);
    // Policies match text. If several texts mean the same object, a decision on one of them says nothing about the object.
    if (!operation.canonical) return { ...DENY, reason: 'not_canonical' };
    return engine.decide(principal, targetId, operation.object);
  } catch {
    return FAULT;
  }
}

/** The same for a message that names no object. */
export function authorizeUse(caller: Caller, method: string): Promise<Verdict> {
  return authorize(caller, { method, operation: { kind: 'target' } });
}

/** null: the decision cannot be recorded, so that the request must be refused. */
export function ifRecorded<T>({ deps }: Caller, decision: Promise<T>): Promise<T | null> {
  return decision.catch((err: unknown) => {
    deps.log.error({ err }, 'recording a decision failed; the request is refused');
    return null;
  });
}

/** Records how a decided message has ended. */
export function recordEnd(
  { deps, arrivedAt }: Pick<Caller, 'deps' | 'arrivedAt'>,
  { decisionId }: Pick<Verdict, 'decisionId'>,
  outcome: Outcome,
): void {
  deps.audit.outcome({ decision_id: decisionId, outcome, duration_ms: deps.now() - arrivedAt });
}
