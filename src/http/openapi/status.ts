/** The replicas. */
import { get, one, type Paths } from './operation.ts';
import { boolean, described, integer, listOf, named, object, type Schema, sha256, time, uuid } from './schema.ts';

export const STATUS_SCHEMAS = {
  Status: object({
    sequence: described('Of the newest administrative change.', integer),
    revision: described('Of the newest policy set.', integer),
    replicas: listOf(
      named(
        'Replica',
        object({
          id: uuid,
          this: described('It answers this request.', boolean),
          started_at: time,
          seen_ms_ago: described('How old the word of it is.', integer),
          sequence: integer,
          revision: integer,
          lag: described('Changes that it has not read yet; it reads them before it decides again.', integer),
          engine_hash: sha256,
        }),
      ),
    ),
  }),
} satisfies Record<string, Schema>;

export const STATUS_PATHS: Paths = {
  '/api/status': { get: get('getStatus', 'Every live replica, and how far it is.', 'admin or auditor', one('Status')) },
};
