/** Targets. */

import { FAULT_KINDS } from '../../mcp/upstream/health.ts';
import { changedTarget, commonMembers, httpMembers, newTarget, stdioMembers } from '../../targets/document.ts';
import { schemasOf } from '../openapi/from-joi.ts';
import { get, many, nothing, one, type Paths, tagged, wholeOrPaged } from '../openapi/operation.ts';
import { described, named, object, oneOf, orNull, type Schema, string, time, times, uuid } from '../openapi/schema.ts';

export const TARGET_SCHEMAS = {
  Target: {
    anyOf: [
      named('HttpTarget', object({ id: uuid, ...schemasOf({ ...httpMembers, ...commonMembers }), ...times })),
      named('StdioTarget', object({ id: uuid, ...schemasOf({ ...stdioMembers, ...commonMembers }), ...times })),
    ],
  },
  TargetHealth: object({
    replica: described('The replica that answers. Each replica knows only its own requests.', uuid),
    status: described(
      '`suspended`: the replica sends no requests to the target before `retry_at`. `unknown`: it has sent none since it started.',
      oneOf(['unknown', 'ok', 'failing', 'suspended']),
    ),
    last_success_at: orNull(time),
    last_fault: orNull(
      named(
        'TargetFault',
        object({
          at: time,
          kind: oneOf(FAULT_KINDS),
          message: string,
          stderr: described('The end of what the process printed to standard error, without credentials.', orNull(string)),
        }),
      ),
    ),
    retry_at: orNull(time),
  }),
} satisfies Record<string, Schema>;

export const TARGET_PATHS: Paths = {
  '/api/targets': {
    get: get('listTargets', 'List all targets.', 'admin', many('Target', 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createTarget',
      summary: 'Register a target.',
      access: 'admin',
      takes: newTarget,
      gives: { 201: one('Target', 'ETag', 'Location') },
      refuses: [409],
    },
  },
  '/api/targets/{id}/health': {
    get: get(
      'getTargetHealth',
      'Get the health of a target, as the replica that answers has last seen it.',
      'admin',
      one('TargetHealth'),
    ),
  },
  '/api/targets/{id}': {
    get: tagged('getTarget', 'Get a target.', one('Target', 'ETag')),
    put: {
      id: 'updateTarget',
      summary:
        'Update a target. Omitted members keep their values. A change of the URL, transport, command, arguments or environment disables its credentials until they are set again.',
      access: 'admin',
      takes: changedTarget,
      gives: { 200: one('Target', 'ETag') },
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
