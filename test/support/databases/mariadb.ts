import { chownSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import type { Guardian } from './guardian.ts';
import { findProgram, isRoot, type LocalServer, type Place, startServer } from './server.ts';

export const MARIADB_HINT = 'install the packages mariadb-server-core and mariadb-server (Debian, Ubuntu) or mariadb (Homebrew)';

/** Starts the MariaDB of this machine; `undefined` if there is none. */
export async function startMariadb(guardian: Guardian, place: Place = {}): Promise<LocalServer | undefined> {
  const command = findProgram(['mariadbd']);
  const install = findProgram(['mariadb-install-db']);
  if (command === undefined || install === undefined) return undefined;

  const folder = join(guardian.folder, 'mariadb');
  const { data = join(folder, 'data'), within = [], options = [] } = place;
  mkdirSync(place.data === undefined ? data : folder, { recursive: true });
  const user = isRoot ? [`--user=${await giveToServer(guardian, place.data === undefined ? [folder, data] : [folder])}`] : [];
  const [installer = install, ...words] = [...within, install];
  await guardian.run(
    installer,
    [
      ...words,
      '--no-defaults',
      ...user,
      `--datadir=${data}`,
      // A server that starts removes the files of other servers there.
      `--tmpdir=${folder}`,
      '--auth-root-authentication-method=normal',
      '--skip-test-db',
      ...options,
    ],
    { timeoutMs: 60_000 },
  );
  const [program = command, ...before] = [...within, command];
  return startServer(guardian, folder, {
    name: 'MariaDB',
    command: program,
    args: ({ port, initFile }) => [
      ...before,
      '--no-defaults',
      ...user,
      `--datadir=${data}`,
      `--port=${port}`,
      '--bind-address=127.0.0.1',
      `--socket=${join(folder, 's')}`,
      `--pid-file=${join(folder, 'pid')}`,
      `--init-file=${initFile}`,
      `--tmpdir=${folder}`,
      '--innodb-flush-log-at-trx-commit=1',
      '--sync-binlog=1',
      '--innodb-buffer-pool-size=128M',
      '--max-connections=500',
      ...options,
    ],
  });
}

/** The server does not like to run as root: the folders go to the user that its package made, if the package did. */
export async function giveToServer(guardian: Guardian, folders: readonly string[]): Promise<string> {
  const id = (flag: string) => guardian.run('id', [flag, 'mysql'], { timeoutMs: 5_000 }).then(Number);
  try {
    const [uid, gid] = await Promise.all([id('-u'), id('-g')]);
    for (const path of folders) chownSync(path, uid, gid);
    return 'mysql';
  } catch {
    return 'root';
  }
}
