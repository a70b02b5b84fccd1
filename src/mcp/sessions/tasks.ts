/**
 * Tasks of 2025-11-25, and of the extension of 2026-07-28 (SEP-2663). A target cannot tell the users of one credential apart.
 * So the gateway binds each task to the principal whose call made it: clients get sealed ids, and each use of a task is
 * decided as the tool that made it. Pure except for the seal.
 */
import { createHash } from 'node:crypto';
import type { Principal } from '../../auth/principal.ts';
import { isObject, type JsonObject, type JsonValue } from '../../base/json/json.ts';
import type { SessionRevision } from '../../protocol/mode.ts';
import type { Operation } from '../../protocol/operation.ts';
import type { Seal } from './seal.ts';

/** The only session revision that has tasks. */
export const TASKS_REVISION: SessionRevision = '2025-11-25';
/** The member of `_meta` with which messages of 2025-11-25 name their task. */
export const RELATED_TASK = 'io.modelcontextprotocol/related-task';
export const TASK_STATUS = 'notifications/tasks/status';
export const TASK_NOT_FOUND = 'Task not found';

/** How long the gateway remembers a task. Targets may keep theirs for a shorter time. */
export const TASK_LIFETIME_MS = 30 * 24 * 60 * 60 * 1000;
const MAX_UPSTREAM_ID_LENGTH = 512;
const MAX_SEALED_LENGTH = 8192;

export interface Task {
  /** The id that the client knows. */
  readonly handle: string;
  /** The id that the target knows. */
  readonly upstreamId: string;
  /** The tool whose call made it. */
  readonly tool: string;
}

interface TaskContent {
  /** The target's fingerprint (`fingerprintOf`). */
  readonly t: string;
  readonly n: string;
  readonly u: string;
  readonly a: number;
}

export type Owner = Pick<Principal, 'sub'>;

/** Part of every seal and key of an owner, because the handles of earlier versions contain it. */
export const SEAL_ISSUER = 'portcullis';

export const ofTarget = (owner: Owner, targetName: string): string => JSON.stringify([SEAL_ISSUER, owner.sub, targetName]);

/** What a task is bound to: its principal, and the target at its present address. */
export interface TaskScope {
  readonly seal: Seal;
  readonly owner: Owner;
  readonly targetName: string;
  readonly fingerprint: string;
  readonly now: number;
}

export function sealTask({ seal, owner, targetName, fingerprint, now }: TaskScope, upstreamId: string, tool: string): Task {
  const content: TaskContent = { t: fingerprint, n: tool, u: upstreamId, a: now };
  return { handle: seal.seal('task', ofTarget(owner, targetName), content), upstreamId, tool };
}

/** null for every text that is not a valid task of this principal on this target: foreign, edited, expired or malformed. */
export function openTask({ seal, owner, targetName, fingerprint, now }: TaskScope, handle: JsonValue | undefined): Task | null {
  if (typeof handle !== 'string' || handle.length > MAX_SEALED_LENGTH) return null;
  const content = seal.open('task', ofTarget(owner, targetName), handle) as TaskContent | null;
  if (content === null || content.t !== fingerprint || now - content.a > TASK_LIFETIME_MS) return null;
  return { handle, upstreamId: content.u, tool: content.n };
}

/** The operation as which each use of a task is decided. */
export function toolOf({ tool }: Task): Operation & { readonly kind: 'object' } {
  return { kind: 'object', object: { resource_type: 'tool', resource_name: tool }, canonical: true };
}

/** The key under which a task is stored, to find the client's id by the target's id. Different principals get different keys. */
export function taskKey({ sub }: Owner, fingerprint: string, upstreamId: string): string {
  return createHash('sha256')
    .update(JSON.stringify([SEAL_ISSUER, sub, fingerprint, upstreamId]))
    .digest('base64url');
}

/** The id that a target gives to a task; null: not an id. */
export function upstreamTaskId(value: JsonValue | undefined): string | null {
  return typeof value === 'string' && value !== '' && value.length <= MAX_UPSTREAM_ID_LENGTH ? value : null;
}

export function isTaskMethod(method: string): boolean {
  return method.startsWith('tasks/');
}

/** The task that a message of the target names. undefined: the message names none; null: the name is unreadable. */
export function relatedTask(holder: JsonObject | undefined): string | null | undefined {
  const meta = holder?._meta;
  if (!isObject(meta) || !(RELATED_TASK in meta)) return undefined;
  const related = meta[RELATED_TASK];
  return isObject(related) ? upstreamTaskId(related.taskId) : null;
}

/** `_meta` for the target: a reference to a task of this client gets the target's id, any other reference is removed. */
export function inwardMeta(meta: JsonObject, scope: TaskScope): JsonObject {
  if (!(RELATED_TASK in meta)) return meta;
  const { [RELATED_TASK]: related, ...rest } = meta;
  const task = isObject(related) ? openTask(scope, related.taskId) : null;
  return task === null ? rest : { ...rest, [RELATED_TASK]: { taskId: task.upstreamId } };
}
