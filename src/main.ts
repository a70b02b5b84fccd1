/** The entry of the gateway's process in a container. `portcullis start` does the same on a terminal. */

// Node opens many modules at the same time, before anything of the gateway runs.
const { runProcess, tellHowToBegin } = await import('./process.ts').catch((error: NodeJS.ErrnoException) => {
  if (error.code !== 'EMFILE') throw error;
  process.stderr.write('portcullis: the process may open too few files: raise its limit (ulimit -n), for example to 65536\n');
  process.exit(1);
});

await runProcess(tellHowToBegin);
