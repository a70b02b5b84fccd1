/** Policy documents: the form that administrators write, the table holds and the compiler reads. */

export const EFFECTS = ['allow', 'deny'] as const;
export type Effect = (typeof EFFECTS)[number];

export const RESOURCE_TYPES = ['tool', 'resource', 'prompt'] as const;
/** The kinds of MCP objects that a request can name. */
export type ResourceType = (typeof RESOURCE_TYPES)[number];
/** What a policy covers: one kind of object, or every kind. */
export type PolicyResourceType = ResourceType | 'all';

export const SUBJECT_TYPES = ['everyone', 'role', 'group', 'user'] as const;
export type SubjectType = (typeof SUBJECT_TYPES)[number];

export interface PolicySubject {
  readonly id: string;
  readonly subject_type: SubjectType;
  /** A role name, group name or user id; null exactly for `everyone`. */
  readonly subject_value: string | null;
}

export interface Policy {
  /** A lower-case UUID. */
  readonly id: string;
  readonly name: string;
  readonly description: string | null;
  /** null: every target. */
  readonly target_id: string | null;
  readonly resource_type: PolicyResourceType;
  /** An RE2 pattern, unanchored; null: every name. */
  readonly resource_pattern: string | null;
  readonly effect: Effect;
  /** A signed 32-bit integer. Policies with higher priorities are evaluated first. */
  readonly priority: number;
  readonly enabled: boolean;
  /** An empty list matches no caller. */
  readonly subjects: readonly PolicySubject[];
  /** Milliseconds since the epoch; RFC 3339 in JSON. */
  readonly created_at: number;
  readonly updated_at: number;
}

/** A policy as the table holds it. Its additional members have no part in decisions. */
export interface StoredPolicy extends Policy {
  /** `<owner>/<file name without its extension>` of the policy's file; null: the policy was created over the API. */
  readonly managed_as: string | null;
  /** The first revision that changed the policy outside of its file since the file was last applied; null: none did. */
  readonly drift_since: number | null;
}

/** The types of resources that the policy is about. */
export const typesOf = ({ resource_type }: Policy): readonly Policy['resource_type'][] =>
  resource_type === 'all' ? RESOURCE_TYPES : [resource_type];
