/** The audit log of decisions. */
import { filterMembers } from '../../audit/search/filter.ts';
import type { LogJson } from '../../audit/search/log-json.ts';
import { model, text } from '../../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, many, type Operations, one, paged, parameter } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const logFilters = queryOf(filterMembers);

export const erasing = model<{ user_id: string }>('Erasing', { user_id: text(USER_LIMITS.name).required() }).required();

const LogEntry = s.model<LogJson>('LogEntry', {
  id: s.described('The decision id that the client received.', s.uuid),
  created_at: s.time,
  user_id: s.string,
  user_email: s.string,
  user_role: s.string,
  user_groups: s.listOf(s.string),
  target_id: s.orNull(s.uuid),
  target_name: s.string,
  method: s.string,
  resource_type: s.orNull(s.oneOf(RESOURCE_TYPES)),
  resource_name: s.orNull(s.string),
  arguments: s.described(
    'The masked arguments; null if the target does not have `capture_arguments`, or after an erasure. `cut`: texts are shortened, or `value` is null.',
    s.orNull(s.model('CapturedCall', { value: s.described('Any JSON value.', {}), cut: s.boolean })),
  ),
  effect: s.oneOf(EFFECTS),
  policy_id: s.orNull(s.uuid),
  policy_name: s.orNull(s.string),
  policy_priority: s.orNull(s.int32),
  reason: s.oneOf(['matched', 'default', 'error', 'no_target', 'not_canonical']),
  issuer: s.string,
  revision: s.integer,
  data_hash: s.sha256,
  engine_hash: s.sha256,
  outcome: s.described(
    'null until the outcome is known.',
    s.orNull(s.oneOf(['ok', 'error', 'upstream_error', 'denied', 'cancelled'])),
  ),
  duration_ms: s.orNull(s.integer),
  shown: s.described(
    'The listed names after filtering. Names beyond 256 KiB are left out.',
    s.orNull(s.model('ListedNames', { count: s.integer, hidden: s.integer, names: s.listOf(s.string) })),
  ),
});
const Checkpoint = s.model('Checkpoint', {
  checkpoint: s.described('A compact JWS under a key of /.well-known/jwks.json.', s.string),
});
const Erased = s.model('Erased', { erased: s.described('The number of changed rows.', s.integer) });

export const LOG_OPERATIONS: Operations = {
  'GET /api/logs': get(
    'listDecisions',
    'List decisions, newest first. A page may be short or empty and still have a next page.',
    many(LogEntry, 'Link'),
    { query: [...paged, ...logFilters] },
  ),
  'GET /api/logs/checkpoint': get(
    'getCheckpoint',
    'Get a signed checkpoint: the current heads of the audit chains.',
    one(Checkpoint),
  ),
  'GET /api/logs/export': get(
    'exportLog',
    'Export the log as a stream. NDJSON without a filter has every record, for `portcullis audit verify`. Otherwise the stream has decisions, newest first.',
    { schema: { type: 'string' }, headers: [], mediaType: 'application/x-ndjson', orMediaType: 'text/csv' },
    {
      query: [
        { ...parameter('query', 'format', { type: 'string', enum: ['ndjson', 'csv'] }, 'The format.'), required: true },
        ...logFilters,
      ],
    },
  ),
  'POST /api/logs/erase': {
    id: 'erasePersonalData',
    access: 'admin',
    summary: "Erase e-mail, groups and arguments from a user's rows.",
    takes: erasing,
    gives: { 200: one(Erased) },
  },
  'GET /api/logs/{id}': get('getDecision', 'Get a decision.', one(LogEntry)),
};
