/** The audit log of decisions. */
import { filterMembers } from '../../audit/filter.ts';
import { model, text } from '../../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, many, one, type Paths, paged, parameter } from '../openapi/operation.ts';
import {
  boolean,
  described,
  int32,
  integer,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  type Schema,
  sha256,
  string,
  time,
  uuid,
} from '../openapi/schema.ts';

const logFilters = queryOf(filterMembers);

export const erasing = model<{ user_id: string }>('Erasing', { user_id: text(USER_LIMITS.name).required() }).required();

export const LOG_SCHEMAS = {
  LogEntry: object({
    id: described('The decision id that the client received.', uuid),
    created_at: time,
    user_id: string,
    user_email: string,
    user_role: string,
    user_groups: listOf(string),
    target_id: orNull(uuid),
    target_name: string,
    method: string,
    resource_type: orNull(oneOf(RESOURCE_TYPES)),
    resource_name: orNull(string),
    arguments: described(
      'The masked arguments; null if the target does not have `capture_arguments`, or after an erasure. `cut`: texts are shortened, or `value` is null.',
      orNull(named('CapturedCall', object({ value: described('Any JSON value.', {}), cut: boolean }))),
    ),
    effect: oneOf(EFFECTS),
    policy_id: orNull(uuid),
    policy_name: orNull(string),
    policy_priority: orNull(int32),
    reason: oneOf(['matched', 'default', 'error', 'no_target', 'not_canonical']),
    issuer: string,
    revision: integer,
    data_hash: sha256,
    engine_hash: sha256,
    outcome: described(
      'null until the outcome is known.',
      orNull(oneOf(['ok', 'error', 'upstream_error', 'denied', 'cancelled'])),
    ),
    duration_ms: orNull(integer),
    shown: described(
      'The listed names after filtering. Names beyond 256 KiB are left out.',
      orNull(named('ListedNames', object({ count: integer, hidden: integer, names: listOf(string) }))),
    ),
  }),
  Checkpoint: object({ checkpoint: described('A compact JWS under a key of /.well-known/jwks.json.', string) }),
  Erased: object({ erased: described('The number of changed rows.', integer) }),
} satisfies Record<string, Schema>;

export const LOG_PATHS: Paths = {
  '/api/logs': {
    get: get(
      'listDecisions',
      'List decisions, newest first. A page may be short or empty and still have a next page.',
      'admin or auditor',
      many('LogEntry', 'Link'),
      {
        query: [...paged, ...logFilters],
      },
    ),
  },
  '/api/logs/checkpoint': {
    get: get(
      'getCheckpoint',
      'Get a signed checkpoint: the current heads of the audit chains.',
      'admin or auditor',
      one('Checkpoint'),
    ),
  },
  '/api/logs/export': {
    get: get(
      'exportLog',
      'Export the log as a stream. NDJSON without a filter has every record, for `portcullis audit verify`. Otherwise the stream has decisions, newest first.',
      'admin or auditor',
      { schema: { type: 'string' }, headers: [], mediaType: 'application/x-ndjson', orMediaType: 'text/csv' },
      {
        query: [
          { ...parameter('query', 'format', { type: 'string', enum: ['ndjson', 'csv'] }, 'The format.'), required: true },
          ...logFilters,
        ],
      },
    ),
  },
  '/api/logs/erase': {
    post: {
      id: 'erasePersonalData',
      summary: "Erase e-mail, groups and arguments from a user's rows.",
      access: 'admin',
      takes: erasing,
      gives: { 200: one('Erased') },
    },
  },
  '/api/logs/{id}': { get: get('getDecision', 'Get a decision.', 'admin or auditor', one('LogEntry')) },
};
