/** Lets node run the TypeScript of this repository: `node --import ./scripts/loader/register.js`. */
import nodeModule, { register, syncBuiltinESMExports } from 'node:module';
import workerThreads from 'node:worker_threads';

// Newer versions of Node run hooks in this thread, which takes two thirds of the time.
if ('registerHooks' in nodeModule) nodeModule.registerHooks(await import('./hooks.js'));
else register('./hooks.js', import.meta.url);

// A worker thread would start with this module, and with one more thread for its hooks. A run of all tests has the same code in `dist`.
if (process.env.PORTCULLIS_TEST_BUILT === 'true') {
  const sources = new URL('../../src/', import.meta.url).href;
  const { Worker } = workerThreads;
  workerThreads.Worker = class extends Worker {
    constructor(file, options) {
      const [, path] = String(file).split(sources);
      if (path === undefined) super(file, options);
      else super(new URL(`../../dist/${path.replace(/ts$/, 'js')}`, import.meta.url), { ...options, execArgv: [] });
    }
  };
  syncBuiltinESMExports();
}
