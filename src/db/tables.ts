/** Helpers with which migrations create tables. */
import type { Knex } from 'knex';

/**
 * Returns a function that creates a table. Conventions of every table: times are milliseconds since the epoch; identifiers are
 * compared byte for byte (the `collation` of the dialect); there are no foreign keys, because Group Replication cannot certify
 * cascades in multi-primary mode.
 */
export function tableMaker(
  db: Knex,
  collation: string | null,
): (name: string, define: (table: Knex.CreateTableBuilder) => void) => Promise<void> {
  return async (name, define) => {
    // MySQL commits DDL immediately, so an interrupted migration is run again from its beginning.
    if (await db.schema.hasTable(name)) return;
    await db.schema.createTable(name, (table) => {
      if (collation !== null) {
        table.engine('InnoDB');
        table.charset('utf8mb4');
        table.collate(collation);
      }
      define(table);
    });
  };
}

/** Whether the table has the index. knex can check for tables and columns, but not for indexes. */
export async function hasIndex(db: Knex, table: string, name: string, collation: string | null): Promise<boolean> {
  const row =
    collation === null
      ? await db('sqlite_master').where({ type: 'index', name }).first('name')
      : await db('information_schema.statistics')
          .where({ table_name: table, index_name: name })
          .andWhere('table_schema', db.raw('database()'))
          .first('index_name');
  return row !== undefined;
}
