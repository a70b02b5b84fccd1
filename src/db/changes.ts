/**
 * Administrative changes: the counter that tells replicas when the state has changed (law 4), and the record of who changed what.
 * The transaction of a change writes both, so neither exists without the other.
 */
import { randomBytes } from 'node:crypto';
import type { Knex } from 'knex';
import { AppError } from '../base/errors.ts';
import { pause } from '../base/turns/slices.ts';
import { furtherRows } from './batches.ts';
import type { Connection, Database, Transaction } from './database.ts';
import { insertRows } from './rows.ts';
import { statement } from './statement.ts';
import { transact } from './transact.ts';
import { createTurns } from './turns.ts';

/**
 * A position in the history of changes. Two positions with the same sequence and different nonces come from different histories.
 */
export interface Position {
  readonly sequence: number;
  readonly nonce: string;
  /** Advances only when the policy set changes. */
  readonly revision: number;
}

export interface Actor {
  readonly id: string;
  readonly email: string;
  readonly request_id: string;
  /** The reason in the actor's own words; null or absent if they gave none. */
  readonly reason?: string | null;
}

/** One change by an administrator. `before` and `after` are as the API shows them and contain no secrets. */
export interface Change {
  /** `<object_type>.<verb>`, for example `policy.update`. */
  readonly action: `${ObjectType}.${string}`;
  readonly object_id: string;
  readonly before: object | null;
  readonly after: object | null;
  /** The owner of a changed policy, '' if it has none. Absent: the change gave the policy a different owner, so it concerns every owner. */
  readonly owner?: string | undefined;
  /** Whether a policy of a file was changed outside of its file. */
  readonly override?: boolean;
}

/** The types of the objects that changes name, in the order of the REST description. */
export const OBJECT_TYPES = [
  'policy',
  'user',
  'provider',
  'directory_group',
  'token',
  'target',
  'credential',
  'key',
  'session',
  'draft',
  'browser_session',
  'right',
  'connection',
  'grant',
  'client',
  'owner',
  'invariant',
] as const;

export type ObjectType = (typeof OBJECT_TYPES)[number];

/** Object types whose old changes may be deleted. History, rollback and replays need every change of a policy. */
const FORGETTABLE = OBJECT_TYPES.filter((type) => type !== 'policy');

const typeOf = ({ action }: Change): string => action.slice(0, action.indexOf('.'));

export interface ChangeRow extends Omit<Change, 'owner'>, Position {
  readonly override: boolean;
  readonly object_type: string;
  readonly created_at: number;
  readonly actor: { readonly id: string; readonly email: string };
  readonly request_id: string;
  readonly reason: string | null;
}

export const readPosition = (db: Connection): Promise<Position> => positionOf(db('counter').where('id', 1));

async function positionOf(counter: Knex.QueryBuilder): Promise<Position> {
  const row = await counter.first<Position | undefined>('sequence', 'nonce', 'revision');
  if (!row) throw new AppError('unavailable', 'The database has lost its change counter: restore it from a backup.');
  return row;
}

type Counter = readonly [readonly [(Position & { readonly read_only: string }) | undefined]];

const isWritable = ([[row]]: Counter): boolean => row === undefined || row.read_only === '0' || row.read_only === 'OFF';

/**
 * Reads the position from a server that accepts writes. A read-only server may be a lagging replica or an expelled group member,
 * so its state may be old. After a failover, the same address leads to a different server, so the connection is not used again.
 */
async function readWritable(db: Connection): Promise<Position> {
  const found = (await statement(
    db,
    'select sequence, nonce, revision, cast(@@global.read_only as char) as read_only from counter where id = 1',
    (response) => isWritable(response as Counter),
  )) as Counter;
  const [[row]] = found;
  if (!row) throw new AppError('unavailable', 'The database has lost its change counter: restore it from a backup.');
  const { sequence, nonce, revision } = row;
  if (!isWritable(found)) {
    throw new AppError(
      'unavailable',
      'The database server is read-only, so it may not have the newest state. Connect to a server that accepts writes.',
      { retryAfter: 1 },
    );
  }
  return { sequence, nonce, revision };
}

export const samePosition = (a: Position, b: Position): boolean => a.sequence === b.sequence && a.nonce === b.nonce;

/**
 * Whether the position is part of the history that `db` reads. After a failover or restore that lost changes, the same numbers can stand for
 * something else.
 */
export async function isInHistory(db: Connection, { sequence, nonce }: Position): Promise<boolean> {
  if (sequence === 0) return true;
  return (await db('changes').where({ sequence }).first<Pick<Position, 'nonce'> | undefined>('nonce'))?.nonce === nonce;
}

/** The object of a change. A newer version of the gateway may write object types that this version does not know. */
export type Changed = Pick<Change, 'object_id'> & { readonly object_type: string };

/** Loading everything is cheaper than following more changes than this. */
const MOST_FOLLOWED = 1_000;

/**
 * Returns what changed after `from`, up to `to` (the position of the snapshot that `db` reads). null if the changes cannot tell:
 * `from` is not part of the current history (after a failover or restore), rows are missing, or there are too many.
 */
export async function changedBetween(db: Connection, from: Position, to: Position): Promise<readonly Changed[] | null> {
  if (samePosition(from, to)) return [];
  const count = to.sequence - from.sequence;
  if (count < 1 || count > MOST_FOLLOWED) return null;
  const rows: (Changed & Pick<Position, 'sequence' | 'nonce'>)[] = await db('changes')
    .whereBetween('sequence', [from.sequence, to.sequence])
    .orderBy('sequence')
    .select('sequence', 'nonce', 'object_type', 'object_id');
  const [first, ...later] = rows;
  const complete = later.length === count && first?.nonce === from.nonce && later.at(-1)?.nonce === to.nonce;
  return complete ? later : null;
}

/** Inserts the counter row, under the migration lock. */
export async function makeCounter(db: Connection): Promise<void> {
  if (await db('counter').where('id', 1).first()) return;
  await db('counter').insert({ id: 1, sequence: 0, nonce: newNonces(1)[0], revision: 0 });
}

const NONCE_BYTES = 16;

/** Together, because one change can make thousands. */
function newNonces(count: number): string[] {
  const bytes = randomBytes(count * NONCE_BYTES);
  return Array.from({ length: count }, (_, i) => bytes.toString('hex', i * NONCE_BYTES, (i + 1) * NONCE_BYTES));
}

export type Changes = Awaited<ReturnType<typeof createChanges>>;
type Made = Changed & { readonly from: Position };
type Work<T> = (trx: Transaction) => Promise<{ result: T; changes: readonly Change[] }>;

/** Reads and advances the counter. On SQLite this process is the only writer, so it remembers the position. */
export async function createChanges(database: Database, now: () => number) {
  const { knex } = database;
  const inTurn = createTurns();
  let remembered = await readPosition(knex);
  /** On SQLite: the newest changes, each with the position before it. */
  let newest: Made[] = [];

  const attempt = <T>(actor: Actor, work: Work<T>): Promise<{ result: T; position: Position; made: readonly Made[] }> =>
    transact(database, async (trx) => {
      const locked = positionOf(trx('counter').where('id', 1).forUpdate());
      // The lock comes first, so that `work` reads the state that this change applies to. A transaction of SQLite is alone anyway.
      if (database.kind === 'mysql') await locked;
      // On SQLite, statements are sent together where they can be: all requests wait for this transaction.
      const [{ result, changes }, from] = await Promise.all([work(trx), locked]);
      const revision = from.revision + (changes.some((change) => typeOf(change) === 'policy') ? 1 : 0);
      const created_at = now();
      const nonces = newNonces(changes.length);
      const positions = nonces.map((nonce, i): Position => ({ sequence: from.sequence + i + 1, nonce, revision }));
      const position = positions.at(-1) ?? from;
      function* rows(): Generator<object> {
        for (const [i, change] of changes.entries()) {
          const { sequence, nonce } = positions[i] ?? from;
          const { action, object_id, before, after, owner = null, override = false } = change;
          // Copying `change` and its position with spreads takes ten times as long, and one change can make thousands of rows.
          yield {
            sequence,
            nonce,
            revision,
            action,
            object_id,
            owner,
            override,
            created_at,
            object_type: typeOf(change),
            actor_id: actor.id,
            actor_email: actor.email,
            request_id: actor.request_id,
            reason: actor.reason ?? null,
            before: before && JSON.stringify(before),
            after: after && JSON.stringify(after),
          };
        }
      }
      if (changes.length > 0) {
        const recorded = insertRows(trx, 'changes', rows());
        // If a MySQL server rolls the transaction back at one statement, a statement that was sent with it would be stored by itself.
        if (database.kind === 'mysql') await recorded;
        const advanced = trx('counter')
          .where('id', 1)
          .update({ ...position });
        await Promise.all([recorded, advanced]);
      }
      const made = changes.map((change, i): Made => {
        const before = positions[i - 1] ?? from;
        return { from: before, object_type: typeOf(change), object_id: change.object_id };
      });
      return { result, position, made };
    });

  return {
    /** Returns the current position, from a read that begins after the call. */
    position: (): Promise<Position> => (database.kind === 'sqlite' ? Promise.resolve(remembered) : readWritable(database.reader)),

    /** Returns the current position if it is known without a query, which means that only this process writes the database. */
    known: (): Position | null => (database.kind === 'sqlite' ? remembered : null),

    /** Returns what changed after an earlier position, up to the one that `known` returns; null: that takes a query. */
    since(position: Position): readonly Changed[] | null {
      const first = newest.findLastIndex(({ from }) => samePosition(from, position));
      return first < 0 ? null : newest.slice(first);
    },

    /**
     * Runs `work` in a transaction that locks the counter, so such transactions run one at a time. Records the returned changes and
     * advances the counter by one for each. If policies are among them, the revision advances by one in total: a revision is the
     * policy set after a transaction. Without changes nothing advances.
     *
     * The whole transaction is retried on a deadlock. Changes of this process wait for each other here, without holding connections
     * of the pool. Throws AppError `too_many_requests` if too many changes of the actor are waiting.
     */
    async change<T>(actor: Actor, work: Work<T>): Promise<{ result: T; position: Position }> {
      const done = await inTurn(actor.id, () => attempt(actor, work));
      if (done.position.sequence > remembered.sequence) {
        // If the answer to a commit was lost, its changes are missing here.
        const follows = done.made[0] !== undefined && samePosition(done.made[0].from, remembered);
        if (database.kind === 'sqlite') newest = [...(follows ? newest : []), ...done.made].slice(-MOST_FOLLOWED);
        remembered = done.position;
      }
      return done;
    },

    /**
     * Returns up to `limit` changes before `cursor` (a sequence), newest first, and the cursor of the next page. The page ends after
     * PAGE_CHARACTERS, because one change can have a policy with a thousand subjects twice.
     */
    async page(limit: number, cursor: number | null): Promise<{ readonly changes: ChangeRow[]; readonly next: number | null }> {
      const found: ChangeRow[] = [];
      const older = (than: number | null) =>
        knex('changes').modify((query) => {
          if (than !== null) query.where('sequence', '<', than);
        });
      let characters = 0;
      for (let wanted = FIRST; found.length < limit && characters < PAGE_CHARACTERS; ) {
        const asked = Math.min(wanted, limit - found.length);
        const rows: StoredRow[] = await older(found.at(-1)?.sequence ?? cursor)
          .orderBy('sequence', 'desc')
          .limit(asked);
        for (const row of rows) {
          await pause();
          characters += (row.before?.length ?? 0) + (row.after?.length ?? 0);
          found.push(readRow(row));
        }
        if (rows.length < asked) return { changes: found, next: null };
        wanted = furtherRows(PAGE_CHARACTERS - characters, characters, found.length);
      }
      const last = found.at(-1)?.sequence ?? null;
      const hasNext = last !== null && (await older(last).first('sequence')) !== undefined;
      return { changes: found, next: hasNext ? last : null };
    },
  };
}

/**
 * Deletes up to `limit` changes made before `time` and returns how many. It never deletes changes of policies, nor the newest
 * change: that one shows that the database still has the history that a replica knows. A replica that is behind and misses its
 * own change loads everything.
 */
export async function removeChanges(db: Connection, time: number, limit: number): Promise<number> {
  const { sequence } = await readPosition(db);
  for (const type of FORGETTABLE) {
    const rows: { sequence: number }[] = await db('changes')
      .where('object_type', type)
      .andWhere('created_at', '<', time)
      .andWhere('sequence', '<', sequence)
      .limit(limit)
      .select('sequence');
    const sequences = rows.map((row) => row.sequence);
    if (sequences.length > 0) return await db('changes').whereIn('sequence', sequences).delete();
  }
  return 0;
}

interface StoredRow extends Omit<ChangeRow, 'actor' | 'before' | 'after' | 'override'> {
  readonly actor_id: string;
  readonly actor_email: string;
  readonly before: string | null;
  readonly after: string | null;
  readonly override: number | boolean | null;
}

const readRow = ({ actor_id, actor_email, before, after, override, ...row }: StoredRow): ChangeRow => ({
  ...row,
  override: Boolean(override),
  actor: { id: actor_id, email: actor_email },
  before: before === null ? null : JSON.parse(before),
  after: after === null ? null : JSON.parse(after),
});

const ROWS_PER_STATEMENT = 50;
/** A statement about the whole history would keep the database from recording decisions meanwhile. */
const CHANGES_AT_ONCE = 1_000;
/** How many changes a page reads at first. */
const FIRST = 8;
const PAGE_CHARACTERS = 2 * 1024 * 1024;

/** Returns the sequence of the first change of each policy after this revision: its `before` is the state at the revision. */
async function firstChanges(db: Connection, revision: number): Promise<readonly number[]> {
  const firsts = new Map<string, number>();
  let from = { revision: revision + 1, sequence: 0 };
  for (;;) {
    const rows: Pick<StoredRow, 'object_id' | 'revision' | 'sequence'>[] = await db('changes')
      .where('object_type', 'policy')
      .where('revision', '>=', from.revision)
      .where('sequence', '>', from.sequence)
      .orderBy([{ column: 'revision' }, { column: 'sequence' }])
      .limit(CHANGES_AT_ONCE)
      .select('object_id', 'revision', 'sequence');
    for (const { object_id, sequence } of rows) if (!firsts.has(object_id)) firsts.set(object_id, sequence);
    const last = rows.at(-1);
    if (last === undefined || rows.length < CHANGES_AT_ONCE) return [...firsts.values()];
    from = last;
  }
}

/**
 * Returns, for each policy changed after this revision, its document at that revision; null if it did not exist. These changes are never
 * altered or deleted, so `db` need not be a snapshot.
 */
export async function policiesBefore(
  db: Connection,
  revision: number,
): Promise<{ readonly object_id: string; readonly before: object | null }[]> {
  const firsts = await firstChanges(db, revision);
  const found: { readonly object_id: string; readonly before: object | null }[] = [];
  for (let start = 0; start < firsts.length; start += ROWS_PER_STATEMENT) {
    const sequences = firsts.slice(start, start + ROWS_PER_STATEMENT);
    const rows: Pick<StoredRow, 'object_id' | 'before'>[] = await db('changes')
      .whereIn('sequence', sequences)
      .select('object_id', 'before');
    for (const { object_id, before } of rows) {
      await pause();
      found.push({ object_id, before: before === null ? null : JSON.parse(before) });
    }
  }
  return found;
}

/** Returns the newest revision that changed policies of the owner; 0: there is none. */
export async function newestOf(db: Connection, owner: string): Promise<number> {
  const newest = async (owner: string | null): Promise<number> =>
    (await db('changes').where({ object_type: 'policy', owner }).orderBy('revision', 'desc').first('revision'))?.revision ?? 0;
  // null: a change that concerns every owner.
  return Math.max(await newest(owner), await newest(null));
}

/** One transaction that changed policies. */
export interface RevisionRow extends Pick<ChangeRow, 'revision' | 'created_at' | 'actor' | 'request_id' | 'reason'> {
  /** How many policies were created, updated and deleted. */
  readonly created: number;
  readonly updated: number;
  readonly deleted: number;
  /** Whether the transaction changed a policy of a file outside of its file. */
  readonly override: boolean;
  /** The policy, if the transaction changed only one. */
  readonly policy: { readonly id: string; readonly name: string } | null;
}

/** A page of revisions counts at most so many changes, or those of one revision: on SQLite, everybody waits for the statement. */
const MOST_COUNTED = 10_000;

/**
 * Returns at most `limit` revisions before `cursor` (a revision), newest first, and fewer if they have many changes. `next`: the cursor of the next
 * page; null: there is none.
 */
export async function listRevisions(
  db: Connection,
  limit: number,
  cursor: number | null,
  most = MOST_COUNTED,
): Promise<{ readonly revisions: readonly RevisionRow[]; readonly next: number | null }> {
  const ofPolicies = () => db('changes').where('object_type', 'policy');
  // Only the index is read.
  const newest = ofPolicies().orderBy('revision', 'desc').limit(most).select('revision');
  const sizes: { revision: number; count: number | string }[] = await db
    .from((cursor === null ? newest : newest.where('revision', '<', cursor)).as('n'))
    .groupBy('revision')
    .orderBy('revision', 'desc')
    .select('revision', db.raw('count(*) as ??', ['count']));
  const isCut = sizes.reduce((sum, { count }) => sum + Number(count), 0) === most;
  const found = sizes.map(({ revision }) => revision);
  // The rest of the last revision may not be counted.
  if (isCut && found.length > 1) found.pop();
  const shown = found.slice(0, limit);
  const [first, last] = [shown[0] ?? 0, shown.at(-1) ?? 0];
  const next = isCut || found.length > limit ? last : null;
  const rowsOfCounts: RevisionCount[] = await ofPolicies()
    .whereBetween('revision', [last, first])
    .groupBy('revision', 'action', 'override')
    .select('revision', 'action', 'override', db.raw('count(*) as ??', ['count']), db.raw('min(sequence) as ??', ['first']));
  const counts = new Map<number, RevisionCount[]>();
  for (const row of rowsOfCounts) counts.set(row.revision, [...(counts.get(row.revision) ?? []), row]);
  const firsts = shown.map((revision) => Math.min(...(counts.get(revision) ?? []).map(({ first }) => Number(first))));
  // A policy can have a thousand subjects, so only its name is read.
  const name = db.raw(
    db.client.dialect === 'mysql'
      ? 'json_unquote(json_extract(coalesce(??, ??), ?)) as ??'
      : 'json_extract(coalesce(??, ??), ?) as ??',
    ['after', 'before', '$.name', 'name'],
  );
  const rows: (Omit<RevisionRow, 'actor'> &
    Pick<StoredRow, 'actor_id' | 'actor_email' | 'object_id'> & { readonly name: string | null })[] = await db('changes')
    .whereIn('sequence', firsts)
    .orderBy('revision', 'desc')
    .select('revision', 'created_at', 'actor_id', 'actor_email', 'request_id', 'reason', 'object_id', name);
  const revisions = rows.map((row) => {
    const own = counts.get(row.revision) ?? [];
    const of = (fits: (action: string) => boolean): number =>
      own.reduce((sum, { action, count }) => sum + (fits(action) ? Number(count) : 0), 0);
    const created = of((action) => action === 'policy.create');
    const deleted = of((action) => action === 'policy.delete');
    const all = of(() => true);
    const { revision, created_at, actor_id, actor_email, request_id, reason } = row;
    return {
      ...{ revision, created_at, actor: { id: actor_id, email: actor_email }, request_id, reason },
      ...{ created, updated: all - created - deleted, deleted },
      override: own.some(({ override }) => Boolean(override)),
      policy: all === 1 ? { id: row.object_id, name: row.name ?? '' } : null,
    };
  });
  return { revisions, next };
}

/** How many changes of one kind a revision has, and the sequence of the first. */
interface RevisionCount {
  readonly revision: number;
  readonly action: string;
  readonly override: number | boolean | null;
  readonly count: number | string;
  readonly first: number | string;
}
