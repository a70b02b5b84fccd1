/** The replicas. */
import { get, one, type Paths } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const Status = s.model('Status', {
  sequence: s.described('The number of the newest administrative change.', s.integer),
  revision: s.described('The revision of the newest policy set.', s.integer),
  replicas: s.listOf(
    s.model('Replica', {
      id: s.uuid,
      this: s.described('Whether this replica answers the request.', s.boolean),
      started_at: s.time,
      seen_ms_ago: s.described('Milliseconds since the last report of the replica.', s.integer),
      sequence: s.integer,
      revision: s.integer,
      lag: s.described('How many changes the replica has not read yet. It reads them before its next decision.', s.integer),
      engine_hash: s.sha256,
    }),
  ),
});

export const STATUS_PATHS: Paths = {
  '/api/status': {
    get: get('getStatus', 'List the live replicas and the state that each has read.', 'admin or auditor', one(Status)),
  },
};
