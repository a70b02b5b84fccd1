/**
 * Reads and writes the audit log as one log, although its older rows are in the legacy tables. A row is written once. Only an erasure
 * changes it, and only retention removes it.
 */
import type { Connection } from '../db/database.ts';
import { logStore } from './records/log-store.ts';
import type { AuditEntry, AuditPage } from './search/entries.ts';
import type { LogFilter } from './search/filter.ts';
import { legacyStore } from './search/legacy-store.ts';
import { logSearch } from './search/log-search.ts';

export type AuditStore = ReturnType<typeof auditStore>;

/** Make a store for each request that reads, because a store keeps what it has read, even after an erasure. */
export function auditStore(db: Connection) {
  const [legacy, log] = [legacyStore(db), logSearch(db)];
  let hasLegacy: boolean | null = null;
  return {
    ...logStore(db),

    /**
     * Returns the newest decisions before `cursor` (a decision id). One page searches a limited number of rows, even if matches are
     * rare. So a page may have fewer than `limit` entries, or none, and still have a next page.
     */
    async page(filter: LogFilter, limit: number, cursor: string | null): Promise<AuditPage> {
      const page = await log.page(filter, limit, cursor);
      // An older replica may write legacy rows later, but these are newer than this page.
      hasLegacy ??= await legacy.hasRows();
      if (!hasLegacy) return page;
      const pages = [page, await legacy.page(filter, limit, cursor)];
      // Each part is complete down to its own `next`, so the whole is complete down to the higher one.
      const next = pages.reduce<string | null>(
        (max, part) => (part.next !== null && (max === null || part.next > max) ? part.next : max),
        null,
      );
      const all = pages
        .flatMap(({ entries }) => entries)
        .filter(({ id }) => next === null || id >= next)
        .sort((a, b) => (a.id < b.id ? 1 : -1));
      const entries = all.slice(0, limit);
      return { entries, next: all.length > limit ? (entries.at(-1)?.id ?? null) : next };
    },

    find: async (id: string): Promise<AuditEntry | null> => (await log.find(id)) ?? legacy.find(id),
  };
}
