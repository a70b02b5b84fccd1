import { availableParallelism } from 'node:os';

export default {
  files: ['test/**/*.test.ts'],
  extensions: { ts: 'module' },
  nodeArguments: ['--import=./scripts/loader/register.js'],
  // A process each: a crash in native code (argon2, libsql) then fails one file, and signals can be tested.
  workerThreads: false,
  concurrency: Math.min(4, Math.max(2, availableParallelism())),
  timeout: '2m',
};
