/** MySQL Group Replication, three primaries. */
import { randomUUID } from 'node:crypto';
import { cpSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  askOne,
  type Cluster,
  createOnCluster,
  type Place,
  password,
  places,
  withConnection,
  writeInitFile,
} from './cluster-node.ts';
import type { Guardian } from './guardian.ts';
import { findMysql } from './mysql.ts';
import { isRoot } from './server.ts';
import { serverProcess } from './server-process.ts';

/** How often a node is restarted, as an init system would do. */
const RESTARTS = 20;
const MEMBER_STATE = 'select member_state from performance_schema.replication_group_members where member_id = @@server_uuid';

export async function startGroupReplication(guardian: Guardian, say: (line: string) => void): Promise<Cluster> {
  const [command, ...words] = (await findMysql(guardian, say)).words;
  const user = isRoot ? ['--user=root'] : [];
  const all = await places(guardian, 'm');
  const empty = join(guardian.folder, 'empty');
  mkdirSync(empty);
  await guardian.run(command, [...words, ...user, `--datadir=${empty}`, '--initialize-insecure'], { timeoutMs: 120_000 });
  // The file with the server's id: each node makes its own.
  rmSync(join(empty, 'auto.cnf'), { force: true });
  for (const { data } of all) cpSync(empty, data, { recursive: true });

  const group = randomUUID();
  const seeds = all.map((place) => `127.0.0.1:${place.group}`).join();
  const args = (place: Place): string[] => [
    ...words,
    ...user,
    `--datadir=${place.data}`,
    `--port=${place.port}`,
    '--bind-address=127.0.0.1',
    '--mysqlx=OFF',
    `--socket=${join(place.folder, 's')}`,
    `--pid-file=${join(place.folder, 'pid')}`,
    `--tmpdir=${place.folder}`,
    '--secure-file-priv=NULL',
    '--innodb-flush-log-at-trx-commit=1',
    '--sync-binlog=1',
    '--innodb-buffer-pool-size=64M',
    '--max-connections=500',
    `--server-id=${place.index + 1}`,
    '--gtid-mode=ON',
    '--enforce-gtid-consistency=ON',
    '--report-host=127.0.0.1',
    `--report-port=${place.port}`,
    '--plugin-load-add=group_replication.so',
    `--loose-group_replication_group_name=${group}`,
    `--loose-group_replication_local_address=127.0.0.1:${place.group}`,
    `--loose-group_replication_group_seeds=${seeds}`,
    '--loose-group_replication_ip_allowlist=127.0.0.1/8',
    '--loose-group_replication_recovery_get_public_key=ON',
    '--loose-group_replication_single_primary_mode=OFF',
    '--loose-group_replication_enforce_update_everywhere_checks=ON',
  ];
  const isMember = async ({ url }: Place): Promise<boolean> =>
    (await askOne(url, MEMBER_STATE)) === 'ONLINE' && (await askOne(url, 'select @@global.read_only')) === '0';
  const processes = all.map((place) => serverProcess(guardian, `node ${place.index} of Group Replication`, command));

  await Promise.all(
    all.map(async (place) => {
      // Accounts are made on each node and are not replicated by the group.
      const initFile = writeInitFile(place.folder, ['SET SESSION sql_log_bin = 0;']);
      const begin = ['--loose-group_replication_start_on_boot=OFF', `--init-file=${initFile}`];
      await processes[place.index]?.start([...args(place), ...begin], async () => (await askOne(place.url, 'select 1')) === '1');
      await withConnection(place.url, async (connection) => {
        for (const sql of [
          'set session sql_log_bin = 0',
          `create user 'replication'@'127.0.0.1' identified by '${password}'`,
          "grant replication slave, backup_admin, connection_admin, group_replication_stream on *.* to 'replication'@'127.0.0.1'",
          `change replication source to source_user = 'replication', source_password = '${password}' for channel 'group_replication_recovery'`,
        ])
          await connection.query(sql);
      });
    }),
  );
  for (const place of all) {
    await withConnection(place.url, async (connection) => {
      const bootstrap = place.index === 0;
      if (bootstrap) await connection.query('set global group_replication_bootstrap_group = ON');
      await connection.query('start group_replication');
      if (bootstrap) await connection.query('set global group_replication_bootstrap_group = OFF');
    });
  }
  for (const place of all) while (!(await isMember(place))) await sleep(100);

  return {
    version: (await askOne(all[0]?.url ?? '', 'select version()')) ?? 'unknown',
    nodes: all.map((place) => ({
      url: place.url,
      kill: async () => processes[place.index]?.kill(),
      freeze: () => processes[place.index]?.signal('SIGSTOP'),
      thaw: () => processes[place.index]?.signal('SIGCONT'),
      // A member that the others still count among them cannot join, and ends.
      start: async () => {
        for (let tried = 1; ; tried++) {
          try {
            return await processes[place.index]?.start([...args(place), '--loose-group_replication_start_on_boot=ON'], () =>
              isMember(place),
            );
          } catch (error) {
            if (tried === RESTARTS) throw error;
          }
          await sleep(1_000);
        }
      },
    })),
    createDatabase: () => createOnCluster(all.map(({ url }) => url)),
  };
}
