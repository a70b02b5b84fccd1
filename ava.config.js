import { availableParallelism } from 'node:os';

export default {
  files: ['test/**/*.test.ts'],
  extensions: { ts: 'module' },
  nodeArguments: ['--import=./scripts/loader/register.js'],
  // A process each: a crash in native code (argon2, libsql) then fails one file, and signals can be tested.
  workerThreads: false,
  // One more than there are cores: tests often wait for a disk or a process.
  concurrency: Math.min(4, availableParallelism() + 1),
  timeout: '2m',
};
