/** The erasure of a person's data, in the tables of both versions. */
import type { Connection } from '../../../db/database.ts';
import { idOf } from '../binary-form.ts';
import type { ErasureRow } from '../chain.ts';
import { hexOfBytes, literalId } from './log-tables.ts';

type Query = ReturnType<Connection>;

export const ERASURE_COLUMNS = ['id', 'user_id', 'erased_at', 'key_id', 'signature'] as const;

export function erasureStore(db: Connection) {
  return {
    /**
     * Returns the erasures that are not done. Replicas of older versions set `done_at` when they have erased the tables of version 1.
     * So an erasure is not done, either, while a fact of the user that is older than the erasure has its salt.
     */
    unfinished: (): Promise<ErasureRow[]> =>
      db('audit_erasures as e')
        .whereNull('e.done_at')
        .orWhereExists(
          db('log_principals as p')
            .where('p.user_id', db.ref('e.user_id'))
            .andWhere('p.since', '<', db.ref('e.erased_at'))
            .whereNotNull('p.salt')
            .select('p.id'),
        )
        .select(...ERASURE_COLUMNS.map((column) => `e.${column}`)),

    async insert(row: ErasureRow): Promise<void> {
      await db('audit_erasures').insert({ ...row, done_at: null });
    },

    async finish(id: string, now: number): Promise<void> {
      await db('audit_erasures').where({ id }).update({ done_at: now });
    },

    /**
     * Erases personal data from up to `limit` rows of the user with ids in [`from`, `before`). Returns how many and the next
     * `from`.
     */
    async eraseLegacy(
      userId: string,
      from: string,
      before: string,
      limit: number,
    ): Promise<{ erased: number; next: string | null }> {
      const rows: { id: string }[] = await db('audit_decisions')
        .where('user_id', userId)
        .andWhere('id', '>=', from)
        .andWhere('id', '<', before)
        .orderBy('id')
        .limit(limit)
        .select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length === 0) return { erased: 0, next: null };
      const erased = await db('audit_decisions')
        .whereIn('id', ids)
        .andWhere((row) =>
          row.whereNotNull('salt').orWhereNot('user_email', '').orWhereNot('user_groups', '[]').orWhereNotNull('arguments'),
        )
        .update({ user_email: '', user_groups: '[]', arguments: null, salt: null });
      return { erased, next: ids.length < limit ? null : `${ids.at(-1)}0` };
    },

    /** Erases the personal data in the facts of the user that are older than the erasure. Returns the number of facts. */
    erasePrincipals: ({ user_id, erased_at }: ErasureRow): Promise<number> =>
      db('log_principals')
        .where('user_id', user_id)
        .andWhere('since', '<', erased_at)
        .andWhere((row) => row.whereNotNull('salt').orWhereNot('user_email', '').orWhereNot('user_groups', '[]'))
        .update({ user_email: '', user_groups: '[]', salt: null }),

    /**
     * Erases the captured arguments of the user in the first `limit` decisions with arguments and ids in [`from`, `before`). Returns how
     * many, and the next `from`.
     */
    async eraseArguments(
      userId: string,
      from: string,
      before: string,
      limit: number,
    ): Promise<{ erased: number; next: string | null }> {
      const between = (end: string): Query => db('log_arguments').whereRaw(`id >= ${literalId(from)} and id < ${literalId(end)}`);
      const after = await between(before).orderBy('id').offset(limit).first<{ id: unknown } | undefined>('id');
      const next = after === undefined ? null : idOf(hexOfBytes(after.id));
      const isOfUser = `exists (select 1 from log_decisions as t join log_principals as p on p.id = t.principal
        where t.id = log_arguments.id and p.user_id = ?)`;
      const erased = await between(next ?? before)
        .andWhere((row) => row.whereNotNull('salt').orWhereNotNull('arguments'))
        .whereRaw(isOfUser, [userId])
        .update({ salt: null, arguments: null });
      return { erased, next };
    },
  };
}
