import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Guardian } from './guardian.ts';
import { unpackMysql } from './mysql-unpack.ts';
import { findProgram, isRoot, type LocalServer, type Place, startServer } from './server.ts';

/** How to call a `mysqld`: the words before its own options. */
export interface MysqlProgram {
  readonly words: readonly [string, ...string[]];
}

export const MYSQL_HINT = 'start Docker, or install MySQL 8.4 or newer, or use Debian on amd64, where the tests unpack their own';

/** Starts this machine's MySQL if it is one that we support, otherwise an unpacked one; throws with the reason if neither is to be had. */
export async function startMysql(guardian: Guardian, say: (line: string) => void, place: Place = {}): Promise<LocalServer> {
  const program = await findMysql(guardian, say);
  const folder = join(guardian.folder, 'mysql');
  const { data = join(folder, 'data'), within = [], options = [] } = place;
  const [command = '', ...words] = [...within, ...program.words];
  mkdirSync(folder, { recursive: true });
  const user = isRoot ? ['--user=root'] : [];
  await guardian.run(command, [...words, ...user, `--datadir=${data}`, '--initialize-insecure', ...options], {
    timeoutMs: 120_000,
  });
  return startServer(guardian, folder, {
    name: 'MySQL',
    command,
    args: ({ port, initFile }) => [
      ...words,
      ...user,
      `--datadir=${data}`,
      `--port=${port}`,
      '--bind-address=127.0.0.1',
      '--mysqlx=OFF',
      `--socket=${join(folder, 's')}`,
      `--pid-file=${join(folder, 'pid')}`,
      `--init-file=${initFile}`,
      `--tmpdir=${folder}`,
      '--secure-file-priv=NULL',
      '--innodb-flush-log-at-trx-commit=1',
      '--sync-binlog=1',
      '--innodb-buffer-pool-size=128M',
      '--max-connections=500',
      ...options,
    ],
  });
}

export async function findMysql(guardian: Guardian, say: (line: string) => void): Promise<MysqlProgram> {
  return (await installedMysql(guardian)) ?? (await unpackMysql(guardian, say));
}

async function installedMysql(guardian: Guardian): Promise<MysqlProgram | undefined> {
  const path = findProgram(['mysqld']);
  if (path === undefined) return undefined;
  // `mysqld` may be a name of MariaDB, and a MySQL older than 8.4 is none that we promise to work on.
  const answer = await guardian.run(path, ['--no-defaults', '--version'], { timeoutMs: 10_000 }).catch(() => 'MariaDB');
  const version = /Ver (\d+\.\d+)/.exec(answer)?.[1];
  if (/mariadb/i.test(answer) || version === undefined || Number(version) < 8.4) return undefined;
  return { words: [path, '--no-defaults'] };
}
