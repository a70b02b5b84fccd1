/** Timing, the same for every engine. Times are microseconds. */
import type { Answer, Running } from './peers/peer.ts';
import type { Question } from './workload.ts';

export interface Figures {
  readonly asked: number;
  readonly p50: number;
  readonly p99: number;
  readonly mean: number;
  readonly byKind?: Readonly<Record<Question['kind'], number>>;
}

export function figuresOf(times: readonly number[]): Figures {
  const sorted = Float64Array.from(times).sort();
  const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
  return { asked: sorted.length, p50: at(0.5), p99: at(0.99), mean: times.reduce((sum, time) => sum + time, 0) / times.length };
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const [low = Number.NaN, high = Number.NaN] = [sorted[middle - 1], sorted[middle]];
  return sorted.length % 2 === 0 ? (low + high) / 2 : high;
}

export interface Expected {
  readonly question: Question;
  readonly answer: Answer;
}

/** Asks what there is time for, one after the other. Throws at the first answer that is not the oracle's. */
export async function measure(
  name: string,
  { ask }: Running,
  warmUp: readonly Question[],
  asked: readonly Expected[],
  budgetMs: number,
): Promise<Figures> {
  const warmUntil = performance.now() + budgetMs / 2;
  for (const question of warmUp) {
    if (performance.now() > warmUntil) break;
    await ask(question);
  }
  const times: number[] = [];
  const kinds: Record<Question['kind'], number[]> = { hit: [], miss: [], default: [] };
  const until = performance.now() + budgetMs;
  for (const { question, answer } of asked) {
    const before = performance.now();
    let given = ask(question);
    // Waiting for what is there already would be timed, too.
    if (given instanceof Promise) given = await given;
    const now = performance.now();
    const time = (now - before) * 1_000;
    times.push(time);
    kinds[question.kind].push(time);
    const right = given.effect === answer.effect && (given.policyId === undefined || given.policyId === answer.policyId);
    if (!right)
      throw new Error(`${name} answers ${JSON.stringify(given)}, not ${JSON.stringify(answer)}: ${JSON.stringify(question)}`);
    if (now > until) break;
  }
  const p50 = (kind: Question['kind']): number => figuresOf(kinds[kind]).p50;
  return { ...figuresOf(times), byKind: { hit: p50('hit'), miss: p50('miss'), default: p50('default') } };
}
