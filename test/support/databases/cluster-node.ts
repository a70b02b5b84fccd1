/** The parts that both kinds of clusters share: three servers on loopback, each a process that can be killed and restarted. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Connection, createConnection } from 'mysql2/promise';
import { freePort } from '../port.ts';
import type { Guardian } from './guardian.ts';

export const NODES = 3;

export interface ClusterNode {
  /** An administrator's connection, without a database. */
  readonly url: string;
  /** Sends SIGKILL. Resolves when the process is gone. */
  kill(): Promise<void>;
  /** Sends SIGSTOP. To the other nodes this one seems dead, and it does not notice that time passes. */
  freeze(): void;
  thaw(): void;
  /** Starts it again on its data, as an init system would; resolves when it is a member like the others. */
  start(): Promise<void>;
}

export interface Cluster {
  readonly version: string;
  readonly nodes: readonly ClusterNode[];
  /** A fresh, empty database: its URL on each node. */
  createDatabase(): Promise<readonly string[]>;
}

/** The folder of a node, and the ports that members use among themselves besides `port`. */
export interface Place {
  readonly index: number;
  readonly folder: string;
  readonly data: string;
  readonly port: number;
  readonly group: number;
  readonly transfer: number;
  readonly increment: number;
  readonly url: string;
}

export const password = randomBytes(12).toString('hex');

/** Returns the places of the nodes. Folders have short names, because the path of a socket has at most 107 characters. */
export async function places(guardian: Guardian, folder: string): Promise<Place[]> {
  const made: Place[] = [];
  for (let index = 0; index < NODES; index++) {
    const home = join(guardian.folder, `${folder}${index}`);
    const data = join(home, 'data');
    mkdirSync(data, { recursive: true });
    const [port, group, transfer, increment] = [await freePort(), await freePort(), await freePort(), await freePort()];
    made.push({ index, folder: home, data, port, group, transfer, increment, url: `mysql://root:${password}@127.0.0.1:${port}` });
  }
  return made;
}

/** The accounts of the administrator. `first` is said before. */
export function writeInitFile(folder: string, first: readonly string[] = []): string {
  const file = join(folder, 'init.sql');
  const accounts = ["'root'@'localhost'", "'root'@'127.0.0.1'"].flatMap((account) => [
    `CREATE USER IF NOT EXISTS ${account};`,
    `ALTER USER ${account} IDENTIFIED BY '${password}';`,
    `GRANT ALL PRIVILEGES ON *.* TO ${account} WITH GRANT OPTION;`,
  ]);
  writeFileSync(file, `${[...first, ...accounts].join('\n')}\n`, { mode: 0o644 });
  return file;
}

export async function withConnection<T>(url: string, work: (connection: Connection) => Promise<T>): Promise<T> {
  const connection = await createConnection({ uri: url, connectTimeout: 5_000 });
  try {
    return await work(connection);
  } finally {
    connection.destroy();
  }
}

/** The first column of the first row. */
export async function askOne(url: string, sql: string): Promise<string | undefined> {
  return withConnection(url, async (connection) => {
    const [rows] = await connection.query({ sql, rowsAsArray: true });
    return (rows as unknown[][])[0]?.map(String)[0];
  });
}

/** Creates a database on the first node, and waits until the other nodes have it. */
export async function createOnCluster(urls: readonly string[]): Promise<readonly string[]> {
  const [first = ''] = urls;
  const name = `portcullis_${randomBytes(6).toString('hex')}`;
  await withConnection(first, (connection) => connection.query(`create database ${name} character set utf8mb4`));
  const there = urls.map((url) => `${url}/${name}`);
  for (const url of there) {
    while (!(await askOne(url, 'select 1').catch(() => undefined))) await sleep(50);
  }
  return there;
}
