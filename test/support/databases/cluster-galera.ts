/** MariaDB with Galera, three nodes. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { askOne, type Cluster, createOnCluster, NODES, type Place, places, writeInitFile } from './cluster-node.ts';
import type { Guardian } from './guardian.ts';
import { giveToServer, MARIADB_HINT } from './mariadb.ts';
import { findProgram, isRoot } from './server.ts';
import { serverProcess } from './server-process.ts';

const PROVIDERS = [
  '/usr/lib/galera/libgalera_smm.so',
  '/usr/lib64/galera-4/libgalera_smm.so',
  '/usr/lib64/galera/libgalera_smm.so',
];

export async function startGalera(guardian: Guardian): Promise<Cluster> {
  const command = findProgram(['mariadbd']);
  const install = findProgram(['mariadb-install-db']);
  const provider = PROVIDERS.find((path) => existsSync(path));
  if (command === undefined || install === undefined) throw new Error(`MariaDB is not installed: ${MARIADB_HINT}`);
  if (provider === undefined || findProgram(['rsync']) === undefined)
    throw new Error('Galera is not installed: install the packages galera-4 and rsync');

  const all = await places(guardian, 'g');
  // If it runs as root, rsync changes to the user `nobody`, who could not write the files.
  const user = isRoot
    ? [
        `--user=${await giveToServer(
          guardian,
          all.flatMap(({ folder, data }) => [folder, data]),
        )}`,
      ]
    : [];
  const [first] = all;
  if (first === undefined) throw new Error('no node');
  // The others get their data, accounts included, from the first.
  await guardian.run(
    install,
    [
      '--no-defaults',
      ...user,
      `--datadir=${first.data}`,
      `--tmpdir=${first.folder}`,
      '--auth-root-authentication-method=normal',
      '--skip-test-db',
    ],
    { timeoutMs: 120_000 },
  );
  const address = `gcomm://${all.map(({ group }) => `127.0.0.1:${group}`).join()}`;
  const args = ({ folder, data, port, group, transfer, increment }: Place): string[] => [
    '--no-defaults',
    ...user,
    `--datadir=${data}`,
    `--port=${port}`,
    '--bind-address=127.0.0.1',
    `--socket=${join(folder, 's')}`,
    `--pid-file=${join(folder, 'pid')}`,
    `--tmpdir=${folder}`,
    '--innodb-flush-log-at-trx-commit=1',
    '--innodb-buffer-pool-size=64M',
    '--innodb-autoinc-lock-mode=2',
    '--binlog-format=ROW',
    '--max-connections=500',
    '--wsrep-on=ON',
    `--wsrep-provider=${provider}`,
    '--wsrep-cluster-name=portcullis',
    `--wsrep-cluster-address=${address}`,
    `--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:${group};ist.recv_addr=127.0.0.1:${increment}`,
    `--wsrep-node-address=127.0.0.1:${group}`,
    `--wsrep-sst-receive-address=127.0.0.1:${transfer}`,
    '--wsrep-sst-method=rsync',
  ];
  const isUp = async (place: Place): Promise<boolean> =>
    (await askOne(
      place.url,
      "select variable_value from information_schema.global_status where variable_name = 'wsrep_ready'",
    )) === 'ON' &&
    (await askOne(
      place.url,
      "select variable_value from information_schema.global_status where variable_name = 'wsrep_local_state_comment'",
    )) === 'Synced';
  const processes = all.map((place) => serverProcess(guardian, `node ${place.index} of Galera`, command));
  // Start one after the other: a node that sends its data to one node does not accept another.
  for (const place of all) {
    const begin = place === first ? ['--wsrep-new-cluster', `--init-file=${writeInitFile(place.folder)}`] : [];
    await processes[place.index]?.start([...args(place), ...begin], () => isUp(place));
  }
  const version = (await askOne(first.url, 'select version()')) ?? 'unknown';
  if (
    (await askOne(
      first.url,
      "select variable_value from information_schema.global_status where variable_name = 'wsrep_cluster_size'",
    )) !== String(NODES)
  )
    throw new Error('the nodes are not one cluster');
  return {
    version,
    nodes: all.map((place) => ({
      url: place.url,
      kill: async () => processes[place.index]?.kill(),
      freeze: () => processes[place.index]?.signal('SIGSTOP'),
      thaw: () => processes[place.index]?.signal('SIGCONT'),
      start: async () => processes[place.index]?.start(args(place), () => isUp(place)),
    })),
    createDatabase: () => createOnCluster(all.map(({ url }) => url)),
  };
}
