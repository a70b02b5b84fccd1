/**
 * What is wrong with a policy set, or looks so: exactly, over all requests that can be made, whoever the callers are and whatever
 * the targets offer.
 */
import type { Policy, ResourceType } from '../document.ts';
import { type Automaton, acceptsAnyBeginning, type Budget, shortestName, TooLarge } from './automaton.ts';
import { createLibrary, domainOf } from './names.ts';
import { createIndex, EVERYONE, groupBy, type Index, type Question, readInOrder, type View, viewSets } from './requests.ts';
import {
  BOUNDS,
  type Bounds,
  changes,
  drive,
  type Finds,
  type Found,
  findAlone,
  findBoth,
  firstOf,
  type Progress,
  type Reading,
  type Request,
} from './search.ts';
import { findUri, templates } from './uris.ts';
import { type Answer, type Ask, type AskedRequest, answer, createAsk } from './witness.ts';

/**
 * What is found of an enabled policy. All are exact; in each, `everything` means objects and the question whether a target may be used.
 *
 * - `unreachable`: it decides nothing, because policies read before it decide everything that it fits. All such policies
 *   can be deleted together, and every decision stays the same, to the deciding policy.
 * - `shadowed`: it decides about no object, but still lets its callers use the target, or not.
 * - `redundant`: it decides, but each time the effect would be the same without it. It can be deleted, then look again: of two that
 *   say the same, each is redundant.
 * - `contradiction`: every object that it fits gets the opposite effect, by policies read before it.
 * - `tie`: an allow that for some request loses to a deny of the same priority, only because deny goes first.
 * - `unanchored_allow`: an allow whose pattern leaves open how a name begins: whatever a name begins with, it can go on so that
 *   the pattern fits.
 * - `broad_allow`: an allow for everyone of every name of a type, or an allow whose pattern fits every name.
 * - `unknown_role`, `unknown_group`, `unknown_user`, `unknown_target`: it names one that does not exist.
 * - `matches_no_known_tool`: its pattern fits no tool that its targets are known to have.
 * - `matches_no_uri`: it is about resources, and its pattern fits texts that are neither URIs that the gateway accepts nor templates.
 * - `no_subjects`: it applies to nobody.
 * - `equal_name`: another policy has the same name.
 * - `undecided`: a question about it takes more than the bounds allow, and is left open.
 */
export type FindingCode = keyof typeof SEVERITIES;
export type Severity = 'error' | 'warning' | 'info';

const SEVERITIES = {
  contradiction: 'error',
  unreachable: 'warning',
  shadowed: 'warning',
  unanchored_allow: 'warning',
  broad_allow: 'warning',
  unknown_target: 'warning',
  unknown_user: 'warning',
  unknown_role: 'warning',
  unknown_group: 'warning',
  matches_no_known_tool: 'warning',
  matches_no_uri: 'warning',
  no_subjects: 'warning',
  tie: 'info',
  redundant: 'info',
  equal_name: 'info',
  undecided: 'info',
} as const satisfies Record<string, Severity>;

/** A request that shows a finding. */
export interface Witness extends AskedRequest {
  readonly decision: Answer;
  /** The decision if the policy that the finding is about were not there. */
  readonly without: Answer;
}

export interface AnalysisFinding {
  readonly code: FindingCode;
  readonly severity: Severity;
  /** First the one that it is about, then those that bring it about. */
  readonly policy_ids: readonly [string, ...string[]];
  /** For people. */
  readonly message: string;
  /** null where no request could show it. */
  readonly witness: Witness | null;
}

/** What exists. What is left out is not looked at. */
export interface Known {
  readonly targets?: ReadonlySet<string>;
  readonly roles?: ReadonlySet<string>;
  readonly groups?: ReadonlySet<string>;
  /** Ids. */
  readonly users?: ReadonlySet<string>;
  /** Names by target; targets that are left out may have any. */
  readonly tools?: ReadonlyMap<string, readonly string[]>;
}

export interface Report {
  /** Enabled policies; others have no part in decisions and are not looked at. */
  readonly analysed: number;
  /** In the order in which policies are read. */
  readonly findings: readonly AnalysisFinding[];
}

export interface AnalyseOptions {
  readonly onProgress?: (progress: Progress) => void;
  readonly bounds?: Bounds;
}

export function analyse(
  policies: readonly Policy[],
  known: Known = {},
  { onProgress = () => {}, bounds = BOUNDS }: AnalyseOptions = {},
): Report {
  return drive(analyseInSteps(policies, known, bounds), onProgress);
}

/** `analyse`, pausing so that the caller can let other work run; it says how far it is whenever that has changed. */
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

/** What can be read off the policy. */
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
    for (const value of missing)
      add(`unknown_${kind}`, `${quote(view)} names a ${kind} that nobody has: ${JSON.stringify(value)}.`);
  }
  if (subjects.length === 0) add('no_subjects', `${quote(view)} applies to nobody: it has no subjects.`);
  if (fitsNoKnownTool(view, known))
    add('matches_no_known_tool', `The pattern of ${quote(view)} fits no tool that its targets are known to have.`);
  const namesakes = (byName.get(view.policy.name) ?? []).filter((other) => other !== view);
  // Said once, of the first.
  if (namesakes.length > 0 && namesakes.every(({ rank }) => rank > view.rank))
    add(
      'equal_name',
      `${namesakes.length + 1} policies have the name ${quote(view)}; a log entry may be about any of them.`,
      namesakes,
    );
  return findings;
}

function fitsNoKnownTool({ policy, names }: View, { targets, tools }: Known): boolean {
  if (policy.pattern === null || policy.type !== 'tool' || tools === undefined) return false;
  const covered = policy.target === null ? targets && [...targets] : [policy.target];
  if (covered === undefined || covered.length === 0) return false;
  const offered = covered.map((target) => tools.get(target));
  return offered.every((each) => each?.some((name) => names.has(name)) === false);
}

/** What follows from the policy and those around it. */
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

  const object = yield* ask('whether it decides about any object', (budget) => findAlone(view, objects, [before], budget));
  const target = yield* ask('whether it decides about any target', (budget) => findAlone(view, use, [before], budget));
  if (object.kind === 'none') {
    const fitting = yield* ask('whether it fits any name', (budget) => findAlone(view, objects, [], budget));
    const request = fitting.kind === 'found' ? fitting.request : null;
    const why = fitting.kind === 'none' ? 'no name fits its pattern' : `what it fits is decided before by ${quoteAll(object.by)}`;
    if (target.kind === 'none') {
      const others = [...new Set([...object.by, ...target.by])];
      add('unreachable', `${quote(view)} never decides: ${why}. It can be deleted, and every decision stays as it is.`, {
        others,
        request,
      });
    } else if (target.kind === 'found') {
      const left =
        view.effect === 'allow'
          ? 'all it does is to let its callers use the target'
          : 'all it does is to keep its callers from using the target';
      add('shadowed', `${quote(view)} decides about no object, because ${why}; ${left}.`, {
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
  for (const what of open) add('undecided', `Within the bounds it could not be told of ${quote(view)} ${what}.`, {});
  return findings;
}

/** A pattern that fits templates alone is meant for them; one that fits other texts too is a mistake about URIs. */
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
  `The pattern of ${quote(view)} fits no URI that the gateway accepts, so it has no effect on what can be read. A URI needs a scheme in lower case, such as file:///, and has one spelling: docs/policies.md.`;

/** Requests that the policy fits and that get its effect, though others decide them. */
function* sameEffect(view: View, objects: readonly Question[], index: Index, budget: Budget): Finds {
  for (const other of index.speakingOf(view.effect, view.target)) {
    if (other.rank < view.rank) yield* findBoth(view, other, objects, [{ index, below: other.rank, except: null }], budget);
  }
}

function contradictionOf(view: View, by: readonly View[]): string {
  return view.effect === 'allow'
    ? `${quote(view)} allows no object: all that it fits is denied before, by ${quoteAll(by)}.`
    : `${quote(view)} denies no object: all that it fits is allowed before, by ${quoteAll(by)}.`;
}

function redundancyOf(view: View): string {
  return view.effect === 'allow'
    ? `${quote(view)} allows only what policies read after it allow as well: without it the same is allowed.`
    : `${quote(view)} denies only what would be denied without it.`;
}

type AskFor = (what: string, finds: (budget: Budget) => Finds) => Generator<undefined, Found>;

function* firstTie(view: View, world: World, ask: AskFor): Generator<undefined, AnalysisFinding | null> {
  const { index } = world;
  let with_: View | null = null;
  const outcome = yield* ask('whether it ties with a deny', function* (budget) {
    for (const deny of index.speakingOf('deny', view.target)) {
      if (deny.policy.priority !== view.policy.priority) continue;
      with_ = deny;
      yield* findBoth(deny, view, view.questions, [{ index, below: deny.rank, except: null }], budget);
    }
  });
  if (outcome.kind !== 'found' || with_ === null) return null;
  const deny: View = with_;
  const message = `${quote(view)} and ${quote(deny)} have the same priority, ${view.policy.priority}, and fit the same request; it is denied because deny goes first.`;
  return finding('tie', view, message, { others: [deny], request: outcome.request }, world);
}

/** What an allow lets through by the way its pattern is written. `decided`: a request that it decides. */
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
      return add('broad_allow', `The pattern of ${quote(view)} fits every ${what}, so it restricts nothing.`, decided);
    }
    if (everyName) {
      const what = policy.type === 'all' ? 'everything' : `every ${policy.type}`;
      const where = policy.target === null ? 'every target' : 'its target';
      return keys.includes(EVERYONE)
        ? add('broad_allow', `${quote(view)} allows everyone ${what} of ${where}, and all that is added there.`, decided)
        : [];
    }
    if (!acceptsAnyBeginning(names.automaton(), domainOf(type), budget)) return [];
    const name = yield* find([names.automaton()], [], 'x');
    if (name === null) return [];
    const message = `The pattern of ${quote(view)} does not say how a name begins, so it also fits names such as ${JSON.stringify(name)}. Begin it with ^ unless that is meant.`;
    return add('unanchored_allow', message, { ...decided, name });
  } catch (error) {
    if (!(error instanceof TooLarge)) throw error;
    open.push('whether its pattern is too broad');
    return [];
  }
}
