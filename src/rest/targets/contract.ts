/** Targets. */

import { FAULT_KINDS, type TargetReport } from '../../mcp/upstream/health.ts';
import { changedTarget, commonMembers, httpMembers, newTarget, stdioMembers } from '../../targets/document.ts';
import { schemasOf } from '../openapi/from-joi.ts';
import { get, many, nothing, one, type Paths, tagged, wholeOrPaged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const Target = s.named('Target', {
  anyOf: [
    s.model('HttpTarget', { id: s.uuid, ...schemasOf({ ...httpMembers, ...commonMembers }), ...s.times }),
    s.model('StdioTarget', { id: s.uuid, ...schemasOf({ ...stdioMembers, ...commonMembers }), ...s.times }),
  ],
});
const TargetHealth = s.model<TargetReport & { replica: string }>('TargetHealth', {
  replica: s.described('The replica that answers. Each replica knows only its own requests.', s.uuid),
  status: s.described(
    '`suspended`: the replica sends no requests to the target before `retry_at`. `unknown`: it has sent none since it started.',
    s.oneOf(['unknown', 'ok', 'failing', 'suspended']),
  ),
  last_success_at: s.orNull(s.time),
  last_fault: s.orNull(
    s.model('TargetFault', {
      at: s.time,
      kind: s.oneOf(FAULT_KINDS),
      message: s.string,
      stderr: s.described('The end of what the process printed to standard error, without credentials.', s.orNull(s.string)),
    }),
  ),
  retry_at: s.orNull(s.time),
});

export const TARGET_PATHS: Paths = {
  '/api/targets': {
    get: get('listTargets', 'List all targets.', 'admin', many(Target, 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createTarget',
      summary: 'Register a target.',
      access: 'admin',
      takes: newTarget,
      gives: { 201: one(Target, 'ETag', 'Location') },
      refuses: [409],
    },
  },
  '/api/targets/{id}/health': {
    get: get(
      'getTargetHealth',
      'Get the health of a target, as the replica that answers has last seen it.',
      'admin',
      one(TargetHealth),
    ),
  },
  '/api/targets/{id}': {
    get: tagged('getTarget', 'Get a target.', one(Target, 'ETag')),
    put: {
      id: 'updateTarget',
      summary:
        'Update a target. Omitted members keep their values. A change of the URL, transport, command, arguments or environment disables its credentials until they are set again.',
      access: 'admin',
      takes: changedTarget,
      gives: { 200: one(Target, 'ETag') },
      refuses: [409],
      conditional: true,
    },
    delete: {
      id: 'deleteTarget',
      summary: 'Delete a target and its credentials. A target that a policy names cannot be deleted.',
      access: 'admin',
      gives: { 204: nothing() },
      refuses: [409],
      conditional: true,
    },
  },
};
