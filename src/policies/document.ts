/** Policy documents: what an administrator writes, a table holds and the compiler reads. */

export const EFFECTS = ['allow', 'deny'] as const;
export type Effect = (typeof EFFECTS)[number];

export const RESOURCE_TYPES = ['tool', 'resource', 'prompt'] as const;
/** The kinds of MCP object that a request can name. */
export type ResourceType = (typeof RESOURCE_TYPES)[number];
/** What a policy covers: one kind of object, or every kind. */
export type PolicyResourceType = ResourceType | 'all';

export const SUBJECT_TYPES = ['everyone', 'role', 'group', 'user'] as const;
export type SubjectType = (typeof SUBJECT_TYPES)[number];

export interface PolicySubject {
  readonly id: string;
  readonly subject_type: SubjectType;
  /** Role name, group name or user id; null exactly for `everyone`. */
  readonly subject_value: string | null;
}

export interface Policy {
  /** Lower-case UUID. */
  readonly id: string;
  readonly name: string;
  readonly description: string | null;
  /** null: every target. */
  readonly target_id: string | null;
  readonly resource_type: PolicyResourceType;
  /** RE2, unanchored; null: every name. */
  readonly resource_pattern: string | null;
  readonly effect: Effect;
  /** Signed 32-bit; the higher is read first. */
  readonly priority: number;
  readonly enabled: boolean;
  /** An empty list matches nobody. */
  readonly subjects: readonly PolicySubject[];
  /** Milliseconds since the epoch; RFC 3339 on the wire. */
  readonly created_at: number;
  readonly updated_at: number;
}

/** A policy as the table holds it. What more it says has no part in a decision. */
export interface StoredPolicy extends Policy {
  /** `<owner>/<file name without its extension>` of the file that it is applied from; null: it was made over the API. */
  readonly managed_as: string | null;
}
