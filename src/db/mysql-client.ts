/** The knex dialect for MySQL with a statement timeout, so that a server that hangs does not block all requests. */
import { createRequire } from 'node:module';
import type { Knex } from 'knex';

interface RawConnection {
  destroy(): void;
}

interface Query {
  readonly sql: string;
  options?: object;
}

interface Dialect {
  _query(connection: RawConnection, query: Query): Promise<unknown>;
}

// knex exposes its dialects only under this path, without types and as CommonJS.
const Mysql2: typeof Knex.Client = createRequire(import.meta.url)('knex/lib/dialects/mysql2/index.js');

/** knex sends these texts at the beginning and the end of a transaction. */
const BOUNDARY = /^(?:begin|commit|rollback|set transaction)\b/i;

/** A server refuses writes with these, for example the primary before a failover, which is a replica now. */
const READ_ONLY = new Set(['ER_OPTION_PREVENTS_STATEMENT', 'ER_READ_ONLY_MODE']);

/**
 * A statement without an answer in time fails like a lost connection, and its connection is closed: the server may still execute
 * it and answer later. Streams have no timeout.
 *
 * So is the connection of a transaction whose end the server refuses, as a member of a cluster without majority does: the transaction stays open, and
 * what the pool would send on this connection next would be part of it. And so is a connection to a server that has become read-only: a new one
 * may lead to the server that has taken its place.
 */
export function boundedMysql(timeoutMs: number): typeof Knex.Client {
  const unbounded = Mysql2.prototype as unknown as Dialect;
  return class extends Mysql2 {
    async _query(connection: RawConnection, query: Query): Promise<unknown> {
      query.options = { ...query.options, timeout: timeoutMs };
      try {
        return await unbounded._query.call(this, connection, query);
      } catch (error) {
        const { code = '' } = error as { code?: string };
        if (BOUNDARY.test(query.sql) || code === 'PROTOCOL_SEQUENCE_TIMEOUT' || READ_ONLY.has(code)) connection.destroy();
        throw error;
      }
    }
  };
}
