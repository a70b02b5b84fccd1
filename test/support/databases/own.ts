/** A server that belongs to one test file, which may do to it what no other test could bear. */
import { randomBytes } from 'node:crypto';
import { type Connection, createConnection, type RowDataPacket } from 'mysql2/promise';
import { type SmallDisk, smallDisk } from '../small-disk.ts';
import type { EngineName } from './engines.ts';
import type { Guardian } from './guardian.ts';
import { startMariadb } from './mariadb.ts';
import { startMysql } from './mysql.ts';
import type { LocalServer, Place } from './server.ts';

export interface OwnServer extends LocalServer {
  /** The small disk that holds the data. `missing`: why there is none; an ordinary folder then holds the data. */
  readonly disk: SmallDisk | { readonly missing: string };
  /** Creates a new database. Its URL names a user who has all rights in it, and no others. */
  createDatabase(): Promise<OwnDatabase>;
}

export interface OwnDatabase {
  readonly url: string;
  readonly user: string;
  readonly password: string;
}

const DISK_MEGABYTES = 256;

const OPTIONS: Readonly<Record<Exclude<EngineName, 'sqlite'>, readonly string[]>> = {
  mariadb: ['--innodb-log-file-size=8M', '--innodb-buffer-pool-size=32M'],
  // If the disk is full, the binary log waits a whole minute before the next attempt.
  mysql: ['--innodb-redo-log-capacity=8M', '--innodb-buffer-pool-size=32M', '--disable-log-bin'],
};

export async function startOwn(guardian: Guardian, engine: Exclude<EngineName, 'sqlite'>): Promise<OwnServer> {
  const disk = await smallDisk(guardian, DISK_MEGABYTES).catch((error: Error) => ({ missing: error.message }));
  const place: Place = {
    ...('missing' in disk ? {} : { within: disk.within, data: `${disk.folder}/data` }),
    options: OPTIONS[engine],
  };
  const server = engine === 'mariadb' ? await startMariadb(guardian, place) : await startMysql(guardian, () => undefined, place);
  if (server === undefined) throw new Error('MariaDB is not installed');
  return {
    ...server,
    disk,
    async createDatabase() {
      const user = `p${randomBytes(6).toString('hex')}`;
      const password = randomBytes(12).toString('hex');
      await withAdmin(server, async (admin) => {
        await admin.query(`create database ${user} character set utf8mb4`);
        await admin.query(`create user '${user}'@'%' identified by '${password}'`);
        await admin.query(`grant all privileges on ${user}.* to '${user}'@'%'`);
      });
      const url = new URL(server.url);
      url.username = user;
      url.password = password;
      url.pathname = `/${user}`;
      return { url: url.href, user, password };
    },
  };
}

export async function withAdmin<T>({ url }: { readonly url: string }, work: (admin: Connection) => Promise<T>): Promise<T> {
  const admin = await createConnection({ uri: url, connectTimeout: 5_000 });
  try {
    return await work(admin);
  } finally {
    admin.destroy();
  }
}

/** Ends the connections of a user, but those of these ids; says how many there were. */
export async function endConnections(admin: Connection, user: string, kept: ReadonlySet<number>): Promise<number> {
  const [rows] = await admin.query<RowDataPacket[]>('show processlist');
  const theirs = rows.filter((row) => row['User'] === user && !kept.has(Number(row['Id'])));
  for (const { Id } of theirs) await admin.query(`kill connection ${Number(Id)}`).catch(() => undefined);
  return theirs.length;
}
