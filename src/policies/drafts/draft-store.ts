/** Stores drafts, and the counts of their shadows. */
import type { ChainPositions } from '../../audit/search/recorded-store.ts';
import type { Connection } from '../../db/database.ts';
import type { TallyState } from '../replay/tally.ts';
import type { Draft, DraftSummary } from '../sets/draft.ts';

interface SummaryRow extends Omit<DraftSummary, 'prune' | 'adopt' | 'author'> {
  readonly prune: number | boolean;
  readonly adopt: number | boolean;
  readonly author_id: string;
  readonly author_email: string;
}

interface DraftRow extends SummaryRow {
  readonly files: string;
  readonly tests: string;
}

const SUMMARY_COLUMNS = [
  ...['name', 'owner', 'prune', 'adopt', 'hash', 'author_id', 'author_email', 'created_at', 'updated_at'],
] as (keyof SummaryRow)[];

const summaryOf = ({ prune, adopt, author_id, author_email, ...row }: SummaryRow): DraftSummary => ({
  ...row,
  prune: Boolean(prune),
  adopt: Boolean(adopt),
  author: { id: author_id, email: author_email },
});

const draftOf = ({ files, tests, ...row }: DraftRow): Draft => ({
  ...summaryOf(row),
  files: JSON.parse(files),
  tests: JSON.parse(tests),
});

const rowOf = ({ files, tests, author, ...draft }: Draft): DraftRow => ({
  ...draft,
  files: JSON.stringify(files),
  tests: JSON.stringify(tests),
  author_id: author.id,
  author_email: author.email,
});

export function draftStore(db: Connection) {
  return {
    async find(name: string): Promise<Draft | null> {
      const row = await db('policy_drafts').where({ name }).first<DraftRow | undefined>();
      return row === undefined ? null : draftOf(row);
    },
    /** Returns the drafts, sorted by name. */
    async all(): Promise<DraftSummary[]> {
      const rows: SummaryRow[] = await db('policy_drafts')
        .orderBy('name')
        .select(...SUMMARY_COLUMNS);
      return rows.map(summaryOf);
    },
    async count(author: string): Promise<{ all: number; ofUser: number }> {
      const authors: string[] = await db('policy_drafts').pluck('author_id');
      return { all: authors.length, ofUser: authors.filter((one) => one === author).length };
    },
    /** Stores the draft, and replaces a draft of the same name. */
    async put(draft: Draft): Promise<void> {
      await db('policy_drafts').insert(rowOf(draft)).onConflict('name').merge();
    },
    /** Also deletes its shadow. */
    async delete(name: string): Promise<void> {
      await db('policy_shadows').where({ draft: name }).delete();
      await db('policy_drafts').where({ name }).delete();
    },
  };
}

export function shadowStore(db: Connection) {
  return {
    async find(draft: string): Promise<Shadow | null> {
      const row = await db('policy_shadows')
        .where({ draft })
        .first<{ since: number; version: number; progress: string; flips: string } | undefined>();
      if (row === undefined) return null;
      const { since, version, progress, flips } = row;
      return { draft, since, version, progress: JSON.parse(progress), flips: JSON.parse(flips) };
    },
    /** Returns the names of the drafts that have a shadow. */
    async names(): Promise<string[]> {
      const rows: { draft: string }[] = await db('policy_shadows').orderBy('draft').select('draft');
      return rows.map(({ draft }) => draft);
    },
    async count(user: string): Promise<{ all: number; ofUser: number }> {
      const begun: (string | null)[] = await db('policy_shadows').pluck('begun_by');
      return { all: begun.length, ofUser: begun.filter((by) => by === user).length };
    },
    /** Begins the shadow, or restarts the one that the draft has. `by` null: it stays the shadow of whom has begun it. */
    async begin({ draft, since, progress, flips }: Omit<Shadow, 'version'>, by: string | null): Promise<void> {
      // A new version, so that a replica which still counts for the previous shadow notices the change.
      const before = await db('policy_shadows').where({ draft }).first<{ version: number } | undefined>('version');
      const row = {
        ...{ draft, since, progress: JSON.stringify(progress), flips: JSON.stringify(flips) },
        ...(by === null ? {} : { begun_by: by }),
      };
      await db('policy_shadows')
        .insert({ ...row, version: (before?.version ?? 0) + 1, holder: null, held_until: null })
        .onConflict('draft')
        .merge();
    },
    end: async (draft: string): Promise<boolean> => (await db('policy_shadows').where({ draft }).delete()) > 0,
    /** Returns true if this replica follows the log for the draft until the time `until`. */
    async hold(draft: string, holder: string, now: number, until: number): Promise<boolean> {
      const held = await db('policy_shadows')
        .where({ draft })
        .andWhere((row) => row.whereNull('holder').orWhere({ holder }).orWhere('held_until', '<', now))
        .update({ holder, held_until: until });
      return held > 0;
    },
    /** Returns false if another replica has written since `shadow` was read, or the shadow has ended. `flips` null: unchanged. */
    async save({ draft, since, version }: Shadow, progress: ShadowProgress, flips: Shadow['flips'] | null): Promise<boolean> {
      const saved = await db('policy_shadows')
        .where({ draft, since, version })
        .update({
          version: version + 1,
          progress: JSON.stringify(progress),
          ...(flips === null ? {} : { flips: JSON.stringify(flips) }),
        });
      return saved > 0;
    },
  };
}

/** A draft that the gateway evaluates alongside the live set. */
export interface Shadow {
  readonly draft: string;
  /** The shadow counts decisions made from this time on, in milliseconds since the epoch. */
  readonly since: number;
  readonly version: number;
  readonly progress: ShadowProgress;
  readonly flips: TallyState['flips'];
}

export interface ShadowProgress extends Omit<TallyState, 'flips'> {
  /** How far the shadow has read each chain of the log. */
  readonly positions: ChainPositions;
  readonly updated_at: number;
  /**
   * Why the draft cannot be applied to the current set; null: it can. Until it can, the shadow counts no decisions, and catches
   * up afterwards.
   */
  readonly problem: string | null;
}
