/** Finds and starts all available database servers at the same time. Prints one line for each server that is missing. */
import type { Guardian } from './guardian.ts';
import { MARIADB_HINT, startMariadb } from './mariadb.ts';
import { MYSQL_HINT, startMysql } from './mysql.ts';
import type { DatabaseServer } from './server.ts';

export const MARIADB_URL = 'PORTCULLIS_TEST_MARIADB_URL';
export const MYSQL_URL = 'PORTCULLIS_TEST_MYSQL_URL';
/**
 * A folder of this run that has a migrated SQLite file, and lists databases for later tests. It is set if the servers end with this run,
 * because only then tests may leave databases behind.
 */
export const SPARE_DATABASES = 'PORTCULLIS_TEST_SPARE_DATABASES';
/** `true`: with several servers, most tests run on one of them (`enginesFor`). */
export const ONE_SERVER = 'PORTCULLIS_TEST_ONE_SERVER';

export interface StartedDatabases {
  /** Variables for the environment of the tests. */
  readonly urls: Readonly<Record<string, string>>;
  stop(): Promise<void>;
}

/** The databases that the user asked for, in lower case. */
export function wantedDatabases(): ReadonlySet<string> {
  return new Set((process.env.PORTCULLIS_TEST_DATABASES || 'sqlite,mariadb,mysql').toLowerCase().split(','));
}

type Say = (line: string) => void;
interface Found extends DatabaseServer {
  stop?(): Promise<void>;
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message.replaceAll(/\s*\n\s*/g, ' | ') : String(error);
}

async function mariadb(guardian: Guardian, say: Say): Promise<Found | undefined> {
  try {
    const server = await startMariadb(guardian);
    if (server === undefined) say(`not run: MariaDB (not installed). To have it: ${MARIADB_HINT}`);
    return server;
  } catch (error) {
    say(`not run: MariaDB (${reasonOf(error)})`);
    return undefined;
  }
}

async function mysql(guardian: Guardian, say: Say): Promise<Found | undefined> {
  // Loading it takes half a second, which a run without MySQL need not spend.
  const docker = await import('./docker.ts');
  if (await docker.dockerAnswers()) {
    try {
      return await docker.startMysqlContainer();
    } catch (error) {
      say(`not run: MySQL in Docker (${reasonOf(error)})`);
    }
  } else {
    say(`not run: Docker (no engine answers). To have it: ${docker.DOCKER_HINT}`);
  }
  try {
    return await startMysql(guardian, say);
  } catch (error) {
    say(`not run: MySQL (${reasonOf(error)}). To have it: ${MYSQL_HINT}`);
    return undefined;
  }
}

/** `wanted`: the databases to use, in lower case. A server whose URL is in the environment is used as it is. */
export async function startDatabases(guardian: Guardian, wanted: ReadonlySet<string>, say: Say): Promise<StartedDatabases> {
  const servers: Found[] = [];
  const urls: Record<string, string> = {};
  const add = async (name: string, variable: string, start: (guardian: Guardian, say: Say) => Promise<Found | undefined>) => {
    if (!wanted.has(name.toLowerCase())) return say(`not run: ${name} (left out by PORTCULLIS_TEST_DATABASES)`);
    const given = process.env[variable];
    if (given) {
      urls[variable] = given;
      return say(`running on ${name} given by ${variable}`);
    }
    const began = Date.now();
    const server = await start(guardian, say);
    if (server === undefined) return;
    servers.push(server);
    urls[variable] = server.url;
    say(`running on ${name} ${server.version} (started in ${((Date.now() - began) / 1000).toFixed(1)} s)`);
  };
  await Promise.all([add('MariaDB', MARIADB_URL, mariadb), add('MySQL', MYSQL_URL, mysql)]);
  return {
    urls,
    async stop() {
      await Promise.allSettled(servers.map((server) => server.stop?.()));
    },
  };
}
