/** The rights of administration that administrators have given to users, groups and roles. */
import Joi from 'joi';
import type { RightRow } from '../../auth/right-store.ts';
import { type GivenRight, OWNED_RIGHTS, RIGHT_SUBJECTS, RIGHTS } from '../../auth/rights.ts';
import { model, text } from '../../base/validate.ts';
import { ownerName } from '../../policies/sets/bodies.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { get, many, nothing, type Operations, one } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const newRight = model<Omit<GivenRight, 'owner'> & { readonly owner?: string | null }>('NewRight', {
  subject_type: Joi.valid(...RIGHT_SUBJECTS).required(),
  subject_value: text(USER_LIMITS.name).required().description('The id of a user, or the name of a group or a role.'),
  right: Joi.valid(...RIGHTS).required(),
  owner: ownerName
    .allow(null)
    .description(
      `Only for ${OWNED_RIGHTS.join(' and ')}: the owner of the policies. Absent or null: every owner, and policies without one.`,
    ),
}).required();

const Right = s.model<Omit<RightRow, 'created_at'> & { created_at: string }>('Right', {
  id: s.uuid,
  subject_type: s.oneOf(RIGHT_SUBJECTS),
  subject_value: s.string,
  right: s.oneOf(RIGHTS),
  owner: s.described('null: every owner, and policies without one; or the right has no owner.', s.orNull(s.string)),
  created_at: s.time,
});

export const RIGHT_OPERATIONS: Operations = {
  'GET /api/rights': get('listRights', 'List the rights that administrators have given.', many(Right)),
  'POST /api/rights': {
    id: 'giveRight',
    access: 'admin',
    summary: 'Give a right to a user, a group or a role. 200: the subject already has it.',
    takes: newRight,
    gives: { 200: one(Right), 201: one(Right, 'Location') },
    refuses: [409],
  },
  'DELETE /api/rights/{id}': {
    id: 'takeRight',
    access: 'admin',
    summary: 'Take a right away. It no longer counts for the next request, at every replica.',
    gives: { 204: nothing() },
  },
};
