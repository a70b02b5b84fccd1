/** Finds mistakes in a policy set, and policies that may be mistakes. The findings are exact for all possible requests of any caller. */
import type { Policy, ResourceType } from '../../engine/compile/policy.ts';
import { type Automaton, acceptsAnyBeginning, type Budget, shortestName, TooLarge } from './automaton.ts';
import { createLibrary, domainOf } from './names.ts';
import { createIndex, EVERYONE, groupBy, type Index, type Question, readInOrder, type View, viewSets } from './requests.ts';
import {
  BOUNDS,
  type Bounds,
  changes,
  type Finds,
  type Found,
  findCommon,
  firstOf,
  type Progress,
  type Reading,
  type Request,
} from './search.ts';
import { findUri, templates } from './uris.ts';
import { type Answer, type Ask, type AskedRequest, answer, createAsk } from './witness.ts';

/** The kinds of findings about an enabled policy. All are exact. docs/policies.md says what each of them means. */
export type FindingCode = keyof typeof SEVERITIES;
export type Severity = 'error' | 'warning' | 'info';

export const SEVERITIES = {
  contradiction: 'error',
  unreachable: 'warning',
  shadowed: 'warning',
  unanchored_allow: 'warning',
  broad_allow: 'warning',
  unknown_target: 'warning',
  unknown_user: 'warning',
  unknown_role: 'warning',
  unknown_group: 'warning',
  matches_no_uri: 'warning',
  no_subjects: 'warning',
  tie: 'info',
  redundant: 'info',
  equal_name: 'info',
  undecided: 'info',
} as const satisfies Record<string, Severity>;

/** A request that demonstrates a finding. */
export interface Witness extends AskedRequest {
  readonly decision: Answer;
  /** The decision without the policy that the finding is about. */
  readonly without: Answer;
}

export interface AnalysisFinding {
  readonly code: FindingCode;
  readonly severity: Severity;
  /** First the policy that the finding is about, then the policies that cause the finding. */
  readonly policy_ids: readonly [string, ...string[]];
  /** Text for people. */
  readonly message: string;
  /** null: no request can demonstrate the finding. */
  readonly witness: Witness | null;
}

/** What exists. The analysis skips the checks of members that are left out. */
export interface Known {
  readonly targets?: ReadonlySet<string>;
  readonly roles?: ReadonlySet<string>;
  readonly groups?: ReadonlySet<string>;
  /** User ids. */
  readonly users?: ReadonlySet<string>;
}

export interface Report {
  /** The number of enabled policies. Disabled policies decide nothing, so they are not analysed. */
  readonly analysed: number;
  /** In the order in which the policies are evaluated. */
  readonly findings: readonly AnalysisFinding[];
}

/** Returns the report. It pauses so that the caller can let other work run, and yields the progress whenever that has changed. */
export function* analyseInSteps(
  policies: readonly Policy[],
  known: Known = {},
  bounds: Bounds = BOUNDS,
): Generator<Progress | undefined, Report> {
  const read = yield* readInOrder(policies);
  const [views = []] = yield* viewSets([read], createLibrary());
  const index = yield* createIndex(views);
  const world: World = { index, known, bounds, ask: createAsk([read], known.targets ?? []), byName: groupBy(views, nameOf) };
  const findings: AnalysisFinding[] = [];
  for (const [done, view] of views.entries()) {
    findings.push(...stated(view, world), ...(yield* inferred(view, world)));
    yield { done: done + 1, total: views.length };
  }
  return { analysed: views.length, findings };
}

interface World {
  readonly index: Index;
  readonly known: Known;
  readonly bounds: Bounds;
  readonly ask: Ask;
  readonly byName: ReadonlyMap<string, readonly View[]>;
}

const nameOf = ({ policy }: View): string => policy.name;
const quote = (view: View): string => JSON.stringify(view.policy.name);
const quoteAll = (views: readonly View[]): string => {
  const shown = views.slice(0, 3).map(quote).join(', ');
  return views.length > 3 ? `${shown} and ${views.length - 3} more` : shown;
};

function finding(
  code: FindingCode,
  view: View,
  message: string,
  { others = [], request = null }: { others?: readonly View[]; request?: Request | null },
  { index, ask }: World,
): AnalysisFinding {
  const witness = request && {
    ...ask(request),
    decision: answer(index, request),
    without: answer(index, request, view),
  };
  const policy_ids = [view, ...others].map(({ policy }) => policy.id) as [string, ...string[]];
  return { code, severity: SEVERITIES[code], policy_ids, message, witness };
}

/** Says that no user has what the policy names. A user may get the role or the group later, for example from a provider. */
export function unknownText(policy: string, kind: 'role' | 'group' | 'user', value: string): string {
  const missing = kind === 'user' ? 'does not exist' : 'no user has';
  return `${JSON.stringify(policy)} names a ${kind} that ${missing}: ${JSON.stringify(value)}.`;
}

/** Findings that the policy alone shows. */
function stated(view: View, world: World): AnalysisFinding[] {
  const { known, byName } = world;
  const { target, subjects } = view.policy;
  const findings: AnalysisFinding[] = [];
  const add = (code: FindingCode, message: string, others: readonly View[] = []): void => {
    findings.push(finding(code, view, message, { others }, world));
  };
  if (target !== null && known.targets?.has(target) === false)
    add('unknown_target', `${quote(view)} is about a target that does not exist: ${JSON.stringify(target)}.`);
  const exists = { role: known.roles, group: known.groups, user: known.users };
  for (const kind of ['role', 'group', 'user'] as const) {
    const missing = subjects.flatMap(([of, value]) =>
      of === kind && value !== undefined && exists[kind]?.has(value) === false ? [value] : [],
    );
    for (const value of missing) add(`unknown_${kind}`, unknownText(view.policy.name, kind, value));
  }
  if (subjects.length === 0) add('no_subjects', `${quote(view)} applies to no caller: it has no subjects.`);
  const namesakes = (byName.get(view.policy.name) ?? []).filter((other) => other !== view);
  // Report this once, for the first of the policies.
  if (namesakes.length > 0 && namesakes.every(({ rank }) => rank > view.rank))
    add(
      'equal_name',
      `${namesakes.length + 1} policies have the name ${quote(view)}, so the name in a log entry does not tell which of them decided.`,
      namesakes,
    );
  return findings;
}

/** Findings that follow from the policy together with the other policies. */
function* inferred(view: View, world: World): Generator<undefined, AnalysisFinding[]> {
  const { index, bounds } = world;
  if (view.keys.length === 0) return [];
  const findings: AnalysisFinding[] = [];
  const open: string[] = [];
  const add = (code: FindingCode, message: string, shown: { others?: readonly View[]; request?: Request | null }): void => {
    findings.push(finding(code, view, message, shown, world));
  };
  function* ask(what: string, finds: (budget: Budget) => Finds): Generator<undefined, Found> {
    const outcome = yield* firstOf(finds({ left: bounds.steps }));
    if (outcome.kind === 'undecided') open.push(what);
    return outcome;
  }
  const objects = view.questions.filter((question) => question !== 'use');
  const use = view.questions.filter((question) => question === 'use');
  const before: Reading = { index, below: view.rank, except: null };

  const object = yield* ask('whether it decides about any object', (budget) => findCommon([view], objects, [before], budget));
  const target = yield* ask('whether it decides about any target', (budget) => findCommon([view], use, [before], budget));
  if (object.kind === 'none') {
    const fitting = yield* ask('whether it matches any name', (budget) => findCommon([view], objects, [], budget));
    const request = fitting.kind === 'found' ? fitting.request : null;
    const why = fitting.kind === 'none' ? 'its pattern matches no name' : `these policies decide first: ${quoteAll(object.by)}`;
    if (target.kind === 'none') {
      const others = [...new Set([...object.by, ...target.by])];
      add('unreachable', `${quote(view)} never decides, because ${why}. You can delete it without changing any decision.`, {
        others,
        request,
      });
    } else if (target.kind === 'found') {
      const left =
        view.effect === 'allow' ? 'it only lets its callers use the target' : 'it only keeps its callers from using the target';
      add('shadowed', `${quote(view)} decides about no object, because ${why}. So ${left}.`, {
        others: object.by,
        request: target.request,
      });
    }
    if (request !== null) {
      const right = yield* ask('whether it contradicts the policies before it', (budget) =>
        sameEffect(view, objects, index, budget),
      );
      if (right.kind === 'none') add('contradiction', contradictionOf(view, object.by), { others: object.by, request });
    }
  }
  if (view.policy.type === 'resource' && view.policy.pattern !== null && (yield* isForNoUri(view, bounds)))
    add('matches_no_uri', noUriText(view), {});
  const decides = [object, target].find((outcome) => outcome.kind === 'found');
  if (decides?.kind === 'found') {
    const parts = { from: index, to: index, without: view, isKept: () => false };
    const change = yield* ask('whether decisions depend on it', (budget) => changes(view, { ...parts, budget }));
    if (change.kind === 'none') add('redundant', redundancyOf(view), { request: decides.request });
  }
  if (view.effect === 'allow') {
    const tie = yield* firstTie(view, world, ask);
    if (tie !== null) findings.push(tie);
    if (object.kind === 'found') findings.push(...(yield* breadth(view, object.request, world, open)));
  }
  for (const what of open)
    add('undecided', `The analysis reached its limits for ${quote(view)} before it could find out ${what}.`, {});
  return findings;
}

/** A pattern that matches only templates is meant for them. A pattern that also matches other texts, but no URI, is a mistake. */
function* isForNoUri({ names }: View, { steps }: Bounds): Generator<undefined, boolean> {
  const budget = { left: steps };
  try {
    if ((yield* findUri([names.automaton()], [], budget)) !== null) return false;
    const text = yield* shortestName([names.automaton()], [templates.automaton()], domainOf('resource'), budget);
    return text !== null;
  } catch (error) {
    if (error instanceof TooLarge) return false;
    throw error;
  }
}

const noUriText = (view: View): string =>
  `The pattern of ${quote(view)} matches no URI that the gateway accepts, so it has no effect on reads. A URI needs a lower-case scheme such as file:/// and must be in canonical form (docs/policies.md).`;

/** Finds requests that the policy matches and that get its effect, although other policies decide them. */
function* sameEffect(view: View, objects: readonly Question[], index: Index, budget: Budget): Finds {
  for (const other of index.speakingOf(view.effect, view.target)) {
    if (other.rank < view.rank) yield* findCommon([view, other], objects, [{ index, below: other.rank, except: null }], budget);
  }
}

function contradictionOf(view: View, by: readonly View[]): string {
  return view.effect === 'allow'
    ? `${quote(view)} allows no object: policies evaluated before it deny everything that it matches: ${quoteAll(by)}.`
    : `${quote(view)} denies no object: policies evaluated before it allow everything that it matches: ${quoteAll(by)}.`;
}

function redundancyOf(view: View): string {
  return view.effect === 'allow'
    ? `${quote(view)} is redundant: policies evaluated after it allow everything that it allows.`
    : `${quote(view)} is redundant: everything that it denies would also be denied without it.`;
}

type AskFor = (what: string, finds: (budget: Budget) => Finds) => Generator<undefined, Found>;

function* firstTie(view: View, world: World, ask: AskFor): Generator<undefined, AnalysisFinding | null> {
  const { index } = world;
  let with_: View | null = null;
  const outcome = yield* ask('whether it ties with a deny', function* (budget) {
    for (const deny of index.speakingOf('deny', view.target)) {
      if (deny.policy.priority !== view.policy.priority) continue;
      with_ = deny;
      yield* findCommon([deny, view], view.questions, [{ index, below: deny.rank, except: null }], budget);
    }
  });
  if (outcome.kind !== 'found' || with_ === null) return null;
  const deny: View = with_;
  const message = `${quote(view)} and ${quote(deny)} have the same priority, ${view.policy.priority}, and match the same request. The request is denied, because deny comes before allow.`;
  return finding('tie', view, message, { others: [deny], request: outcome.request }, world);
}

/** Finds what an allow permits because its pattern is too wide. `decided`: a request that the policy decides. */
function* breadth(view: View, decided: Request, world: World, open: string[]): Generator<undefined, AnalysisFinding[]> {
  const { names, policy, keys } = view;
  const type = decided.question as ResourceType;
  const budget = { left: world.bounds.steps };
  const add = (code: FindingCode, message: string, request: Request): AnalysisFinding[] => [
    finding(code, view, message, { request }, world),
  ];
  try {
    const find = (include: readonly Automaton[], exclude: readonly Automaton[], begin: string) =>
      type === 'resource'
        ? findUri(include, exclude, budget, begin)
        : shortestName(include, exclude, domainOf(type), budget, begin);
    const everyName = names.isEvery || (yield* find([], [names.automaton()], '')) === null;
    if (everyName && policy.pattern !== null) {
      const what = type === 'resource' ? 'URI' : 'name';
      return add('broad_allow', `The pattern of ${quote(view)} matches every ${what}, so it restricts nothing.`, decided);
    }
    if (everyName) {
      const what = policy.type === 'all' ? 'everything' : `every ${policy.type}`;
      const where = policy.target === null ? 'every target' : 'its target';
      return keys.includes(EVERYONE)
        ? add(
            'broad_allow',
            `${quote(view)} allows everyone to use ${what} of ${where}, including everything added later.`,
            decided,
          )
        : [];
    }
    if (!acceptsAnyBeginning(names.automaton(), domainOf(type), budget)) return [];
    const name = yield* find([names.automaton()], [], 'x');
    if (name === null) return [];
    const message = `The pattern of ${quote(view)} does not constrain the start of the name, so it also matches names such as ${JSON.stringify(name)}. Start it with ^ if that is not intended.`;
    return add('unanchored_allow', message, { ...decided, name });
  } catch (error) {
    if (!(error instanceof TooLarge)) throw error;
    open.push('whether its pattern is too broad');
    return [];
  }
}
