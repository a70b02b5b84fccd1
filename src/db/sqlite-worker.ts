/** Owns the SQLite connection, so that an fsync never blocks the event loop of the gateway. */

import { parentPort, workerData } from 'node:worker_threads';
import Database from 'libsql';
import { entered } from '../base/kept.ts';
import type { SqliteReply, SqliteRequest } from './sqlite-client.ts';

const STATEMENTS_KEPT = 200;
/** A longer statement has a list of keys in it, so it is hardly used again. */
const MAX_KEPT_LENGTH = 4_000;

function open(path: string): Database.Database {
  const database = new Database(path, { timeout: 2000 });
  // EXCLUSIVE is set before the first access: one process owns the file until it ends or is killed.
  database.exec('PRAGMA locking_mode = EXCLUSIVE');
  database.exec('PRAGMA journal_mode = WAL');
  database.exec('PRAGMA synchronous = FULL');
  database.exec('BEGIN IMMEDIATE; COMMIT');
  return database;
}

let database: Database.Database;
try {
  database = open((workerData as { path: string }).path);
} catch (error) {
  // libsql's errors cannot be sent to another thread as they are.
  throw new Error(String((error as { message?: unknown }).message ?? error));
}

const statements = new Map<string, Database.Statement>();

function run({ id, sql, bindings }: SqliteRequest): SqliteReply {
  try {
    if (bindings === null) {
      database.exec(sql);
      return { id, changes: 0, lastID: 0 };
    }
    const prepare = () => database.prepare(sql);
    const statement = sql.length > MAX_KEPT_LENGTH ? prepare() : entered(statements, sql, prepare, STATEMENTS_KEPT);
    if (statement.reader) return { id, rows: statement.all(bindings) };
    const { changes, lastInsertRowid } = statement.run(bindings);
    return { id, changes, lastID: Number(lastInsertRowid) };
  } catch (error) {
    // A schema change makes cached statements stale, so a failure clears the cache.
    statements.clear();
    // A text of several statements is one transaction, and nothing else ends it if one of them fails.
    if (bindings === null && sql.startsWith('begin;') && database.inTransaction) database.exec('rollback');
    const { message, code } = error as { message: string; code?: string };
    return { id, error: { message, code: code ?? 'SQLITE_ERROR' } };
  }
}

parentPort?.on('message', (request: SqliteRequest | 'close') => {
  if (request === 'close') {
    statements.clear();
    database.close();
    parentPort?.close();
    return;
  }
  parentPort?.postMessage(run(request));
});
parentPort?.postMessage('open');
