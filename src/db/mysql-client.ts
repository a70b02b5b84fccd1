/** The dialect for MySQL, with a bound on how long a server may keep a statement: one that hangs must not keep all who ask it. */
import { createRequire } from 'node:module';
import type { Knex } from 'knex';

interface RawConnection {
  destroy(): void;
}

interface Query {
  options?: object;
}

interface Dialect {
  _query(connection: RawConnection, query: Query): Promise<unknown>;
}

// knex offers dialects to extend under this path alone, untyped, and as CommonJS.
const Mysql2: typeof Knex.Client = createRequire(import.meta.url)('knex/lib/dialects/mysql2/index.js');

/**
 * What is not answered in time fails like a connection that is lost, and so it is: what the server does with the statement is
 * not known, and its answer may yet come. Streams are not bounded.
 */
export function boundedMysql(timeoutMs: number): typeof Knex.Client {
  const unbounded = Mysql2.prototype as unknown as Dialect;
  return class extends Mysql2 {
    async _query(connection: RawConnection, query: Query): Promise<unknown> {
      query.options = { ...query.options, timeout: timeoutMs };
      try {
        return await unbounded._query.call(this, connection, query);
      } catch (error) {
        if ((error as { code?: string }).code === 'PROTOCOL_SEQUENCE_TIMEOUT') connection.destroy();
        throw error;
      }
    }
  };
}
