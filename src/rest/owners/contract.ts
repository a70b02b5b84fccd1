/** The records of owners: the limits of their policies. */
import { limitsForm, type OwnerJson, ownerBody } from '../../policies/owner-document.ts';
import { schemaOf } from '../openapi/from-joi.ts';
import { get, many, nothing, type Operations, one, tagged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const Owner = s.model<OwnerJson>('Owner', { name: s.string, limits: schemaOf(limitsForm), ...s.times });

const access = ['policies:plan', 'boundaries:manage'] as const;

export const OWNER_OPERATIONS: Operations = {
  'GET /api/owners': get('listOwners', 'List the owners with a record that the caller may read.', many(Owner), { access }),
  'GET /api/owners/{name}': tagged('getOwner', 'Get the limits of an owner.', one(Owner, 'ETag'), { access }),
  'PUT /api/owners/{name}': {
    id: 'setOwner',
    access: ['boundaries:manage'],
    summary: 'Set the limits of an owner. Limits that a policy of the owner breaks are refused (409).',
    takes: ownerBody,
    gives: { 200: one(Owner, 'ETag'), 201: one(Owner, 'ETag', 'Location') },
    refuses: [409],
    conditional: true,
  },
  'DELETE /api/owners/{name}': {
    id: 'deleteOwner',
    access: ['boundaries:manage'],
    summary: 'Delete the record of an owner without policies. Afterwards only administrators can make policies of this owner.',
    gives: { 204: nothing() },
    refuses: [409],
    conditional: true,
  },
};
