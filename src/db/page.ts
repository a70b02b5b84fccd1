import type { Knex } from 'knex';

/** One page of rows, ordered by their ids: at most `limit` (null: all), after the id `after` (null: from the first). */
export function onePage(query: Knex.QueryBuilder, limit: number | null, after: string | null): void {
  if (after !== null) query.where('id', '>', after);
  if (limit !== null) query.limit(limit);
  query.orderBy('id');
}
