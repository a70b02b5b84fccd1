/**
 * Finds the mode (stateful or stateless) and the protocol revision of a message, and checks that its HTTP headers agree with
 * its body. Pure. The body decides, as in the SDKs: `initialize`, or no per-request envelope, means a session revision
 * (stateful); an envelope in `params._meta` means 2026-07-28 (stateless). Headers may only agree.
 */
import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { CODES, type Rejection, type RpcMessage } from './message.ts';

export const STATELESS_REVISION = '2026-07-28';
/** Newest first. */
export const SESSION_REVISIONS = ['2025-11-25', '2025-06-18', '2025-03-26'] as const;
export type SessionRevision = (typeof SESSION_REVISIONS)[number];
/** The only revision that has JSON-RPC batches. */
export const BATCH_REVISION: SessionRevision = '2025-03-26';

export type Mode = 'stateful' | 'stateless';

export const META_KEYS = {
  version: 'io.modelcontextprotocol/protocolVersion',
  capabilities: 'io.modelcontextprotocol/clientCapabilities',
  clientInfo: 'io.modelcontextprotocol/clientInfo',
  logLevel: 'io.modelcontextprotocol/logLevel',
} as const;

export interface ProtocolHeaders {
  readonly version: string | undefined;
  readonly method: string | undefined;
  readonly name: string | undefined;
}

export type ModeOutcome = { readonly mode: 'stateful' } | { readonly mode: 'stateless'; readonly revision: string } | Rejection;

export function isSessionRevision(version: JsonValue | undefined): version is SessionRevision {
  return (SESSION_REVISIONS as readonly JsonValue[]).includes(version ?? null);
}

/** Revisions are dates, so later ones compare greater. 2026-07-28 and all later ones are stateless. */
function isStateless(version: string | undefined): boolean {
  return version !== undefined && version >= STATELESS_REVISION;
}

export function classifyMode(message: RpcMessage, headers: ProtocolHeaders): ModeOutcome {
  if (message.kind === 'response') return { mode: 'stateful' };
  const claim = envelope(message.params);
  if (message.kind === 'notification') return classifyNotification(message.method, claim, headers);
  if (message.method === 'initialize' && !isValidStatelessClaim(claim)) {
    return isStateless(headers.version)
      ? mismatch('initialize opens a session, which the version header rules out')
      : { mode: 'stateful' };
  }
  if (claim !== null) {
    const problem = envelopeProblem(claim);
    if (problem !== null) return { status: 400, code: CODES.invalidParams, message: `Invalid _meta: ${problem}` };
    const revision = claim[META_KEYS.version] as string;
    if (headers.version !== undefined && headers.version !== revision) return mismatch('MCP-Protocol-Version differs from _meta');
    if (headers.method !== undefined && headers.method !== message.method) return mismatch('Mcp-Method differs from method');
    return { mode: 'stateless', revision };
  }
  if (isStateless(headers.version)) {
    return {
      status: 400,
      code: CODES.invalidParams,
      message: `Invalid params: _meta lacks ${META_KEYS.version}, which the MCP-Protocol-Version header calls for`,
    };
  }
  return { mode: 'stateful' };
}

function classifyNotification(method: string, claim: JsonObject | null, headers: ProtocolHeaders): ModeOutcome {
  const claimed = claim?.[META_KEYS.version];
  if (claim !== null && typeof claimed !== 'string') {
    return { status: 400, code: CODES.invalidParams, message: `Invalid _meta: ${META_KEYS.version} must be a string` };
  }
  const revision = claim === null ? headers.version : (claimed as string);
  if (claim !== null && headers.version !== undefined && headers.version !== revision) {
    return mismatch('MCP-Protocol-Version differs from _meta');
  }
  if (claim === null && !isStateless(revision)) return { mode: 'stateful' };
  if (isStateless(revision) && headers.method !== undefined && headers.method !== method) {
    return mismatch('Mcp-Method differs from method');
  }
  return { mode: 'stateless', revision: revision as string };
}

/** The `_meta` of a message, if it names a revision; otherwise null. */
function envelope(params: JsonObject | undefined): JsonObject | null {
  const meta = params?._meta;
  return isObject(meta) && META_KEYS.version in meta ? meta : null;
}

export function hasEnvelope(message: RpcMessage): boolean {
  return message.kind !== 'response' && envelope(message.params) !== null;
}

function isValidStatelessClaim(claim: JsonObject | null): boolean {
  const version = claim?.[META_KEYS.version];
  return claim !== null && typeof version === 'string' && isStateless(version) && envelopeProblem(claim) === null;
}

export const LOG_LEVELS: readonly JsonValue[] = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency'];

function envelopeProblem(meta: JsonObject): string | null {
  if (typeof meta[META_KEYS.version] !== 'string') return `${META_KEYS.version} must be a string`;
  if (!isObject(meta[META_KEYS.capabilities])) return `${META_KEYS.capabilities} must be an object`;
  const info = meta[META_KEYS.clientInfo];
  if (info !== undefined && !(isObject(info) && typeof info.name === 'string' && typeof info.version === 'string')) {
    return `${META_KEYS.clientInfo} must have name and version`;
  }
  const level = meta[META_KEYS.logLevel];
  if (level !== undefined && !LOG_LEVELS.includes(level)) return `${META_KEYS.logLevel} must be a log level`;
  return null;
}

export function mismatch(what: string): Rejection {
  return { status: 400, code: CODES.headerMismatch, message: `Header mismatch: ${what}` };
}

export function unsupportedVersion(requested: string, supported: readonly string[]): Rejection {
  return {
    status: 400,
    code: CODES.unsupportedVersion,
    message: `Unsupported protocol version: ${requested.slice(0, 64)}`,
    data: { supported: [...supported], requested: requested.slice(0, 64) },
  };
}
