/** The replicas. */
import { get, one, type Paths } from '../openapi/operation.ts';
import { boolean, described, integer, listOf, named, object, type Schema, sha256, time, uuid } from '../openapi/schema.ts';

export const STATUS_SCHEMAS = {
  Status: object({
    sequence: described('The number of the newest administrative change.', integer),
    revision: described('The revision of the newest policy set.', integer),
    replicas: listOf(
      named(
        'Replica',
        object({
          id: uuid,
          this: described('Whether this replica answers the request.', boolean),
          started_at: time,
          seen_ms_ago: described('Milliseconds since the last report of the replica.', integer),
          sequence: integer,
          revision: integer,
          lag: described('How many changes the replica has not read yet. It reads them before its next decision.', integer),
          engine_hash: sha256,
        }),
      ),
    ),
  }),
} satisfies Record<string, Schema>;

export const STATUS_PATHS: Paths = {
  '/api/status': {
    get: get('getStatus', 'List the live replicas and the state that each has read.', 'admin or auditor', one('Status')),
  },
};
