/** The common parts of MariaDB and MySQL: an empty data folder, a free port, and an administrator with a new password. */
import { randomBytes } from 'node:crypto';
import { accessSync, constants, writeFileSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { createConnection } from 'mysql2/promise';
import { freePort } from '../port.ts';
import type { Guardian } from './guardian.ts';
import { serverProcess } from './server-process.ts';

// Servers are often installed in folders that are not in the PATH of an ordinary user.
const SERVER_FOLDERS = [
  '/usr/sbin',
  '/usr/local/sbin',
  '/usr/libexec',
  '/usr/local/bin',
  '/opt/homebrew/bin',
  '/usr/local/mysql/bin',
];

export const isRoot = process.getuid?.() === 0;

export interface DatabaseServer {
  /** An administrator's connection, without a database. */
  readonly url: string;
  /** The result of `version()`. */
  readonly version: string;
}

/** A server whose process is this test's own. */
export interface LocalServer extends DatabaseServer {
  /** Sends SIGKILL. Resolves when the process is gone. */
  kill(): Promise<void>;
  /** Starts it again as it was, as an init system would; resolves when it answers. */
  start(): Promise<void>;
  hasEnded(): boolean;
  freeze(): void;
  thaw(): void;
}

/** The folder of a server, and its further options. */
export interface Place {
  /** The folder of the data; by default a new one. */
  readonly data?: string;
  /** Words before each command of the server, for example those that enter a namespace. */
  readonly within?: readonly string[];
  readonly options?: readonly string[];
}

interface ServerPlan {
  readonly name: string;
  readonly command: string;
  /** `folder` is an existing folder for socket and pid file. */
  args(place: { readonly port: number; readonly folder: string; readonly initFile: string }): readonly string[];
}

export function findProgram(names: readonly string[]): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(delimiter), ...SERVER_FOLDERS];
  return names
    .flatMap((name) => folders.map((folder) => join(folder, name)))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    });
}

export async function askVersion(url: string): Promise<string> {
  const connection = await createConnection({ uri: url, connectTimeout: 5_000 });
  try {
    const [rows] = await connection.query('select version() as version');
    const [row] = rows as { version: string }[];
    return row?.version ?? 'unknown version';
  } finally {
    await connection.end();
  }
}

/** Starts a server on a prepared data folder; another process may take the free port first, so it tries twice. */
export async function startServer(guardian: Guardian, folder: string, plan: ServerPlan): Promise<LocalServer> {
  try {
    return await startOnce(guardian, folder, plan);
  } catch {
    return startOnce(guardian, folder, plan);
  }
}

async function startOnce(guardian: Guardian, folder: string, plan: ServerPlan): Promise<LocalServer> {
  const password = randomBytes(12).toString('hex');
  const port = await freePort();
  const initFile = join(folder, 'init.sql');
  // 127.0.0.1 and localhost are different accounts, and which of them a connection gets depends on name resolution.
  const accounts = ["'root'@'localhost'", "'root'@'127.0.0.1'"].flatMap((account) => [
    `CREATE USER IF NOT EXISTS ${account};`,
    `ALTER USER ${account} IDENTIFIED BY '${password}';`,
    `GRANT ALL PRIVILEGES ON *.* TO ${account} WITH GRANT OPTION;`,
  ]);
  writeFileSync(initFile, `${accounts.join('\n')}\n`, { mode: 0o644 });

  const url = `mysql://root:${password}@127.0.0.1:${port}`;
  const args = plan.args({ port, folder, initFile });
  const server = serverProcess(guardian, plan.name, plan.command);
  const start = () => server.start(args, async () => (await askVersion(url)) !== '');
  try {
    await start();
    return {
      url,
      version: await askVersion(url),
      start,
      kill: server.kill,
      hasEnded: server.hasEnded,
      freeze: () => server.signal('SIGSTOP'),
      thaw: () => server.signal('SIGCONT'),
    };
  } catch (error) {
    await server.kill();
    throw error;
  }
}
