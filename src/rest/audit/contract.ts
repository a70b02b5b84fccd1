/** The audit log of decisions. */

import Joi from 'joi';
import { COUNTED_BY } from '../../audit/search/count-store.ts';
import type { AuditEntry } from '../../audit/search/entries.ts';
import { filterMembers } from '../../audit/search/filter.ts';
import type { LogJson } from '../../audit/search/log-json.ts';
import type { SignedStatement, Statement, statementJson } from '../../audit/verify/statement.ts';
import { instant, model, text, UUID, uuid } from '../../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { type Difference, REPRODUCED } from '../../policies/reproduction.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, getWithToken, inLines, many, type Operations, one, paged, parameter, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const logFilters = queryOf(filterMembers);

export const erasing = model<{ user_id: string }>('Erasing', { user_id: text(USER_LIMITS.name).required() }).required();

const statement = {
  verified_at: instant().required().description('When the verification began.'),
  intact: Joi.boolean().required().description('Whether no record was changed, added or removed.'),
  decision_id: uuid().allow(null).required().description('The newest decision that was verified; null if there was none.'),
  since: instant()
    .allow(null)
    .required()
    .description('Only records after a checkpoint of this time were checked; null if all records were checked.'),
  records: Joi.number().integer().min(0).required().description('How many records were checked.'),
  problems: Joi.number().integer().min(0).required().description('How many chains have a problem.'),
};

/** What `portcullis audit verify --report` sends. */
export const verificationBody = model<SignedStatement>('VerificationReport', {
  ...statement,
  key_id: text(64).required().description('Tells the master keys apart.'),
  mac: text(64).required().description('Made by `portcullis audit verify` with the master key of the gateway.'),
}).required();

/** How many policies one request may name. */
const MAX_POLICIES = 100;
const UUID_LIST = new RegExp(`^${UUID.source.slice(1, -1)}(,${UUID.source.slice(1, -1)}){0,${MAX_POLICIES - 1}}$`);

/** The query of `GET /api/logs/counts`. */
export const countMembers = {
  by: Joi.valid(...COUNTED_BY)
    .required()
    .description('What the decisions are counted by.'),
  from: instant().description('The first hour is the one with this time. The default is 24 hours before `to`.'),
  to: instant().description('Hours that begin before this time. The default is now. At most 31 days after `from`.'),
  policies: Joi.string()
    .pattern(UUID_LIST)
    .messages({ 'string.pattern.base': `must have 1 to ${MAX_POLICIES} ids of policies, with a comma between them` })
    .description('Only decisions of these policies: up to 100 ids, with a comma between them.'),
  target_id: uuid().description('Only decisions about this target.'),
};

export interface CountsJson {
  readonly from: string;
  readonly to: string;
  readonly counted_to: string;
  readonly counts: readonly {
    readonly hour: string | null;
    readonly policy_id: string | null;
    readonly target_id: string | null;
    readonly allowed: number;
    readonly denied: number;
    readonly unmatched: number;
  }[];
  readonly more: boolean;
}

const DecisionCounts = s.model<CountsJson>('DecisionCounts', {
  from: s.described('The beginning of the first hour.', s.time),
  to: s.described('The end of the last hour, or the time of the answer.', s.time),
  counted_to: s.described(
    'Every decision before this time is counted. Decisions are counted a few seconds after they are made.',
    s.time,
  ),
  counts: s.listOf(
    s.model<CountsJson['counts'][number]>('DecisionCount', {
      hour: s.described('The beginning of the hour; null unless the decisions are counted by hour.', s.orNull(s.time)),
      policy_id: s.described('null if no policy decided, or the decisions are not counted by policy.', s.orNull(s.uuid)),
      target_id: s.described('null if the target did not exist, or the decisions are not counted by target.', s.orNull(s.uuid)),
      allowed: s.integer,
      denied: s.described('Decisions that a policy denied.', s.integer),
      unmatched: s.described(
        'Decisions that were denied because no policy matched, or because the evaluation failed.',
        s.integer,
      ),
    }),
  ),
  more: s.described('Whether there are policies or targets with fewer decisions that are left out.', s.boolean),
});

const REASONS = ['matched', 'default', 'error', 'no_target', 'not_canonical'] as const;

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
  reason: s.oneOf(REASONS),
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
const Reproduction = s.model('Reproduction', {
  id: s.uuid,
  revision: s.described('The revision whose policies decided.', s.integer),
  result: s.described(
    '`same`: all members below are as recorded. `not_by_policy`: no policy made the decision. `erased`: the groups of the user have been erased. `damaged`: the record is not what the gateway wrote, or the log lacks data of it; `audit verify` reports both. `unproven`: the gateway cannot tell whether the record is what it wrote, because it lacks the master key of that time (`MASTER_KEY_PREVIOUS`), or because the record is older than the first chain. In the last four cases nothing was decided, and the members are null.',
    s.oneOf(['same', 'differs', 'not_by_policy', 'erased', 'damaged', 'unproven']),
  ),
  effect: s.orNull(s.oneOf(EFFECTS)),
  policy_id: s.orNull(s.uuid),
  reason: s.orNull(s.oneOf(REASONS)),
  data_hash: s.described('The hash of the policies, as in the bundle of the revision.', s.orNull(s.sha256)),
  engine_hash: s.orNull(s.sha256),
  differences: s.listOf(
    s.model<Difference>('ReproductionDifference', {
      member: s.oneOf(REPRODUCED),
      recorded: s.orNull(s.string),
      reproduced: s.orNull(s.string),
    }),
  ),
});
const Checkpoint = s.model('Checkpoint', {
  checkpoint: s.described('A compact JWS under a key of /.well-known/jwks.json.', s.string),
});
export interface VerifiedJson {
  readonly verification: ReturnType<typeof statementJson<Statement>> | null;
  readonly full: VerifiedJson['verification'];
}

const Verification = s.model<NonNullable<VerifiedJson['verification']>>('Verification', {
  verified_at: s.described('When the verification began.', s.time),
  intact: s.described('Whether no record was changed, added or removed.', s.boolean),
  decision_id: s.described('The newest decision that was verified; null if there was none.', s.orNull(s.uuid)),
  since: s.described(
    'Only records after a checkpoint of this time were checked; null if all records were checked.',
    s.orNull(s.time),
  ),
  records: s.described('How many records were checked.', s.integer),
  problems: s.described('How many chains have a problem.', s.integer),
});
const Verified = s.model<VerifiedJson>('Verified', {
  verification: s.described(
    'The newest verification that was reported; null if there was none. One that found a problem stays until a newer one of the whole log finds none.',
    s.orNull(Verification),
  ),
  full: s.described('The newest verification of the whole log; null if there was none.', s.orNull(Verification)),
});
const Erased = s.model('Erased', { erased: s.described('The number of changed rows.', s.integer) });

export type DenialJson = ReturnType<typeof denialJson>;

/** What callers may know of a denial: what they asked for. Reason, policy and id of the target would tell which targets exist (law 10). */
export const denialJson = ({ id, created_at, target_name, method, resource_type, resource_name }: AuditEntry) => ({
  id,
  created_at: new Date(created_at).toISOString(),
  ...{ target_name, method, resource_type, resource_name },
});

const Denial = s.model<DenialJson>('Denial', {
  id: s.described('The decision id, by which an administrator finds the decision.', s.uuid),
  created_at: s.time,
  target_name: s.described('As the caller named it. There may be no such target.', s.string),
  method: s.string,
  resource_type: s.orNull(s.oneOf(RESOURCE_TYPES)),
  resource_name: s.orNull(s.string),
});

/** The maximum number of denials that one answer of `GET /api/logs/demand` adds up. */
export const MOST_DENIALS = 20_000;

const { id: _, effect: __, ...demandFilters } = filterMembers;

/** The query of `GET /api/logs/demand`. */
export const demandMembers = {
  ...demandFilters,
  from: demandFilters.from.description('Denials at or after this time. The default is 7 days ago.'),
  most: Joi.string()
    .pattern(/^[1-9][0-9]{0,4}$/)
    .description(`How many denials are added up, the newest first. The default is the maximum, ${MOST_DENIALS}.`),
};

export interface DemandJson {
  readonly from: string;
  readonly to: string;
  readonly denials: number;
  readonly read_to: string | null;
  readonly demand: readonly {
    readonly target_id: string | null;
    readonly target_name: string;
    readonly resource_type: LogJson['resource_type'];
    readonly resource_name: string | null;
    readonly denials: number;
    readonly user_count: number;
    readonly users: readonly { readonly id: string; readonly email: string; readonly denials: number }[];
    readonly last: Pick<LogJson, 'id' | 'created_at' | 'reason' | 'policy_id' | 'policy_name'>;
  }[];
  readonly more: boolean;
}

const Demand = s.model<DemandJson>('Demand', {
  from: s.time,
  to: s.time,
  denials: s.described('How many denials are added up.', s.integer),
  read_to: s.described('Denials before this time are not part of the answer. null: it has all.', s.orNull(s.time)),
  demand: s.described(
    'What was asked for, the most frequent first.',
    s.listOf(
      s.model<DemandJson['demand'][number]>('DeniedDemand', {
        target_id: s.described('null: the target did not exist.', s.orNull(s.uuid)),
        target_name: s.string,
        resource_type: s.orNull(s.oneOf(RESOURCE_TYPES)),
        resource_name: s.described('null: the use of the target.', s.orNull(s.string)),
        denials: s.integer,
        user_count: s.described('How many users asked.', s.integer),
        users: s.described(
          'The 10 users who asked most often.',
          s.listOf(s.model('DemandOfUser', { id: s.string, email: s.string, denials: s.integer })),
        ),
        last: s.described(
          'The newest of these denials.',
          s.model<DemandJson['demand'][number]['last']>('NewestDenial', {
            id: s.uuid,
            created_at: s.time,
            reason: s.oneOf(REASONS),
            policy_id: s.described('The policy that denied it; null: no policy decided.', s.orNull(s.uuid)),
            policy_name: s.orNull(s.string),
          }),
        ),
      }),
    ),
  ),
  more: s.described('Whether there is more than these 100.', s.boolean),
});

export const LOG_OPERATIONS: Operations = {
  'GET /api/logs': get(
    'listDecisions',
    'List decisions, newest first. A page may be short or empty and still have a next page.',
    many(LogEntry, 'Link'),
    { query: [...paged, ...logFilters] },
  ),
  'GET /api/logs/counts': get(
    'countDecisions',
    'Count decisions by hour, or by policy or target. The counts are not part of the audit chain. At most 1,000 policies or targets, those with the most decisions first.',
    one(DecisionCounts),
    { query: queryOf(countMembers) },
  ),
  'GET /api/logs/demand': get(
    'listDeniedDemand',
    'Add up the denials by what was asked for: how often, by whom, and what denied it last. One answer reads at most 20,000 denials, for about a second.',
    one(Demand),
    { query: queryOf(demandMembers) },
  ),
  'GET /api/logs/denials': getWithToken(
    'listOwnDenials',
    'List what was denied to the caller, newest first. A page may be short or empty and still have a next page.',
    many(Denial, 'Link'),
    { access: 'unlimited token', query: paged },
  ),
  'GET /api/logs/checkpoint': get(
    'getCheckpoint',
    'Get a signed checkpoint: the current heads of the audit chains.',
    one(Checkpoint),
  ),
  'GET /api/logs/verification': get(
    'getVerification',
    'Get what the newest verification of the log found. The gateway itself does not verify the log.',
    one(Verified),
  ),
  'PUT /api/logs/verification': {
    id: 'reportVerification',
    access: 'admin',
    summary:
      'Report what `portcullis audit verify` found. A report that is older than the stored one changes nothing. Neither does one from a checkpoint on that would hide a problem.',
    takes: verificationBody,
    gives: { 200: one(Verified) },
  },
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
  'GET /api/logs/{id}/reproduction': get(
    'reproduceDecision',
    'Make a decision again with the policies of its revision, and compare it with the record.',
    inLines(one(Reproduction, REVISION)),
    { heavy: true },
  ),
};
