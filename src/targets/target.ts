/** A target as the request path sees it. */
import type { Principal } from '../auth/principal.ts';
import type { ResourceType } from '../policies/document.ts';

export const TRANSPORTS = ['streamable-http', 'sse', 'stdio'] as const;
export type Transport = (typeof TRANSPORTS)[number];

/** Of targets: they are segments of paths, and prefixes of names where several targets share one endpoint. */
export const TARGET_NAME = /^[a-z][a-z0-9-]{0,62}$/;

/**
 * Who shares a process of a stdio target. `per_user`: nobody, each session has its own. In the others the gateway is the one
 * client of the process, and no session sees what belongs to another.
 */
export const ISOLATIONS = ['per_user', 'per_group', 'per_role', 'shared'] as const;
export type Isolation = (typeof ISOLATIONS)[number];

/** What a target may ask its client for. */
export const ASKABLE = ['sampling', 'elicitation', 'elicitation_url', 'roots'] as const;
export type Askable = (typeof ASKABLE)[number];

/** Where a credential goes: `bearer` in the header `authorization`, `header` in the named one, `env` in the variable of a process. */
export interface CredentialKey {
  readonly type: 'bearer' | 'header' | 'env';
  /** Of headers in lower case. */
  readonly name: string;
}

/** A method beyond the protocol's that the target serves, and the member of `params` that names what it is about. */
export interface ExtensionMethod {
  readonly method: string;
  readonly resource_type: Exclude<ResourceType, 'all'>;
  readonly param: string;
}

/** That the audit log has the arguments of calls, all but the values of members with these names. */
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
  /** What a refused call is answered: that policy refuses it, or what a name that nobody has is answered. */
  readonly denials: 'shown' | 'hidden';
  readonly may_ask: readonly Askable[];
  readonly extension_methods: readonly ExtensionMethod[];
  /** For these, users may supply values of their own. */
  readonly user_credentials: readonly CredentialKey[];
  /** How long the target may be silent while a request is under way, milliseconds; null: as the configuration says. */
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
  /** Absolute path; null: a folder of the process's own, empty and gone with it. */
  readonly cwd: string | null;
  /** All that the process finds in its environment, credentials aside. */
  readonly env: Readonly<Record<string, string>>;
  readonly isolation: Isolation;
}

export type Target = HttpTarget | StdioTarget;

/** Where the target is: another text means another server. */
export function addressOf(target: Target): string {
  if (target.transport !== 'stdio') return target.url;
  const { command, args, cwd, env, isolation } = target;
  return JSON.stringify([command, args, cwd, Object.entries(env).sort(), isolation]);
}

/** The gateway's own credentials for one principal at one target. They never leave the process but towards the target. */
export interface Credentials {
  /** Names in lower case. */
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly env: Readonly<Record<string, string>>;
  /** Which credentials these are: differs where any value may differ, and tells nothing of them. */
  readonly identity: string;
}

/** What one principal reaches a target with. */
export interface Access {
  /** `unusable`: the target has moved since one was set, or its value cannot be opened. */
  readonly credentials: Credentials | 'unusable';
  /** Of a stdio target: who shares the process; callers with the same scope may. null: nobody but the session. */
  readonly scope: string | null;
  /** Of a stdio target: whose a process is that nobody else can share. */
  readonly owner?: string;
  /** What an upstream session depends on: one that was opened under another binding must not be used on. */
  readonly binding: string;
}

export type RoutedTarget = Target & {
  /** Pure, and of the moment at which the target was read. */
  readonly accessOf: (principal: Pick<Principal, 'sub' | 'role' | 'groups'>) => Access;
};
