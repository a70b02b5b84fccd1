/** The audit log of decisions. */
import { AUDIT_REASONS } from '../../audit/event.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../policies/document.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { get, many, one, type Paths, paged, parameter } from './operation.ts';
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
  strict,
  string,
  text,
  time,
  uuid,
} from './schema.ts';

const logFilters = [
  parameter('query', 'from', time, 'Decided then or later.'),
  parameter('query', 'to', time, 'Decided before.'),
  parameter('query', 'id', uuid, 'The decision id.'),
  parameter('query', 'user_id', { type: 'string' }, 'Decisions on this user.'),
  parameter('query', 'target_id', uuid, 'On this target.'),
  parameter('query', 'target_name', { type: 'string' }, 'On the target of this name.'),
  parameter('query', 'method', { type: 'string' }, 'JSON-RPC method.'),
  parameter('query', 'resource_type', { type: 'string', enum: RESOURCE_TYPES }, 'What was asked for.'),
  parameter('query', 'resource_name', { type: 'string' }, 'Its name, or URI.'),
  parameter('query', 'resource_name_prefix', { type: 'string' }, 'How its name begins.'),
  parameter('query', 'effect', { type: 'string', enum: EFFECTS }, 'The answer.'),
  parameter('query', 'policy_id', uuid, 'The policy that decided.'),
  parameter('query', 'reason', { type: 'string', enum: AUDIT_REASONS }, 'Why.'),
];

export const LOG_SCHEMAS = {
  LogEntry: object({
    id: described('The decision id that the caller was told.', uuid),
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
      'Masked; null unless the target has `capture_arguments`, and once they are erased. `cut`: texts are shortened, or `value` is null.',
      orNull(named('CapturedCall', object({ value: described('Any JSON.', {}), cut: boolean }))),
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
    outcome: described('null until it is known.', orNull(oneOf(['ok', 'error', 'upstream_error', 'denied', 'cancelled']))),
    duration_ms: orNull(integer),
    shown: described(
      'What a list showed, after filtering; names are cut off at 256 KiB.',
      orNull(named('ListedNames', object({ count: integer, hidden: integer, names: listOf(string) }))),
    ),
  }),
  Checkpoint: object({ checkpoint: described('A compact JWS under a key of /.well-known/jwks.json.', string) }),
  Erasing: strict({ user_id: text(USER_LIMITS.name) }, ['user_id']),
  Erased: object({ erased: described('Rows that were changed.', integer) }),
} satisfies Record<string, Schema>;

export const LOG_PATHS: Paths = {
  '/api/logs': {
    get: get(
      'listDecisions',
      'Decisions, newest first. A page may be short, or empty, and have a next one.',
      'admin or auditor',
      many('LogEntry', 'Link'),
      {
        query: [...paged, ...logFilters],
      },
    ),
  },
  '/api/logs/checkpoint': {
    get: get('getCheckpoint', 'Where the chains of the log stand now, signed.', 'admin or auditor', one('Checkpoint')),
  },
  '/api/logs/export': {
    get: get(
      'exportLog',
      'The log as a stream. NDJSON without a filter: every record, for `portcullis audit verify`; otherwise decisions, newest first.',
      'admin or auditor',
      { schema: { type: 'string' }, headers: [], mediaType: 'application/x-ndjson', orMediaType: 'text/csv' },
      {
        query: [
          { ...parameter('query', 'format', { type: 'string', enum: ['ndjson', 'csv'] }, 'The form.'), required: true },
          ...logFilters,
        ],
      },
    ),
  },
  '/api/logs/erase': {
    post: {
      id: 'erasePersonalData',
      summary: "Take e-mail, groups and arguments out of a user's rows.",
      access: 'admin',
      takes: 'Erasing',
      gives: { 200: one('Erased') },
    },
  },
  '/api/logs/{id}': { get: get('getDecision', 'One decision.', 'admin or auditor', one('LogEntry')) },
};
