import type { Knex } from 'knex';

/** One page of rows, ordered by their ids: at most `limit` (null: all), after the id `after` (null: from the first). */
export function onePage(query: Knex.QueryBuilder, limit: number | null, after: string | null): void {
  if (after !== null) query.where('id', '>', after);
  if (limit !== null) query.limit(limit);
  query.orderBy('id');
}

export interface Searched<T> {
  readonly limit: number | null;
  readonly after: string | null;
  /** How many rows of the table are read for one part. */
  readonly atOnce: number;
  /** The rows among which the search is. null: `page` finds its rows by an index. */
  readonly rows: (() => Knex.QueryBuilder) | null;
  /** Returns the rows that are wanted, as `onePage` does. `last`: the greatest id; null: there is none. */
  readonly page: (limit: number, after: string | null, last: string | null) => Promise<T[]>;
}

/**
 * Yields one page in parts. A part can be empty: it has what is wanted among a limited number of rows, because a filter can match few of very
 * many, and on SQLite everybody waits for each statement.
 */
export async function* searchInParts<T extends { readonly id: string }>(searched: Searched<T>): AsyncGenerator<readonly T[]> {
  const { limit, after, atOnce, rows, page } = searched;
  let left = limit ?? Number.POSITIVE_INFINITY;
  for (let from = after; left > 0; ) {
    const most = Math.min(atOnce, left);
    const end: { readonly id: string } | undefined = await rows?.()
      .select('id')
      .modify(onePage, 1, from)
      .offset(atOnce - 1)
      .first();
    const last = end?.id ?? null;
    const some = await page(most, from, last);
    yield some;
    if (some.length < most && last === null) return;
    left -= some.length;
    from = some.length < most ? last : (some.at(-1)?.id ?? null);
  }
}
