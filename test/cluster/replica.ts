/**
 * A gateway, as `src/main.ts` runs it. With the kind of the cluster as argument, it reads its state without the setting that makes reads
 * causal.
 */

import { createLog } from '../../src/base/log.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { createGateway } from '../../src/gateway.ts';

const UNDO: Readonly<Record<string, string>> = {
  galera: 'set session wsrep_sync_wait = 0',
  'group-replication': "set session group_replication_consistency = 'EVENTUAL'",
};

interface Pool {
  on(event: 'createSuccess', seen: (id: number, connection: { query(sql: string): void }) => void): void;
}

const undo = UNDO[process.argv[2] ?? ''];
const open: typeof openDatabase = async (config, firstRows) => {
  const database = await openDatabase(config, firstRows);
  // Statements of a connection run in the order in which they are given, so this one comes before any of the gateway's.
  const { pool }: { pool: Pool } = database.reader.client;
  pool.on('createSuccess', (_id, connection) => connection.query(undo ?? ''));
  return database;
};

const config = readConfig(process.env);
const gateway = await createGateway(config, createLog(config.logLevel), undo === undefined ? openDatabase : open);
await gateway.listen();
process.on('SIGTERM', () => void gateway.close().then(() => process.exit(0)));
