/** The body of a request for a suggestion. */
import Joi from 'joi';
import { instant, model, text, uuid } from '../../base/validate.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { POLICY_LIMITS } from '../schema.ts';
import { ownerName } from '../sets/bodies.ts';

export interface SuggestBody {
  decision_id?: string;
  denied?: { target?: string; user?: string; role?: string };
  least_privilege?: string;
  for?: string;
  over_denies?: boolean;
  min_count?: number;
  owner?: string;
  from: number;
  to?: number;
}

const name = text(POLICY_LIMITS.subjectValue);

export const suggestBody = model<SuggestBody>('PolicySuggestionRequest', {
  decision_id: uuid().description('Suggest what would allow this denied request.'),
  denied: model('DeniedRequests', {
    target: Joi.string()
      .pattern(TARGET_NAME)
      .messages({ 'string.pattern.base': 'must be the name of a target' })
      .description('Only requests for this target.'),
    user: name.description('Only requests of this user, by id or e-mail.'),
    role: name.description('Only requests of callers who had this role.'),
  }).description('Suggest what would allow the requests that were denied in this time.'),
  least_privilege: name.description('Suggest the narrowest policies for this role that allow what it used in this time.'),
  for: text(POLICY_LIMITS.subjectValue + 6)
    .pattern(/^(user|role|group:.+)$/s)
    .messages({ 'string.pattern.base': 'must be `user`, `role` or `group:<name>`' })
    .description('Who gets access: the `user` who asked (the default), everybody with the same `role`, or a group of the user.'),
  over_denies: Joi.boolean().description('Whether the policies may be evaluated before denies that decide now.'),
  min_count: Joi.number().integer().min(1).description('Leave out what was asked for less often. Absent: 1.'),
  owner: ownerName.description('The owner of the files. Absent: `default`.'),
  from: instant().required(),
  to: instant().description('Absent: now.'),
})
  .xor('decision_id', 'denied', 'least_privilege')
  .without('least_privilege', ['for', 'over_denies'])
  .messages({
    'object.missing': 'must have one of `decision_id`, `denied` and `least_privilege`',
    'object.xor': 'must have only one of `decision_id`, `denied` and `least_privilege`',
    'object.without': 'must not have `for` or `over_denies` together with `least_privilege`',
  })
  .required();
