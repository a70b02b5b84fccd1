import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { MySqlContainer } from '@testcontainers/mysql';
import { getContainerRuntimeClient } from 'testcontainers';
import { askVersion, type DatabaseServer } from './server.ts';

// Pulling the image is part of it.
const START_TIMEOUT_MS = 180_000;

export const DOCKER_HINT = 'start a Docker engine, and MySQL 8.4 runs in a container';

export interface ContainerServer extends DatabaseServer {
  /** If the runner dies first, testcontainers' own reaper removes the container. */
  stop(): Promise<void>;
}

async function within<T>(work: Promise<T>, milliseconds: number): Promise<T> {
  const cancel = new AbortController();
  const late = sleep(milliseconds, undefined, { signal: cancel.signal, ref: false }).then(() => {
    throw new Error(`took more than ${milliseconds / 1000} s`);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    late.catch(() => undefined);
    cancel.abort();
  }
}

/** Asks the engine itself: a `docker` client may be there without one. */
export async function dockerAnswers(): Promise<boolean> {
  try {
    await within(getContainerRuntimeClient(), 10_000);
    return true;
  } catch {
    return false;
  }
}

export async function startMysqlContainer(): Promise<ContainerServer> {
  const password = randomBytes(12).toString('hex');
  const container = new MySqlContainer('mysql:8.4')
    .withRootPassword(password)
    .withCommand(['--innodb-flush-log-at-trx-commit=1', '--sync-binlog=1', '--max-connections=500']);
  const started = await within(container.start(), START_TIMEOUT_MS);
  const url = `mysql://root:${password}@${started.getHost()}:${started.getPort()}`;
  return {
    url,
    version: await askVersion(url),
    async stop() {
      await started.stop();
    },
  };
}
