/** A knex dialect whose only connection is in a worker thread. */
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Worker } from 'node:worker_threads';
import type { Knex } from 'knex';

export interface SqliteRequest {
  readonly id: number;
  readonly sql: string;
  /** null: the values are part of the statement, so it is not worth caching. */
  readonly bindings: readonly unknown[] | null;
}

export type SqliteReply =
  | { readonly id: number; readonly rows: unknown[] }
  | { readonly id: number; readonly changes: number; readonly lastID: number }
  | { readonly id: number; readonly error: { readonly message: string; readonly code: string } };

interface Query {
  sql: string;
  bindings?: unknown[];
  response?: unknown;
  context?: { lastID: number; changes: number };
}

class SqliteConnection {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, { resolve(reply: SqliteReply): void; reject(error: Error): void }>();
  /** Replies that wait for a later turn of the event loop, because one was handed on in this turn. */
  readonly #late: SqliteReply[] = [];
  #hadOne = false;
  #next = 1;
  #failure: Error | null = null;

  private constructor(worker: Worker) {
    this.#worker = worker;
    worker.on('message', (reply: SqliteReply) => {
      if (this.#hadOne) this.#late.push(reply);
      else this.#handOn(reply);
    });
    worker.on('error', (error: Error) => this.#fail(error));
    worker.on('exit', () => this.#fail(new Error('The SQLite worker has ended')));
  }

  static async open(path: string): Promise<SqliteConnection> {
    const file = import.meta.url.endsWith('.ts') ? './sqlite-worker.ts' : './sqlite-worker.js';
    const worker = new Worker(new URL(file, import.meta.url), { workerData: { path } });
    await once(worker, 'message');
    return new SqliteConnection(worker);
  }

  run(sql: string, bindings: readonly unknown[] | null): Promise<SqliteReply> {
    if (this.#failure) return Promise.reject(this.#failure);
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ id, sql, bindings } satisfies SqliteRequest);
    });
  }

  async close(): Promise<void> {
    if (this.#failure) return;
    const ended = once(this.#worker, 'exit');
    this.#worker.postMessage('close');
    await ended;
  }

  get usable(): boolean {
    return this.#failure === null;
  }

  /**
   * Hands on one reply in each turn of the event loop. Node would hand on up to a thousand before it looks at a socket or a timer. The
   * worker often answers before the code that sent the statement is done, so all statements of a long read could run in one turn.
   */
  #handOn(reply: SqliteReply): void {
    this.#hadOne = true;
    setImmediate(() => {
      this.#hadOne = false;
      const next = this.#late.shift();
      if (next !== undefined) this.#handOn(next);
    });
    this.#settle(reply);
  }

  #settle(reply: SqliteReply): void {
    this.#waiting.get(reply.id)?.resolve(reply);
    this.#waiting.delete(reply.id);
  }

  #fail(error: Error): void {
    for (const reply of this.#late.splice(0)) this.#settle(reply);
    this.#failure ??= error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}

interface Dialect {
  connectionSettings: { filename: string };
  _formatBindings(bindings: unknown[] | undefined): unknown[];
}

// knex exposes its dialects only under this path, without types and as CommonJS.
const BetterSqlite3: typeof Knex.Client = createRequire(import.meta.url)('knex/lib/dialects/better-sqlite3/index.js');

export class SqliteClient extends BetterSqlite3 {
  _driver(): unknown {
    return {};
  }

  override acquireRawConnection(): Promise<SqliteConnection> {
    return SqliteConnection.open((this as unknown as Dialect).connectionSettings.filename);
  }

  override destroyRawConnection(connection: SqliteConnection): Promise<void> {
    return connection.close();
  }

  override async validateConnection(connection: SqliteConnection): Promise<boolean> {
    return connection.usable;
  }

  async _query(connection: SqliteConnection, query: Query): Promise<Query> {
    const bindings = query.bindings === undefined ? null : (this as unknown as Dialect)._formatBindings(query.bindings);
    const reply = await connection.run(query.sql, bindings);
    if ('error' in reply) throw Object.assign(new Error(reply.error.message), { code: reply.error.code });
    if ('rows' in reply) query.response = reply.rows;
    else {
      query.response = reply;
      query.context = { lastID: reply.lastID, changes: reply.changes };
    }
    return query;
  }
}
