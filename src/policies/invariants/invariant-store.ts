/** Invariants in the database. Only administrative transactions write them, and these run one at a time. */
import { pause } from '../../base/turns/slices.ts';
import type { Connection } from '../../db/database.ts';
import type { Invariant, InvariantChange } from './invariant.ts';

interface Row extends Omit<Invariant, 'enabled' | 'never' | 'exceptions'> {
  readonly enabled: number | boolean;
  readonly never: string;
  readonly exceptions: string;
}

const invariantOf = ({ enabled, never, exceptions, ...row }: Row): Invariant => ({
  ...row,
  enabled: Boolean(enabled),
  never: JSON.parse(never),
  exceptions: JSON.parse(exceptions),
});

const rowOf = ({ never, exceptions, ...row }: Invariant): Row => ({
  ...row,
  never: JSON.stringify(never),
  exceptions: JSON.stringify(exceptions),
});

export function invariantStore(db: Connection) {
  /** `ids` null: all of them. */
  async function read(ids: readonly string[] | null): Promise<Invariant[]> {
    const rows: Row[] = await db('invariants')
      .modify((query) => {
        if (ids !== null) query.whereIn('id', ids);
      })
      .orderBy('name');
    const found: Invariant[] = [];
    for (const row of rows) {
      // All of them can have 17 MB.
      await pause();
      found.push(invariantOf(row));
    }
    return found;
  }
  const all = (): Promise<Invariant[]> => read(null);
  return {
    /** Returns the invariants, sorted by name. */
    all,
    /** Returns the ids of all of them, sorted by name. */
    async ids(): Promise<string[]> {
      const rows: Pick<Row, 'id'>[] = await db('invariants').orderBy('name').select('id');
      return rows.map(({ id }) => id);
    },
    /** Returns those with these ids that exist, sorted by name. */
    some: (ids: readonly string[]): Promise<Invariant[]> => read(ids),
    async find(id: string): Promise<Invariant | null> {
      const row = await db('invariants').where({ id }).first<Row | undefined>();
      return row === undefined ? null : invariantOf(row);
    },
    /** Returns what changes with every change of an invariant. */
    glance: async (): Promise<readonly Pick<Invariant, 'id' | 'version' | 'enabled'>[]> => {
      const rows: Row[] = await db('invariants').orderBy('id').select('id', 'version', 'enabled');
      return rows.map(({ id, version, enabled }) => ({ id, version, enabled: Boolean(enabled) }));
    },
    async change(changes: readonly InvariantChange[]): Promise<void> {
      for (const { before, after } of changes) {
        if (after === null)
          await db('invariants')
            .where('id', before?.id ?? '')
            .delete();
        else await db('invariants').insert(rowOf(after)).onConflict('id').merge();
      }
    },
    /** Returns whether an invariant names this target. */
    namesTarget: async (targetId: string): Promise<boolean> =>
      (await all()).some(({ never }) => [...(never.targets ?? []), ...never.except.targets].includes(targetId)),
  };
}
