/** Requests in the form that the engine takes, and its answers. */
import type { ReadPolicy } from '../../engine/compile/compile.ts';
import type { Effect, ResourceType, SubjectType } from '../../engine/compile/policy.ts';
import type { PrincipalFacts } from '../../engine/decision.ts';
import { isTemplateText } from '../../protocol/uri.ts';
import { firstFit, type Index, type Key, type View } from './requests.ts';
import type { Request } from './search.ts';

/** If both type and name are null: may the caller use the target at all? */
export interface AskedRequest {
  readonly principal: PrincipalFacts;
  readonly target: string;
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** true: the name is the text of a URI template, which is listed and completed but cannot be read. */
  readonly is_template: boolean;
}

export interface Answer {
  readonly effect: Effect;
  /** null: no policy matches. */
  readonly policy_id: string | null;
}

/** A subject that the caller must have. */
export interface NamedSubject {
  readonly subject_type: SubjectType;
  readonly subject_value: string;
}

/** `everyone` needs no subject: every caller matches it. */
export const subjectsOf = (keys: readonly Key[]): NamedSubject[] =>
  keys.flatMap((key) => {
    const [subject_type, subject_value] = JSON.parse(key) as [SubjectType, string?];
    return subject_value === undefined ? [] : [{ subject_type, subject_value }];
  });

export type Ask = (request: Request) => AskedRequest;

/** Returns a function that completes a request. If no policy names a value, it is invented, or an element of `targets`. */
export function createAsk(sets: readonly (readonly ReadPolicy[])[], targets: Iterable<string>): Ask {
  const taken = new Set<string>();
  for (const { target, subjects } of sets.flat()) {
    if (target !== null) taken.add(target);
    for (const [, value] of subjects) if (value !== undefined) taken.add(value);
  }
  const isFree = (text: string): boolean => !taken.has(text);
  const madeUp = (text: string): string => (isFree(text) ? text : madeUp(`${text}-2`));
  const nobody = { sub: madeUp('somebody'), role: madeUp('some-role') };
  const elsewhere = [...targets].find(isFree) ?? madeUp('some-target');

  return ({ keys, target, question, name }) => {
    const subjects = subjectsOf(keys);
    const valuesOf = (wanted: SubjectType): string[] =>
      subjects.flatMap(({ subject_type, subject_value }) => (subject_type === wanted ? [subject_value] : []));
    return {
      principal: {
        sub: valuesOf('user')[0] ?? nobody.sub,
        role: valuesOf('role')[0] ?? nobody.role,
        groups: valuesOf('group'),
      },
      target: target ?? elsewhere,
      resource_type: question === 'use' ? null : question,
      resource_name: name,
      is_template: question === 'resource' && isTemplateText(name ?? ''),
    };
  };
}

/** Returns the answer of the set, without the policy `except` if one is given. */
export function answer(index: Index, { keys, target, question, name }: Request, except: View | null = null): Answer {
  const side = { cells: index.cells(target, question, keys), below: Number.POSITIVE_INFINITY, except };
  const view = firstFit(side, name ?? '');
  return { effect: view?.effect ?? 'deny', policy_id: view?.policy.id ?? null };
}
