import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/**
 * Creates the tables of version 2 of the audit log: small records, and the facts that they refer to. Each table is ordered by
 * its primary key, so a record is stored once and not again in an index.
 */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const isMysql = collation !== null;
  const text = (length: number): string => (isMysql ? `varchar(${length})` : 'text');
  const bytes = (length: number): string => (isMysql ? `binary(${length})` : 'blob');
  const number = isMysql ? 'bigint' : 'integer';
  const small = isMysql ? 'tinyint unsigned' : 'integer';
  const long = isMysql ? 'mediumtext' : 'text';
  const tail = isMysql ? `engine=InnoDB default charset=utf8mb4 collate=${collation}` : 'without rowid';
  const stamp = `chain ${bytes(4)} not null, seq integer not null, mac ${bytes(16)} not null`;
  const key = bytes(9);

  const tables: readonly (readonly [name: string, columns: string])[] = [
    [
      'log_decisions',
      `id ${bytes(16)} not null primary key, created_at ${number}, principal ${key} not null, object ${key} not null,
       verdict ${key} not null, name ${text(2048)}, ${stamp}`,
    ],
    [
      'log_lists',
      `id ${bytes(16)} not null primary key, type ${small} not null, shown integer not null, hidden integer not null,
       names ${key} not null, ${stamp}`,
    ],
    [
      // One record has the outcomes of several requests. `since` is the time of the first of their decisions.
      'log_outcomes',
      `since ${number} not null, created_at ${number} not null, outcomes ${isMysql ? 'varbinary(672)' : 'blob'} not null,
       ${stamp}, primary key (chain, seq)`,
    ],
    ['log_arguments', `id ${bytes(16)} not null primary key, hash ${bytes(32)} not null, salt ${text(22)}, arguments ${long}`],
    [
      'log_principals',
      `id ${key} not null primary key, issuer ${text(512)} not null, user_id ${text(256)} not null,
       user_role ${text(256)} not null, since ${number} not null, person_hash ${text(43)} not null, salt ${text(22)},
       user_email ${text(320)} not null, user_groups ${long} not null`,
    ],
    [
      'log_objects',
      `id ${key} not null primary key, target_id ${text(36)}, target_name ${text(63)} not null, method ${text(256)} not null,
       resource_type ${text(16)}, resource_name ${text(2048)}`,
    ],
    [
      'log_verdicts',
      `id ${key} not null primary key, effect ${text(8)} not null, reason ${text(32)} not null, policy_id ${text(36)},
       policy_name ${text(256)}, policy_priority integer, revision ${number} not null, data_hash ${text(64)} not null,
       engine_hash ${text(64)} not null`,
    ],
    ['log_names', `id ${key} not null primary key, set_hash ${text(64)} not null, names ${long} not null`],
    [
      'log_segments',
      // The key is the chain and the number of the first decision.
      `id ${bytes(8)} not null primary key, last_seq integer, low ${bytes(16)} not null, high ${bytes(16)} not null`,
    ],
    ['log_terms', `term ${bytes(8)} not null, segment ${bytes(8)} not null, primary key (term, segment)`],
  ];
  for (const [name, columns] of tables) await db.raw(`create table if not exists ${name} (${columns}) ${tail}`);

  const indexes: readonly (readonly [table: string, name: string, columns: string])[] = [
    ['log_decisions', 'log_decisions_chain', 'chain, seq'],
    ['log_lists', 'log_lists_chain', 'chain, seq'],
    ['log_outcomes', 'log_outcomes_since', 'since'],
    ['log_principals', 'log_principals_user', 'user_id'],
    ['log_terms', 'log_terms_segment', 'segment'],
    ['log_segments', 'log_segments_high', 'high'],
    ['log_segments', 'log_segments_open', 'last_seq'],
  ];
  for (const [table, name, columns] of indexes) {
    if (!(await hasIndex(db, table, name, collation))) await db.raw(`create index ${name} on ${table} (${columns})`);
  }
}
