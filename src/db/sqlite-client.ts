/** A knex dialect for SQLite in a worker thread. All its connections share the thread, which runs one statement at a time. */
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Worker } from 'node:worker_threads';
import type { Knex } from 'knex';

export interface SqliteRequest {
  readonly id: number;
  /** The connection that sends it. It waits for the answer before it sends the next. */
  readonly connection: number;
  readonly sql: string;
  /** null: the values are part of the statement, so it is not worth caching. */
  readonly bindings: readonly unknown[] | null;
}

/** `ended`: this connection sends nothing more. */
export type SqliteMessage = SqliteRequest | { readonly ended: number } | 'close';

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

/** For how long the thread's answers are handed on in one turn of the event loop, in milliseconds. */
const TURN_MS = 5;

class SqliteThread {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, { resolve(reply: SqliteReply): void; reject(error: Error): void }>();
  /** When this turn hands on no more answers; null: it has handed on none yet. */
  #turnEnds: number | null = null;
  #nextRequest = 1;
  #nextConnection = 1;
  #failure: Error | null = null;

  private constructor(worker: Worker) {
    this.#worker = worker;
    worker.on('message', (reply: SqliteReply) => setImmediate(this.#handOn, reply));
    worker.on('error', (error: Error) => this.#fail(error));
    worker.on('exit', () => this.#fail(new Error('The SQLite worker has ended')));
  }

  static async open(path: string): Promise<SqliteThread> {
    const file = import.meta.url.endsWith('.ts') ? './sqlite-worker.ts' : './sqlite-worker.js';
    const worker = new Worker(new URL(file, import.meta.url), { workerData: { path } });
    await once(worker, 'message');
    return new SqliteThread(worker);
  }

  connect(): SqliteConnection {
    return new SqliteConnection(this, this.#nextConnection++);
  }

  run(connection: number, sql: string, bindings: readonly unknown[] | null): Promise<SqliteReply> {
    if (this.#failure) return Promise.reject(this.#failure);
    const id = this.#nextRequest++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#send({ id, connection, sql, bindings });
    });
  }

  /** Rolls back what the connection has not committed. */
  end(connection: number): void {
    if (this.usable) this.#send({ ended: connection });
  }

  async close(): Promise<void> {
    if (!this.usable) return;
    const ended = once(this.#worker, 'exit');
    this.#send('close');
    await ended;
  }

  get usable(): boolean {
    return this.#failure === null;
  }

  #send(message: SqliteMessage): void {
    this.#worker.postMessage(message);
  }

  /**
   * Hands on an answer, a limited time in each turn of the event loop. Node would hand on up to a thousand before it looks at a socket or a
   * timer. An answer that comes in a turn is handed on at its end: the thread often answers before the code that sent the statement is
   * done, so all statements of a long read could run in one turn.
   */
  readonly #handOn = (reply: SqliteReply): void => {
    const now = performance.now();
    if (this.#turnEnds === null) {
      this.#turnEnds = now + TURN_MS;
      setImmediate(() => {
        this.#turnEnds = null;
      });
    } else if (now > this.#turnEnds) {
      setImmediate(this.#handOn, reply);
      return;
    }
    this.#waiting.get(reply.id)?.resolve(reply);
    this.#waiting.delete(reply.id);
  };

  #fail(error: Error): void {
    this.#failure ??= error;
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }
}

class SqliteConnection {
  readonly #thread: SqliteThread;
  readonly #id: number;

  constructor(thread: SqliteThread, id: number) {
    this.#thread = thread;
    this.#id = id;
  }

  run(sql: string, bindings: readonly unknown[] | null): Promise<SqliteReply> {
    return this.#thread.run(this.#id, sql, bindings);
  }

  end(): void {
    this.#thread.end(this.#id);
  }

  get usable(): boolean {
    return this.#thread.usable;
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

  #thread: Promise<SqliteThread> | null = null;

  override async acquireRawConnection(): Promise<SqliteConnection> {
    const before = this.#thread;
    const isUsable = await before?.then(
      ({ usable }) => usable,
      () => false,
    );
    // Another connection may have opened the next thread in the meantime. Only one thread can have the file.
    if (this.#thread === null || (isUsable !== true && this.#thread === before)) {
      this.#thread = SqliteThread.open((this as unknown as Dialect).connectionSettings.filename);
    }
    return (await this.#thread).connect();
  }

  override async destroyRawConnection(connection: SqliteConnection): Promise<void> {
    connection.end();
  }

  override async destroy(callback?: () => void): Promise<void> {
    await super.destroy(undefined);
    await this.#thread?.then(
      (thread) => thread.close(),
      () => {},
    );
    callback?.();
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
