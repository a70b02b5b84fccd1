/** The type of a target, as the request path uses it. */

import type { Principal } from '../auth/principal.ts';
import type { Now } from '../base/promises.ts';
import type { NamedObject } from '../engine/decision.ts';
import { ASKABLE, type Askable } from '../protocol/capabilities.ts';
import type { ExtensionMethod } from '../protocol/operation.ts';

export const TRANSPORTS = ['streamable-http', 'sse', 'stdio'] as const;
export type Transport = (typeof TRANSPORTS)[number];

/** Names of targets are path segments, and prefixes of names at the aggregate endpoint. */
export const TARGET_NAME = /^[a-z][a-z0-9-]{0,62}$/;

export const DENIALS = ['shown', 'hidden'] as const;

/**
 * Which sessions share a process of a stdio target. `per_user`: each session has its own process. With the other values the
 * gateway is the only client of the process, and keeps the messages of the sessions apart.
 */
export const ISOLATIONS = ['per_user', 'per_group', 'per_role', 'shared'] as const;
export type Isolation = (typeof ISOLATIONS)[number];

export const CREDENTIAL_TYPES = ['bearer', 'header', 'env'] as const;

/**
 * Where a credential is sent: `bearer` in the header `authorization`, `header` in the named header, `env` in a variable of the
 * process.
 */
export interface CredentialKey {
  readonly type: (typeof CREDENTIAL_TYPES)[number];
  /** The name of a header is in lower case. */
  readonly name: string;
}

/**
 * Each user calls the target with their own OAuth account there. Such a target has no other credentials. If a member is null, the gateway
 * finds its value in the target's protected resource metadata (RFC 9728).
 */
export interface OwnAccounts {
  /** The authorization server; null: the one that the target names. */
  readonly issuer: string | null;
  /** The client that the authorization server's administrator registered for the gateway; null: the gateway registers itself. */
  readonly client_id: string | null;
  /** Empty: the scopes that the target names. */
  readonly scopes: readonly string[];
  /** Whether requests to the authorization server name the target (RFC 8707). Some servers refuse that. */
  readonly send_resource: boolean;
}

/** The audit log records the arguments of calls, except the values of members with these names. */
export interface ArgumentCapture {
  readonly mask: readonly string[];
}

/** Members of every target that are stored together. */
interface TargetOptions {
  /**
   * `shown`: the answer to a refused call says that policy refuses it. `hidden`: the answer is the same as for an unknown name.
   */
  readonly denials: (typeof DENIALS)[number];
  readonly may_ask: readonly Askable[];
  readonly extension_methods: readonly ExtensionMethod[];
  /** Keys for which users may supply their own values. */
  readonly user_credentials: readonly CredentialKey[];
  /** null: the gateway calls the target with credentials of its own. Always null for stdio. */
  readonly own_accounts: OwnAccounts | null;
  /** null: arguments are not recorded. */
  readonly capture_arguments: ArgumentCapture | null;
  /** How long the target may be silent during a request, in milliseconds; null: the value of the configuration. */
  readonly timeout_ms: number | null;
}

interface TargetBase extends TargetOptions {
  /** Lower-case UUID. */
  readonly id: string;
  /** A `TARGET_NAME`, unique; the path segment of `/mcp/<name>`. */
  readonly name: string;
  readonly description: string | null;
  readonly enabled: boolean;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface HttpTarget extends TargetBase {
  readonly transport: 'streamable-http' | 'sse';
  readonly url: string;
}

interface ProcessMembers {
  /** Absolute path of an executable that the configuration allows. */
  readonly command: string;
  readonly args: readonly string[];
  /** Absolute path; null: the process gets an empty folder of its own, which is deleted when the process ends. */
  readonly cwd: string | null;
  /** The whole environment of the process, except credentials. */
  readonly env: Readonly<Record<string, string>>;
  readonly isolation: Isolation;
}

export interface StdioTarget extends TargetBase, ProcessMembers {
  readonly transport: 'stdio';
}

export type Target = HttpTarget | StdioTarget;

/** What the store and requests must know of a member. */
interface Member<T> {
  /** The value for requests without the member. */
  readonly absent: T;
  /** Set if older rows lack the member: they get the value, too. A row that lacks a different member is damaged. */
  readonly isNewer?: true;
  /**
   * Whether a stored value has the type of the member. It checks no more, because the rules for requests may have become stricter
   * since.
   */
  readonly fits: (value: unknown) => boolean;
}
type Members<T> = { readonly [Name in keyof T]: Member<T[Name]> };
type Fits = Member<unknown>['fits'];

const isText: Fits = (value) => typeof value === 'string';
const isBoolean: Fits = (value) => typeof value === 'boolean';
const oneOf =
  (values: readonly unknown[]): Fits =>
  (value) =>
    values.includes(value);
const orNull =
  (fits: Fits): Fits =>
  (value) =>
    value === null || fits(value);
const listOf =
  (fits: Fits): Fits =>
  (value) =>
    Array.isArray(value) && value.every(fits);
const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const record =
  (members: Readonly<Record<string, Fits>>): Fits =>
  (value) =>
    isRecord(value) && Object.entries(members).every(([name, fits]) => fits(value[name]));

/** The names are in the order of the API. */
export const OPTIONS: Members<TargetOptions> = {
  denials: { absent: 'shown', fits: oneOf(DENIALS) },
  may_ask: { absent: ASKABLE, fits: listOf(oneOf(ASKABLE)) },
  extension_methods: { absent: [], fits: listOf(record({ method: isText, resource_type: isText, param: isText })) },
  user_credentials: { absent: [], fits: listOf(record({ type: oneOf(CREDENTIAL_TYPES), name: isText })) },
  own_accounts: {
    absent: null,
    isNewer: true,
    fits: orNull(record({ issuer: orNull(isText), client_id: orNull(isText), scopes: listOf(isText), send_resource: isBoolean })),
  },
  capture_arguments: { absent: null, isNewer: true, fits: orNull(record({ mask: listOf(isText) })) },
  timeout_ms: { absent: null, isNewer: true, fits: orNull(Number.isSafeInteger) },
};
export const PROCESS: Members<ProcessMembers> = {
  command: { absent: '', fits: isText },
  args: { absent: [], fits: listOf(isText) },
  cwd: { absent: null, fits: orNull(isText) },
  env: { absent: {}, fits: (value) => isRecord(value) && Object.values(value).every(isText) },
  isolation: { absent: 'per_user', fits: oneOf(ISOLATIONS) },
};

/** Returns exactly these members of `given`, with defaults for those that it lacks. */
export const membersOf = <T>(members: Members<T>, given: Readonly<Partial<T>>): T =>
  Object.fromEntries(
    Object.entries<Member<unknown>>(members).map(([name, { absent }]) => [
      name,
      Object.hasOwn(given, name) ? given[name as keyof T] : absent,
    ]),
  ) as T;

/** Returns the members of a stored value; null: the value does not have their format. */
export function storedMembers<T>(members: Members<T>, stored: unknown): T | null {
  if (!isRecord(stored)) return null;
  const fit = Object.entries<Member<unknown>>(members).every(([name, { isNewer = false, fits }]) =>
    Object.hasOwn(stored, name) ? fits(stored[name]) : isNewer,
  );
  return fit ? membersOf(members, stored as Partial<T>) : null;
}

/** Returns a text that identifies the server of the target: a different text means a different server. */
export function addressOf(target: Target): string {
  if (target.transport !== 'stdio') return target.url;
  const { command, args, cwd, env, isolation } = target;
  return JSON.stringify([command, args, cwd, Object.entries(env).sort(), isolation]);
}

/** The credentials with which the gateway calls one target for one principal. The gateway sends them only to the target. */
export interface Credentials {
  /** Names in lower case. */
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly env: Readonly<Record<string, string>>;
  /** Identifies the credentials. It differs if any value may differ, and reveals nothing about the values. */
  readonly identity: string;
}

/** The account of a user at a target with own accounts. Its tokens are not part of the state: `src/connections/tokens.ts` reads them. */
export interface OwnAccount {
  /** null: the user has not connected an account. */
  readonly connectionId: string | null;
}

/** How the gateway calls a target for one principal. */
export interface Access {
  /** Set if the target has own accounts: `credentials` are then empty, and the token is added when a request is sent. */
  readonly account?: OwnAccount;
  /** `unusable`: the target has moved since a credential was set, or a value cannot be opened. */
  readonly credentials: Credentials | 'unusable';
  /** For a stdio target: callers with the same scope share a process; null: the session has its own process. */
  readonly scope: string | null;
  /** For a stdio target: the user of a process that no other user can share. */
  readonly owner?: string;
  /** The user on whose behalf the target is used, for limits. */
  readonly user: string;
  /**
   * Identifies what an upstream session depends on. A session that was opened under a different binding must not be used any
   * longer.
   */
  readonly binding: string;
  /** Asked before each message to the target. Absent: nothing has been decided, so nothing can have changed. */
  readonly stillAllowed?: StillAllowed | undefined;
}

/**
 * Whether the caller may still use the target and the objects, with the same credentials. A message can have waited for minutes after its
 * decision. `objects` absent: those of the decision. Rejects if the state cannot be read.
 */
export type StillAllowed = (objects?: readonly NamedObject[]) => Now<boolean>;

export type RoutedTarget = Target & {
  /** Pure. It uses the credentials of the moment at which the target was read. */
  readonly accessOf: (principal: Pick<Principal, 'sub' | 'role' | 'groups'>) => Access;
};
