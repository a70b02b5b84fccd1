/** The rights of administration that administrators have given. Only administrative transactions write them. */
import type { Connection } from '../db/database.ts';
import { type GivenRight, RIGHT_SUBJECTS, RIGHTS } from './rights.ts';

export interface RightRow extends GivenRight {
  /** UUIDv7, so that ids sort in the order in which rights were given. */
  readonly id: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
}

/** A unique key does not cover nulls, so the table has an empty text instead. */
interface Stored extends Omit<RightRow, 'owner'> {
  readonly owner: string;
}

const COLUMNS = ['id', 'subject_type', 'subject_value', 'right', 'owner', 'created_at'] as const;

/** Leaves out rights of a newer version, which mean nothing here. */
const known = ({ subject_type, right }: Stored): boolean => RIGHT_SUBJECTS.includes(subject_type) && RIGHTS.includes(right);
const toRow = ({ owner, ...row }: Stored): RightRow => ({ ...row, owner: owner === '' ? null : owner });
const toStored = ({ owner, ...row }: RightRow): Stored => ({ ...row, owner: owner ?? '' });

export function rightStore(db: Connection) {
  const rows = async (): Promise<RightRow[]> => {
    const found: Stored[] = await db('rights')
      .select(...COLUMNS)
      .orderBy('id');
    return found.filter(known).map(toRow);
  };
  return {
    /** Returns all of them, in the order in which they were given. */
    all: rows,
    async insert(row: RightRow): Promise<void> {
      await db('rights').insert(toStored(row));
    },
    async delete(id: string): Promise<void> {
      await db('rights').where({ id }).delete();
    },
  };
}
