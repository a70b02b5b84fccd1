/**
 * The decision engine: the Rego rule in WASM over one compiled policy set. Only this file uses opa-wasm.
 *
 * The module computes the answer, from data and input only. If a set has more regexes than one instance can hold, several
 * instances hold a part each, and this file only takes the least of their ranks.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import type * as OpaWasm from '@open-policy-agent/opa-wasm';
import { atOnce, inSlices, type RunSteps } from '../base/turns/slices.ts';
import { type Compiled, compile, compileInSteps, type Finding } from './compile/compile.ts';
import { createPatternCheck, formIn, type PatternCheck, readPattern, workOfInSteps } from './compile/pattern.ts';
import type { Policy } from './compile/policy.ts';
import { firstUse, NOTHING, regexWeight, type Weight } from './compile/weight.ts';
import type { Decision, Engine, NamedObject, PrincipalFacts } from './decision.ts';
import { estimateInSteps, SHORT_MS } from './estimate.ts';
import { GOLDEN_POLICIES, GOLDEN_QUESTIONS, goldenId } from './golden.ts';
import { batches, listInput, objectInput, targetInput } from './input.ts';
import { type Bare, builtinsOf, type DataPiece, type Instance, loadInstance, type OpaExports, readResult } from './instance.ts';
import { layOutInSteps, MAX_PATTERNS } from './partition.ts';

/** The package's ES module lacks this function, although its types declare it. */
const { loadPolicySync } = createRequire(import.meta.url)('@open-policy-agent/opa-wasm') as typeof OpaWasm;

/** Node's own types do not declare this global. */
declare const WebAssembly: {
  compile(bytes: Uint8Array): Promise<object>;
  readonly RuntimeError: typeof Error;
};

/** The compiled Rego rule, verified. A process needs only one. */
export interface PolicyModule {
  /** SHA-256 (hex) of the module. */
  readonly hash: string;
  /** Checks a new pattern with the same engine that will run it. */
  readonly checkPattern: PatternCheck;
  /** Checks a stored pattern. Only patterns that stay regular expressions go through the engine. */
  readonly checkStoredPattern: PatternCheck;
  instantiate(): Bare;
}

export interface LoadedEngine extends Engine {
  readonly compiled: Compiled;
  /** Problems in the stored policies that the API would have refused. */
  readonly findings: readonly Finding[];
}

export interface EngineOptions {
  readonly module: PolicyModule;
  readonly policies: readonly Policy[];
  readonly revision: number;
  /** Called with each fault that was answered with deny. */
  readonly onFault?: (error: unknown) => void;
  /** How many regexes one instance may hold: at most MAX_PATTERNS. Tests set it. */
  readonly patternsPerInstance?: number;
}

/** The package root is two folders up: this file is in `src/engine` or `dist/engine`. */
const REGO = new URL('../../rego/', import.meta.url);

export async function loadPolicyModule(folder: URL = REGO): Promise<PolicyModule> {
  const [wasm, recorded] = await Promise.all([
    readFile(new URL('gateway.wasm', folder)),
    readFile(new URL('gateway.wasm.json', folder), 'utf8'),
  ]);
  return createPolicyModule(wasm, (JSON.parse(recorded) as { sha256: string }).sha256);
}

/** Rejects a module that is not the recorded one, needs the host to decide, or fails a golden question. */
export async function createPolicyModule(wasm: Uint8Array, sha256: string): Promise<PolicyModule> {
  const hash = createHash('sha256').update(wasm).digest('hex');
  if (hash !== sha256)
    throw new Error('gateway.wasm is not the file recorded in gateway.wasm.json: build it again, or restore it');
  const compiledModule = await WebAssembly.compile(wasm);

  function instantiate(): Bare {
    const policy = loadPolicySync(compiledModule);
    const { exports } = policy.wasmInstance as { exports: unknown };
    return { exports: exports as OpaExports, memory: policy.mem, entrypoints: policy.entrypoints };
  }
  // Check now: the SDK notices a missing built-in only when a rule calls it.
  const bare = instantiate();
  const needed = builtinsOf(bare);
  if (needed.length > 0)
    throw new Error(`gateway.wasm needs built-in functions of the host, which has none: ${needed.join(', ')}`);

  const admission = atOnce(loadInstance(bare, [{ path: [], value: '{}' }], 0));
  function isValid(pattern: string): boolean {
    try {
      return readResult(admission.ask('portcullis/gateway/valid_pattern', JSON.stringify({ pattern }))) === true;
    } catch {
      return false;
    }
  }
  const module: PolicyModule = {
    hash,
    checkPattern: createPatternCheck(isValid),
    checkStoredPattern: createPatternCheck(isValid, ({ kind }) => kind === 'regex'),
    instantiate,
  };
  const compiled = compile(GOLDEN_POLICIES, { checkPattern: module.checkStoredPattern });
  passGoldenQuestions(atOnce(loadEngine(compiled, { module, revision: 0 })));
  return module;
}

/** Compiles a policy set as its engine would. */
export function compileFor(module: PolicyModule, policies: readonly Policy[], run: RunSteps = inSlices): Promise<Compiled> {
  return run(compileInSteps(policies, { checkPattern: module.checkStoredPattern }));
}

/** Compiles, loads and self-tests a policy set. */
export async function createEngine({ policies, ...options }: EngineOptions, run: RunSteps = inSlices): Promise<LoadedEngine> {
  return run(loadEngine(await compileFor(options.module, policies, run), options));
}

/** Returns the patterns that match the name. The module itself tests them, without an index. */
export function fittingPatterns(module: PolicyModule, patterns: readonly string[], name: string): Promise<Set<string>> {
  return inSlices(fitInSteps(module, patterns, name));
}

function* fitInSteps(module: PolicyModule, patterns: readonly string[], name: string): Generator<undefined, Set<string>> {
  const fitting = new Set<string>();
  for (let from = 0; from < patterns.length; from += MAX_PATTERNS) {
    const loaded = patterns.slice(from, from + MAX_PATTERNS);
    const instance = yield* loadPatterns(module, loaded, 0);
    const nsOf = (pattern: string) => regexNs(firstUse, pattern, name);
    for (const part of yield* partsByTime(loaded, nsOf)) {
      for (const [, at] of matching(instance, [name], part)) fitting.add(loaded[at] ?? '');
      yield;
    }
  }
  return fitting;
}

/** Returns the names that the pattern matches. The module itself tests them. */
export function fittingNames(module: PolicyModule, pattern: string, names: readonly string[]): Promise<Set<string>> {
  return inSlices(fitNamesInSteps(module, pattern, names));
}

function* fitNamesInSteps(module: PolicyModule, pattern: string, names: readonly string[]): Generator<undefined, Set<string>> {
  const fitting = new Set<string>();
  const instance = yield* loadPatterns(module, [pattern], HEAP_PER_INSTANCE.most);
  // No request can name the others: the module refuses half a surrogate pair.
  const askable = names.filter((name) => name.isWellFormed());
  const nsOf = (name: string) => regexNs(laterUse, pattern, name);
  for (const part of yield* partsByTime(askable, nsOf)) {
    const asked = part.map((at) => askable[at] ?? '');
    for (const [at] of matching(instance, asked, [0])) fitting.add(asked[at] ?? '');
    yield;
  }
  return fitting;
}

/** Nanoseconds for a test of the name. */
function* regexNs(
  use: (cost: number, work: number | null) => Weight,
  pattern: string,
  name: string,
): Generator<undefined, number> {
  const reading = readPattern(pattern);
  const { name: each, byte } = typeof reading === 'string' ? NOTHING : use(reading.cost, yield* workOfInSteps(pattern, reading));
  return each + (byte + INPUT_BYTE_NS) * name.length;
}

const laterUse = (cost: number, work: number | null): Weight => regexWeight('', cost, work);

/** OPA reads some 60 bytes of JSON per microsecond. */
const INPUT_BYTE_NS = 17;

/** Returns the positions of the items in parts that take about a millisecond. A part has at least one item. Pauses after each item. */
function* partsByTime<T>(items: readonly T[], nsOf: (item: T) => Generator<undefined, number>): Generator<undefined, number[][]> {
  const parts: number[][] = [];
  let left = -1;
  for (const [at, item] of items.entries()) {
    const ns = yield* nsOf(item);
    left -= ns;
    if (left >= 0) parts.at(-1)?.push(at);
    else {
      parts.push([at]);
      left = SHORT_MS * 1e6 - ns;
    }
    yield;
  }
  return parts;
}

const loadPatterns = (module: PolicyModule, patterns: readonly string[], heapCeiling: number): Generator<undefined, Instance> =>
  loadInstance(module.instantiate(), [{ path: [], value: JSON.stringify({ patterns }) }], heapCeiling);

/** Returns the positions of each name and pattern that match. `patterns`: the positions of those to try. */
function matching(instance: Instance, names: readonly string[], patterns: readonly number[]): [name: number, pattern: number][] {
  const tries = names.flatMap((_, name) => patterns.map((pattern) => [name, 0, pattern]));
  const found = readResult(instance.ask('portcullis/gateway/matching', JSON.stringify({ names, tries })));
  return (found as [number, number, number][]).map(([name, , pattern]) => [name, pattern]);
}

/** Memory for what evaluations leave behind, shared among the instances of an engine. */
const HEAP_BYTES = 256 * 2 ** 20;
const HEAP_PER_INSTANCE = { least: 2 ** 20, most: 16 * 2 ** 20 };

const DEFAULT: Decision = Object.freeze({ effect: 'deny', reason: 'default', policy: null });
const FAULT: Decision = Object.freeze({ effect: 'deny', reason: 'error', policy: null });

function* loadEngine(
  compiled: Compiled,
  { module, revision, onFault = () => {}, patternsPerInstance = MAX_PATTERNS }: Omit<EngineOptions, 'policies'>,
): Generator<undefined, LoadedEngine> {
  const { document, hash: dataHash, findings } = compiled;
  const layout = yield* layOutInSteps(document, Math.min(patternsPerInstance, MAX_PATTERNS));
  yield;
  const share = HEAP_BYTES / (layout.others.length + 1);
  const ceiling = Math.min(HEAP_PER_INSTANCE.most, Math.max(HEAP_PER_INSTANCE.least, share));
  const main = yield* loadLasting(module, layout.main, ceiling);
  const others: Instance[] = [];
  for (const pieces of layout.others) others.push(yield* loadLasting(module, pieces, ceiling));

  const byRank = document.policies.map(
    ({ effect, id, name, priority }): Decision => ({ effect, reason: 'matched', policy: { id, name, priority } }),
  );
  yield;
  const estimate = yield* estimateInSteps(document);

  /** Accept only an answer that the rule can give for this policy set. */
  function readVerdict(verdict: unknown): { rank: number; decision: Decision } {
    const { effect, policy, rank, reason } = verdict as Record<'effect' | 'policy' | 'rank' | 'reason', unknown>;
    if (reason === 'default' && effect === 'deny' && policy === null && rank === null)
      return { rank: document.unmatched, decision: DEFAULT };
    const decision = typeof rank === 'number' ? byRank[rank] : undefined;
    if (decision === undefined || reason !== 'matched' || decision.effect !== effect || decision.policy?.id !== policy) {
      throw new Error(`The rule gave an invalid answer: ${JSON.stringify(verdict)}`);
    }
    return { rank: rank as number, decision };
  }
  /** Each policy has at most one answer, plus one for no policy. */
  const answers = new Map<string, Decision>();
  function remember(answer: string, decision: Decision): Decision {
    if (answers.size <= document.unmatched) answers.set(answer, decision);
    return decision;
  }
  const readAnswer = (answer: string): Decision =>
    answers.get(answer) ?? remember(answer, readVerdict(readResult(answer)).decision);
  function readList<T>(value: unknown, length: number, read: (item: unknown) => T): T[] {
    if (!Array.isArray(value) || value.length !== length) throw new Error('The rule did not answer for every name');
    return value.map(read);
  }

  function askMany(principal: PrincipalFacts, target: string, type: string, names: readonly string[]): Decision[] {
    const input = listInput(principal, target, type, names);
    if (others.length === 0) {
      const answers = readResult(main.ask('portcullis/gateway/decisions', input));
      return readList(answers, names.length, (item) => readVerdict(item).decision);
    }
    return complete(readResult(main.ask('portcullis/gateway/survey', input)) as Survey, names);
  }
  function complete(survey: Survey, names: readonly string[]): Decision[] {
    const least = readList(survey.decisions, names.length, readVerdict);
    const better = new Map<number, number>();
    for (const [instance, tries] of byInstance(survey.elsewhere)) {
      const asked = JSON.stringify({ names, tries });
      const matching = others[instance]?.ask('portcullis/gateway/matching', asked) ?? '';
      for (const [index, rank] of readResult(matching) as [index: number, rank: number][]) {
        if (rank < (better.get(index) ?? least[index]?.rank ?? 0)) better.set(index, rank);
      }
    }
    const decisions = least.map(({ decision }) => decision);
    if (better.size > 0) {
      const verdicts = main.ask('portcullis/gateway/verdicts', JSON.stringify({ ranks: [...better.values()] }));
      const read = readList(readResult(verdicts), better.size, readVerdict);
      [...better.keys()].forEach((index, at) => {
        decisions[index] = read[at]?.decision ?? FAULT;
      });
    }
    return decisions;
  }

  /** Law 6: any fault is answered with deny. */
  function orFault<T>(ask: () => T, fault: T): T {
    try {
      return ask();
    } catch (error) {
      onFault(error);
      return fault;
    }
  }

  const engine: LoadedEngine = {
    revision,
    dataHash,
    engineHash: module.hash,
    compiled,
    findings,
    decide: (principal, target, { resource_type: type, resource_name: name }) =>
      orFault(() => {
        if (others.length === 0)
          return readAnswer(main.ask('portcullis/gateway/decision', objectInput(principal, target, type, name)));
        const answer = main.ask('portcullis/gateway/survey', listInput(principal, target, type, [name]));
        const known = answers.get(answer);
        if (known !== undefined) return known;
        const survey = readResult(answer) as Survey;
        const [decision = FAULT] = complete(survey, [name]);
        return survey.elsewhere.length === 0 ? remember(answer, decision) : decision;
      }, FAULT),
    decideMany: (principal, target, objects) => {
      const decisions = new Array<Decision>(objects.length).fill(FAULT);
      for (const { type, indexes } of batches(objects)) {
        const names = indexes.map((index) => objects[index]?.resource_name ?? '');
        const answers = orFault(() => askMany(principal, target, type, names), []);
        indexes.forEach((index, i) => {
          decisions[index] = answers[i] ?? FAULT;
        });
      }
      return decisions;
    },
    estimate,
    decideTarget: (principal, target) =>
      orFault(() => readAnswer(main.ask('portcullis/gateway/target', targetInput(principal, target))), FAULT),
  };
  yield* tryOut(engine, document);
  return engine;
}

/** A pattern that another instance must test. */
type Elsewhere = readonly [index: number, rank: number, instance: number, pattern: number];
interface Survey {
  readonly decisions: unknown;
  readonly elsewhere: readonly Elsewhere[];
}

function byInstance(elsewhere: readonly Elsewhere[]): Map<number, number[][]> {
  const sorted = new Map<number, number[][]>();
  for (const [index, rank, instance, pattern] of elsewhere) {
    const tries = sorted.get(instance) ?? [];
    tries.push([index, rank, pattern]);
    sorted.set(instance, tries);
  }
  return sorted;
}

/** An instance that is rebuilt after a trap, because the state of its memory is then unknown. */
function* loadLasting(module: PolicyModule, pieces: () => Iterable<DataPiece>, ceiling: number): Generator<undefined, Instance> {
  const load = () => loadInstance(module.instantiate(), pieces(), ceiling);
  let instance: Instance | null = yield* load();
  return {
    ask(entrypoint, input) {
      instance ??= atOnce(load());
      try {
        return instance.ask(entrypoint, input);
      } catch (error) {
        if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) instance = null;
        throw error;
      }
    },
  };
}

function passGoldenQuestions(engine: Engine): void {
  for (const { principal, target, object, row } of GOLDEN_QUESTIONS) {
    const answers =
      object === null
        ? [engine.decideTarget(principal, target)]
        : [engine.decide(principal, target, object), ...engine.decideMany(principal, target, [object])];
    for (const { policy, reason } of answers) {
      const right = row === null ? reason === 'default' : reason === 'matched' && policy?.id === goldenId(row);
      if (!right)
        throw new Error(
          `The engine fails a golden question: ${JSON.stringify({ principal, target, object, row, reason, policy })}`,
        );
    }
  }
}

/** How many policies of a set are tested before the engine is used. */
const TRIED = 64;

/** For a request that a policy plainly matches, that policy or one evaluated before it must decide. Pauses before each decision. */
function* tryOut(engine: Engine, { policies }: Compiled['document']): Generator<undefined, void> {
  const ranks = new Map(policies.map(({ id }, rank) => [id, rank]));
  const stride = Math.max(1, Math.floor(policies.length / TRIED));
  for (let rank = 0; rank < policies.length; rank += stride) {
    const { pattern, subjects, target, type } = policies[rank] ?? { pattern: null, subjects: [], target: null, type: 'all' };
    const [subject] = subjects;
    const reading = pattern === null ? null : readPattern(pattern);
    const shape = reading === null ? { text: 'any' } : typeof reading === 'string' ? undefined : formIn(reading).shapes?.[0];
    if (subject === undefined || shape === undefined) continue;
    const [kind, value = ''] = subject;
    const principal: PrincipalFacts = {
      sub: kind === 'user' ? value : '',
      role: kind === 'role' ? value : '',
      groups: kind === 'group' ? [value] : [],
    };
    const object: NamedObject = { resource_type: type === 'all' ? 'tool' : type, resource_name: shape.text };
    yield;
    const { policy } = engine.decide(principal, target ?? '', object);
    if (policy === null || (ranks.get(policy.id) ?? Number.POSITIVE_INFINITY) > rank) {
      throw new Error(`The engine misses policy ${policies[rank]?.id}`);
    }
  }
}
