/** Requests that people ask about: who wants to use what on which target. Also the JSON of the answers. */
import Joi from 'joi';
import { type FieldError, invalidRequest } from '../../base/errors.ts';
import { model, text } from '../../base/validate.ts';
import { RESOURCE_TYPES, type ResourceType, type StoredPolicy } from '../../engine/compile/policy.ts';
import type { NamedObject, PrincipalFacts } from '../../engine/decision.ts';
import type { Question } from '../../engine/explain.ts';
import { type FoundUser, reaches } from '../../state/found-users.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { canBeSent, NOT_SENT } from '../analysis/names.ts';
import { URI_MAX } from '../files/test-file.ts';
import { policyRef } from '../files/test-run.ts';
import type { Answered } from '../questions.ts';
import { POLICY_LIMITS } from '../schema.ts';
import { policyFiles, type SetSource, sourceMembers, testFiles, withSource } from './bodies.ts';
import type { Moment } from './candidate-set.ts';

export const QUESTION_LIMITS = { requests: 1_000, passedOver: 1_000 } as const;
type PrincipalInput = { user: string } | { role: string; sub?: string; groups?: string[] };
export interface RequestInput {
  principal: PrincipalInput;
  target: string;
  resource_type?: ResourceType;
  resource_name?: string;
}

const name = text(POLICY_LIMITS.subjectValue);
export const objectMembers = {
  resource_type: Joi.valid(...RESOURCE_TYPES),
  resource_name: text(URI_MAX),
};
const groups = Joi.array().items(name).max(POLICY_LIMITS.subjects);
const byUser = model('PrincipalByUser', { user: name.required().description('The id or e-mail of a user.') });
const byRole = model('PrincipalByRole', {
  role: name.required().allow('').description('Empty: a role that no policy names.'),
  sub: name.description('The id of a user. Absent: no particular user.'),
  groups,
});
export const requestBody = model<RequestInput>('PolicyQuestion', {
  principal: Joi.object({ user: name, role: name.allow(''), sub: name, groups })
    .xor('user', 'role')
    .without('user', ['sub', 'groups'])
    .required()
    .meta({ as: Joi.alternatives(byUser, byRole).match('one') })
    .messages({
      'object.missing': 'must have either `user` or `role`',
      'object.xor': 'must have either `user` or `role`, not both',
      'object.without': 'must not have `sub` or `groups` together with `user`: they are only allowed with `role`',
    }),
  target: Joi.string().pattern(TARGET_NAME).required().messages({ 'string.pattern.base': 'must be the name of a target' }),
  ...objectMembers,
  resource_type: objectMembers.resource_type.description(
    'Absent, together with `resource_name`: the question is whether the target may be used at all.',
  ),
})
  .and('resource_type', 'resource_name')
  .messages({ 'object.and': 'must have both `resource_type` and `resource_name`, or neither' })
  .required();
export const simulateBody = withSource(
  model<SetSource & { requests: RequestInput[] }>('PolicyFilesToSimulate', {
    ...sourceMembers,
    requests: Joi.array().items(requestBody).min(1).max(QUESTION_LIMITS.requests).required(),
  }),
  true,
).required();
export const testBody = withSource(
  model<SetSource & { tests: Record<string, string> }>('PolicyTests', {
    tests: testFiles.min(1).required(),
    ...sourceMembers,
    files: policyFiles.description(
      'Policy files. The tests run on the policies that `apply` would make of them. Absent, together with `draft`: the tests run on the current policies.',
    ),
  }),
  false,
).required();

export interface Asked {
  readonly principal: PrincipalFacts & { readonly email: string | null; readonly enabled: boolean };
  readonly target: Moment['targets'][number];
  readonly question: Question;
}

/** Throws AppError `invalid_request` if a user or target does not exist. */
export async function readRequests(
  requests: readonly RequestInput[],
  targets: Moment['targets'],
  pathOf: (at: number) => string,
  find: (user: string) => Promise<FoundUser | null>,
): Promise<Asked[]> {
  const byName = new Map(targets.map((target) => [target.name, target]));
  const users = new Map<string, FoundUser | null>();
  const errors: FieldError[] = [];
  const asked: Asked[] = [];
  for (const [i, { principal: given, target: called, resource_type, resource_name }] of requests.entries()) {
    if ('user' in given && !users.has(given.user)) users.set(given.user, await find(given.user));
    const target = byName.get(called);
    const principal = 'user' in given ? principalOfUser(users.get(given.user), target?.id ?? '') : principalOf(given);
    if (principal === null) errors.push({ path: `${pathOf(i)}principal.user`, message: 'no user has this id or e-mail' });
    if (target === undefined) errors.push({ path: `${pathOf(i)}target`, message: 'no target has this name' });
    const canBe = resource_type === undefined || resource_name === undefined || canBeSent(resource_type, resource_name);
    if (!canBe) errors.push({ path: `${pathOf(i)}resource_name`, message: NOT_SENT });
    if (principal === null || target === undefined || !canBe) continue;
    const object = resource_type === undefined || resource_name === undefined ? null : { resource_type, resource_name };
    const { id, name, enabled } = target;
    const { sub, role, groups } = principal;
    asked.push({
      principal,
      target: { id, name, enabled },
      question: { principal: { sub, role, groups }, targetId: id, object },
    });
  }
  if (errors.length > 0) throw invalidRequest(errors);
  return asked;
}

const principalOf = ({ role, sub = '', groups = [] }: Extract<PrincipalInput, { role: string }>): Asked['principal'] => ({
  ...{ sub, role, groups, email: null, enabled: true },
});

function principalOfUser(found: FoundUser | null | undefined, targetId: string): Asked['principal'] | null {
  if (!found) return null;
  const { id, role, groups, email } = found.user;
  return { sub: id, role, groups, email, enabled: reaches(found.reach, targetId) };
}

export const objectJson = (object: NamedObject | null) => ({
  resource_type: object?.resource_type ?? null,
  resource_name: object?.resource_name ?? null,
});

export function answerJson(answer: Answered, policies: ReadonlyMap<string, StoredPolicy>, isStored: (id: string) => boolean) {
  const policy = answer.policy === null ? undefined : policies.get(answer.policy.id);
  return { effect: answer.effect, reason: answer.reason, policy: policy === undefined ? null : policyRef(policy, isStored) };
}
