/**
 * Tasks, of 2025-11-25 and of the extension of 2026-07-28 (SEP-2663). A target knows all users of one credential as one, so
 * the gateway binds each task to the principal whose call made it: clients hold sealed ids, and whatever is done with one is
 * decided as the tool that made it. Pure but for the seal.
 */
import { createHash } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import { isObject, type JsonObject, type JsonValue } from '../http/json.ts';
import type { SessionRevision } from './era.ts';
import type { Operation } from './operation.ts';
import type { Seal } from './seal.ts';

/** The one session revision that has tasks. */
export const TASKS_REVISION: SessionRevision = '2025-11-25';
/** Where messages of 2025-11-25 name the task that they belong to. */
export const RELATED_TASK = 'io.modelcontextprotocol/related-task';
export const TASK_STATUS = 'notifications/tasks/status';
export const TASK_NOT_FOUND = 'Task not found';

/** For so long the gateway knows a task; targets may keep theirs for a shorter time. */
export const TASK_LIFETIME_MS = 30 * 24 * 60 * 60 * 1000;
const MAX_UPSTREAM_ID_LENGTH = 512;
const MAX_SEALED_LENGTH = 8192;

export interface Task {
  /** What its client calls it. */
  readonly handle: string;
  /** What its target calls it. */
  readonly upstreamId: string;
  /** The tool whose call made it. */
  readonly tool: string;
}

type Owner = Pick<Principal, 'issuer' | 'sub'>;

interface TaskContent {
  /** `placeOf` the target. */
  readonly t: string;
  readonly n: string;
  readonly u: string;
  readonly a: number;
}

const ofTarget = (owner: Owner, targetName: string): string => JSON.stringify([owner.issuer, owner.sub, targetName]);

/** Where a task belongs: its principal, on the target where that is now. */
export interface TaskPlace {
  readonly seal: Seal;
  readonly owner: Owner;
  readonly targetName: string;
  readonly place: string;
  readonly now: number;
}

export function sealTask({ seal, owner, targetName, place, now }: TaskPlace, upstreamId: string, tool: string): Task {
  const content: TaskContent = { t: place, n: tool, u: upstreamId, a: now };
  return { handle: seal.seal('task', ofTarget(owner, targetName), content), upstreamId, tool };
}

/** null alike for another's task, another target's, an edited id, an old one and nonsense. */
export function openTask({ seal, owner, targetName, place, now }: TaskPlace, handle: JsonValue | undefined): Task | null {
  if (typeof handle !== 'string' || handle.length > MAX_SEALED_LENGTH) return null;
  const content = seal.open('task', ofTarget(owner, targetName), handle) as TaskContent | null;
  if (content === null || content.t !== place || now - content.a > TASK_LIFETIME_MS) return null;
  return { handle, upstreamId: content.u, tool: content.n };
}

/** What any use of a task is decided as. */
export function toolOf({ tool }: Task): Operation & { readonly kind: 'object' } {
  return { kind: 'object', object: { resource_type: 'tool', resource_name: tool }, canonical: true };
}

/** Under which a task is remembered, so that its target's id leads to its client's. Nobody else's task has the same. */
export function taskKey({ issuer, sub }: Owner, place: string, upstreamId: string): string {
  return createHash('sha256')
    .update(JSON.stringify([issuer, sub, place, upstreamId]))
    .digest('base64url');
}

/** The id that a target gives a task; null for what is none. */
export function upstreamTaskId(value: JsonValue | undefined): string | null {
  return typeof value === 'string' && value !== '' && value.length <= MAX_UPSTREAM_ID_LENGTH ? value : null;
}

export function isTaskMethod(method: string): boolean {
  return method.startsWith('tasks/');
}

/** The task that a message of the target says it belongs to: undefined where it says nothing, null where it is unreadable. */
export function relatedTask(holder: JsonObject | undefined): string | null | undefined {
  const meta = holder?._meta;
  if (!isObject(meta) || !(RELATED_TASK in meta)) return undefined;
  const related = meta[RELATED_TASK];
  return isObject(related) ? upstreamTaskId(related.taskId) : null;
}

/** `_meta` as it goes to the target: a reference to a task of this client in the target's words, any other left out. */
export function inwardMeta(meta: JsonObject, place: TaskPlace): JsonObject {
  if (!(RELATED_TASK in meta)) return meta;
  const { [RELATED_TASK]: related, ...rest } = meta;
  const task = isObject(related) ? openTask(place, related.taskId) : null;
  return task === null ? rest : { ...rest, [RELATED_TASK]: { taskId: task.upstreamId } };
}
