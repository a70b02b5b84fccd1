/** Stores in memory, with the contract of those in tables. */
import type { TaskStore } from '../../src/mcp/store.ts';
import {
  EVERY_TARGET,
  type SessionRow,
  type SessionSetting,
  type SessionStore,
  type UpstreamRow,
} from '../../src/sessions/store.ts';

export function memorySessions(): SessionStore {
  const rows = new Map<string, SessionRow>();
  const ended = new Set<string>();
  const upstreams = new Map<string, UpstreamRow>();
  const settings = new Map<string, SessionSetting>();
  const keyOf = (...parts: string[]): string => JSON.stringify(parts);
  return {
    insert: async (row) => void rows.set(row.id, row),
    find: async (id) => (ended.has(id) ? null : (rows.get(id) ?? null)),
    page: async () => [...rows.values()],
    count: async () => rows.size,
    end: async (id) => !ended.has(id) && Boolean(ended.add(id)),
    endedByAdministrators: async () => [],
    seen: async () => undefined,
    adopt: async () => true,
    upstream: async (id, cause) => upstreams.get(keyOf(id, cause)) ?? null,
    async insertUpstream(id, cause, row) {
      if (upstreams.has(keyOf(id, cause))) return false;
      upstreams.set(keyOf(id, cause), row);
      return true;
    },
    settings: async (id, target) =>
      [...settings]
        .filter(([key]) => [target, EVERY_TARGET].some((of) => key.startsWith(keyOf(id, of).slice(0, -1))))
        .map(([, s]) => s),
    set: async (id, target, setting) => void settings.set(keyOf(id, target, setting.key), setting),
    unset: async (id, target, key) => void settings.delete(keyOf(id, target, key)),
    forget: async () => undefined,
    recycle: async () => undefined,
    recycles: async () => [],
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
