/**
 * A small file system that can be filled up. It is mounted in a namespace of its own, so that nothing of it outlives the process
 * that holds it, and that no right is needed but to have such namespaces: root has it, and others mostly.
 */
import { once } from 'node:events';
import { closeSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import type { Guardian } from './databases/guardian.ts';
import { findProgram, isRoot } from './databases/server.ts';

export interface SmallDisk {
  /** Words before a command that must see the disk at `folder`. */
  readonly within: readonly string[];
  readonly folder: string;
  /** Fills all free space. Space that is freed afterwards stays free until the next call. */
  fill(): void;
  /** Frees the space that was filled. */
  free(): void;
}

/** The mount point. It hides the machine's own files below it, so it must be a folder that no process there needs. */
const FOLDER = '/mnt';
const CHUNK = Buffer.alloc(1024 * 1024);

/** Throws with the reason where there cannot be one. */
export async function smallDisk(guardian: Guardian, megabytes: number): Promise<SmallDisk> {
  const [unshare, nsenter] = [findProgram(['unshare']), findProgram(['nsenter'])];
  if (unshare === undefined || nsenter === undefined)
    throw new Error('there is no small disk without unshare and nsenter (util-linux)');
  const mount = `mount -t tmpfs -o size=${megabytes}m,mode=777 tmpfs ${FOLDER} && echo mounted && exec sleep infinity`;
  const holder = guardian.start(unshare, [...(isRoot ? [] : ['--map-root-user']), '--mount', 'sh', '-c', mount]);
  let said = '';
  holder.stderr?.on('data', (chunk: Buffer) => {
    said += chunk.toString();
  });
  const mounted = await Promise.race([
    once(holder.stdout ?? holder, 'data').then(() => true),
    once(holder, 'exit').then(() => false),
  ]);
  const { pid } = holder;
  if (!mounted || pid === undefined) throw new Error(`there is no small disk: ${said.trim()}`);
  const outside = `/proc/${pid}/root${FOLDER}`;
  const filler = join(outside, 'filler');
  return {
    within: [
      nsenter,
      `--mount=/proc/${pid}/ns/mnt`,
      `--wdns=${process.cwd()}`,
      ...(isRoot ? [] : [`--user=/proc/${pid}/ns/user`, '--preserve-credentials']),
    ],
    folder: FOLDER,
    fill() {
      const file = openSync(filler, 'a');
      try {
        while (statfsSync(outside).bfree > 0) writeSync(file, CHUNK);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
      } finally {
        closeSync(file);
      }
    },
    free: () => rmSync(filler, { force: true }),
  };
}
