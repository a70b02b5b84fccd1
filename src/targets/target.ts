/** The type of a target, as the request path uses it. */

import type { Principal } from '../auth/principal.ts';
import type { Askable } from '../mcp/protocol/capabilities.ts';
import type { ExtensionMethod } from '../mcp/protocol/operation.ts';

export const TRANSPORTS = ['streamable-http', 'sse', 'stdio'] as const;
export type Transport = (typeof TRANSPORTS)[number];

/** Names of targets are path segments, and prefixes of names at the aggregate endpoint. */
export const TARGET_NAME = /^[a-z][a-z0-9-]{0,62}$/;

/**
 * Which sessions share a process of a stdio target. `per_user`: each session has its own process. With the other values the
 * gateway is the only client of the process, and keeps the messages of the sessions apart.
 */
export const ISOLATIONS = ['per_user', 'per_group', 'per_role', 'shared'] as const;
export type Isolation = (typeof ISOLATIONS)[number];

/**
 * Where a credential is sent: `bearer` in the header `authorization`, `header` in the named header, `env` in a variable of the
 * process.
 */
export interface CredentialKey {
  readonly type: 'bearer' | 'header' | 'env';
  /** The name of a header is in lower case. */
  readonly name: string;
}

/** The audit log records the arguments of calls, except the values of members with these names. */
export interface ArgumentCapture {
  readonly mask: readonly string[];
}

interface TargetBase {
  /** Lower-case UUID. */
  readonly id: string;
  /** A `TARGET_NAME`, unique; the path segment of `/mcp/<name>`. */
  readonly name: string;
  readonly description: string | null;
  readonly enabled: boolean;
  /**
   * `shown`: the answer to a refused call says that policy refuses it. `hidden`: the answer is the same as for an unknown name.
   */
  readonly denials: 'shown' | 'hidden';
  readonly may_ask: readonly Askable[];
  readonly extension_methods: readonly ExtensionMethod[];
  /** Keys for which users may supply their own values. */
  readonly user_credentials: readonly CredentialKey[];
  /** How long the target may be silent during a request, in milliseconds; null: the value of the configuration. */
  readonly timeout_ms: number | null;
  /** null: arguments are not recorded. */
  readonly capture_arguments: ArgumentCapture | null;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface HttpTarget extends TargetBase {
  readonly transport: 'streamable-http' | 'sse';
  readonly url: string;
}

export interface StdioTarget extends TargetBase {
  readonly transport: 'stdio';
  /** Absolute path of an executable that the configuration allows. */
  readonly command: string;
  readonly args: readonly string[];
  /** Absolute path; null: the process gets an empty folder of its own, which is deleted when the process ends. */
  readonly cwd: string | null;
  /** The whole environment of the process, except credentials. */
  readonly env: Readonly<Record<string, string>>;
  readonly isolation: Isolation;
}

export type Target = HttpTarget | StdioTarget;

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

/** How the gateway calls a target for one principal. */
export interface Access {
  /** `unusable`: the target has moved since a credential was set, or a value cannot be opened. */
  readonly credentials: Credentials | 'unusable';
  /** For a stdio target: callers with the same scope share a process; null: the session has its own process. */
  readonly scope: string | null;
  /** For a stdio target: the user of a process that no other user can share. */
  readonly owner?: string;
  /**
   * Identifies what an upstream session depends on. A session that was opened under a different binding must not be used any
   * longer.
   */
  readonly binding: string;
}

export type RoutedTarget = Target & {
  /** Pure. It uses the credentials of the moment at which the target was read. */
  readonly accessOf: (principal: Pick<Principal, 'sub' | 'role' | 'groups'>) => Access;
};
