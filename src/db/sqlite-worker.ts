/** Owns the SQLite connection, so that an fsync never blocks the event loop of the gateway. */

import { parentPort, workerData } from 'node:worker_threads';
import Database from 'libsql';
import { entered } from '../base/kept.ts';
import type { SqliteMessage, SqliteReply, SqliteRequest } from './sqlite-client.ts';

const STATEMENTS_KEPT = 200;
/** A longer statement has a list of keys in it, so it is hardly used again. */
const MAX_KEPT_LENGTH = 4_000;
/** How long a statement waits for the transaction of another connection, in milliseconds. */
const HELD_MS = 20_000;

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

/** The connection whose transaction is open. Only its statements run, so that nobody sees what is not committed. */
let holder: number | null = null;
/**
 * Whether that transaction has written nothing so far. Then others may read, too, so that a long report keeps no gate from reading. They find
 * the newest state, because no other connection writes before the transaction ends.
 */
let hasOnlyRead = false;
/** Statements of other connections, which wait for the end of that transaction. */
let held: { readonly request: SqliteRequest; readonly timer: NodeJS.Timeout }[] = [];

/**
 * Connections whose transaction SQLite has rolled back by itself, for example because the disk is full. What they send before their own
 * rollback belongs to that transaction: without one, SQLite would commit each statement by itself.
 */
const undone = new Set<number>();

const isBegin = (sql: string): boolean => /^\s*begin\s*;?\s*$/i.test(sql);
const isRead = (sql: string): boolean => /^\s*select\b/i.test(sql);
const isRollback = (sql: string): boolean => /^\s*rollback\s*;?\s*$/i.test(sql);
const isCommit = (sql: string): boolean => /^\s*commit\b/i.test(sql);

function refuse({ id }: SqliteRequest, code: string, message: string): void {
  parentPort?.postMessage({ id, error: { message, code } } satisfies SqliteReply);
}

function answer(request: SqliteRequest): void {
  const { id, connection, sql } = request;
  if (undone.has(connection)) {
    // After a commit that failed, no rollback comes.
    if (isRollback(sql) || isCommit(sql)) undone.delete(connection);
    if (isRollback(sql)) {
      parentPort?.postMessage({ id, changes: 0, lastID: 0 } satisfies SqliteReply);
    } else refuse(request, 'SQLITE_ABORT', 'SQLite has rolled back the transaction');
    return;
  }
  const wasHolder = holder === connection;
  const reply = run(request);
  parentPort?.postMessage(reply);
  holder = database.inTransaction ? connection : null;
  hasOnlyRead = wasHolder ? hasOnlyRead && isRead(sql) : isBegin(sql);
  // After a commit that failed, no rollback comes.
  if (wasHolder && holder === null && 'error' in reply && !isRollback(sql) && !isCommit(sql)) undone.add(connection);
}

function hold(request: SqliteRequest): void {
  const timer = setTimeout(() => {
    held = held.filter((one) => one.request !== request);
    refuse(request, 'SQLITE_BUSY', 'another transaction of this process did not end');
  }, HELD_MS).unref();
  held.push({ request, timer });
}

/** Runs the statements that waited, in their order, until one of them begins a transaction. */
function goOn(): void {
  while (holder === null) {
    const next = held.shift();
    if (next === undefined) return;
    clearTimeout(next.timer);
    answer(next.request);
  }
}

/** Reads for one connection in the transaction of another, which has only read. A lack of memory makes SQLite roll that one back. */
function readBeside(other: number, request: SqliteRequest): void {
  parentPort?.postMessage(run(request));
  if (database.inTransaction) return;
  undone.add(other);
  holder = null;
}

/** Rolls back what the connection has not committed, and drops what it waits for. */
function end(connection: number): void {
  undone.delete(connection);
  const isOwn = ({ request }: (typeof held)[number]): boolean => request.connection === connection;
  for (const { request, timer } of held.filter(isOwn)) {
    clearTimeout(timer);
    refuse(request, 'SQLITE_ABORT', 'the connection has ended');
  }
  held = held.filter((one) => !isOwn(one));
  if (holder !== connection) return;
  database.exec('rollback');
  holder = null;
}

parentPort?.on('message', (message: SqliteMessage) => {
  if (message === 'close') {
    statements.clear();
    database.close();
    parentPort?.close();
    return;
  }
  if ('ended' in message) end(message.ended);
  else if (holder === null || holder === message.connection) answer(message);
  else if (hasOnlyRead && isRead(message.sql) && !undone.has(message.connection)) readBeside(holder, message);
  else hold(message);
  goOn();
});
parentPort?.postMessage('open');
