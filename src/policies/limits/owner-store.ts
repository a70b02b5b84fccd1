/** The records of owners, with their limits. Only administrative transactions write them. */
import type { Connection } from '../../db/database.ts';
import type { Limits, LimitsByOwner } from './limits.ts';

export interface Owner {
  readonly name: string;
  readonly limits: Limits;
  /** The number of the last change of the record. */
  readonly sequence: number;
  /** The revision of the policies at that time. */
  readonly revision: number;
  readonly created_at: number;
  readonly updated_at: number;
}

interface Row extends Omit<Owner, 'limits'> {
  /** JSON. */
  readonly limits: string;
}

const toOwner = (row: Row): Owner => ({ ...row, limits: JSON.parse(row.limits) });

export function ownerStore(db: Connection) {
  return {
    limits: async (): Promise<LimitsByOwner> =>
      new Map(((await db('owners')) as Row[]).map(toOwner).map(({ name, limits }) => [name, limits])),
    /** In order. */
    names: async (): Promise<ReadonlySet<string>> =>
      new Set((await db('owners').orderBy('name').select<Pick<Row, 'name'>[]>('name')).map(({ name }) => name)),
    /** Returns those with these names that exist, in the order of their names. */
    some: async (names: readonly string[]): Promise<Owner[]> =>
      ((await db('owners').whereIn('name', names).orderBy('name')) as Row[]).map(toOwner),
    async find(name: string): Promise<Owner | null> {
      const row = await db('owners').where({ name }).first<Row | undefined>();
      return row === undefined ? null : toOwner(row);
    },
    /** Returns a fingerprint of all records: each change of one has a higher sequence. */
    async glance(): Promise<{ readonly owners: number; readonly newest: number }> {
      const [row] = await db('owners').count({ owners: '*' }).max({ newest: 'sequence' });
      return { owners: Number(row?.['owners']), newest: Number(row?.['newest'] ?? 0) };
    },
    /** How long the limits of all other owners are, as JSON. */
    async lengthBeside(name: string): Promise<number> {
      const [row] = await db('owners')
        .whereNot({ name })
        .select<{ length: number | string | null }[]>(db.raw('sum(length(limits)) as length'));
      return Number(row?.length ?? 0);
    },
    async put({ limits, ...owner }: Owner): Promise<void> {
      await db('owners')
        .insert({ ...owner, limits: JSON.stringify(limits) })
        .onConflict('name')
        .merge();
    },
    async delete(name: string): Promise<void> {
      await db('owners').where({ name }).delete();
    },
  };
}
