import { availableParallelism } from 'node:os';

export default {
  files: ['test/**/*.test.ts'],
  extensions: { ts: 'module' },
  nodeArguments: ['--import=ts-blank-space/register'],
  // A process each: a crash in native code (argon2, libsql) then fails one file, and signals can be tested.
  workerThreads: false,
  // Files that wait leave room for others.
  concurrency: Math.min(4, availableParallelism() + 1),
  timeout: '2m',
  // Tests of one file would be in each other's way: each has gateways and servers of its own in the same process.
  serial: true,
};
