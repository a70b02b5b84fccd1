/** Stores in memory. They pass the same contract tests as the stores in the database. */
import type { TaskStore } from '../../src/mcp/sessions/task-store.ts';
import {
  EVERY_TARGET,
  type SessionEnd,
  type SessionFilter,
  type SessionRow,
  type SessionSetting,
  type SessionStore,
  type UpstreamRow,
} from '../../src/sessions/session-store.ts';

interface Stored<T> {
  readonly sessionId: string;
  readonly at: number;
  readonly value: T;
}

const SETTINGS_KEPT = 1_000;

export function memorySessions(): SessionStore {
  const rows = new Map<string, SessionRow>();
  const ended = new Map<string, SessionEnd>();
  const upstreams = new Map<string, Stored<UpstreamRow>>();
  const settings = new Map<string, Stored<SessionSetting> & { readonly targetId: string }>();
  const epochs = new Map<string, { readonly user_id: string; readonly target_id: string; readonly epoch: number }>();
  const keyOf = (...parts: string[]): string => JSON.stringify(parts);
  const active = (since: number, { user_id }: SessionFilter): SessionRow[] =>
    [...rows.values()].filter(
      (row) => !ended.has(row.id) && row.created_at > since && (user_id === undefined || row.user_id === user_id),
    );
  const change = (id: string, changed: Partial<SessionRow>): void => {
    const row = rows.get(id);
    if (row !== undefined) rows.set(id, { ...row, ...changed });
  };
  return {
    async insert(row) {
      if (rows.has(row.id)) throw new Error('a row with this id is there');
      rows.set(row.id, row);
    },
    find: async (id) => (ended.has(id) ? null : (rows.get(id) ?? null)),
    async *parts(since, filter, limit, after) {
      const { target_id } = filter;
      const found = active(since, filter).filter((row) => target_id === undefined || row.target_id === target_id);
      const ordered = found.sort((a, b) => (a.id < b.id ? -1 : 1)).filter(({ id }) => after === null || id > after);
      yield ordered.slice(0, limit ?? ordered.length);
    },
    count: async (since, filter) =>
      active(since, filter).filter(
        ({ target_id }) => filter.target_id === undefined || target_id === null || target_id === filter.target_id,
      ).length,
    async end(id, by) {
      if (!rows.has(id) || ended.has(id)) return false;
      ended.set(id, by);
      return true;
    },
    endedByAdministrators: async (since) =>
      [...rows.values()]
        .filter(({ id, created_at }) => created_at > since && ended.get(id) === 'administrator')
        .map(({ id }) => id),
    async seen(ids, now) {
      for (const id of ids) change(id, { seen_at: now });
    },
    async adopt(id, from, to) {
      if (ended.has(id) || rows.get(id)?.holder !== from) return false;
      change(id, { holder: to });
      return true;
    },
    upstream: async (id, cause) => upstreams.get(keyOf(id, cause))?.value ?? null,
    async insertUpstream(sessionId, cause, value, at) {
      if (upstreams.has(keyOf(sessionId, cause))) return false;
      upstreams.set(keyOf(sessionId, cause), { sessionId, at, value });
      return true;
    },
    settings: async (id, target) =>
      [...settings.values()]
        .filter(({ sessionId, targetId }) => sessionId === id && (targetId === target || targetId === EVERY_TARGET))
        .sort((a, b) => a.at - b.at)
        .map(({ value }) => value),
    async set(sessionId, targetId, value, now) {
      const key = keyOf(sessionId, targetId, value.key);
      const before = settings.get(key);
      const kept = [...settings.values()].filter((one) => one.sessionId === sessionId).length;
      if (before !== undefined || kept < SETTINGS_KEPT) settings.set(key, { sessionId, targetId, at: before?.at ?? now, value });
    },
    unset: async (id, target, key) => void settings.delete(keyOf(id, target, key)),
    async forget(before) {
      for (const [id, { created_at }] of rows) if (created_at < before) rows.delete(id);
      for (const [key, { at }] of upstreams) if (at < before) upstreams.delete(key);
      for (const [key, { at }] of settings) if (at < before) settings.delete(key);
      return false;
    },
    recycle: async (user_id, target_id, epoch) => void epochs.set(keyOf(user_id, target_id), { user_id, target_id, epoch }),
    recycles: async () => [...epochs.values()],
  };
}

export function memoryTasks(): TaskStore {
  const handles = new Map<string, string>();
  return {
    remember: async (key, handle) => void handles.set(key, handle),
    handles: async (keys) =>
      new Map(
        keys.flatMap((key) => {
          const handle = handles.get(key);
          return handle === undefined ? [] : [[key, handle] as const];
        }),
      ),
  };
}
