/**
 * Runs in the gateway's process and is loaded ahead of it (`--import`). On SIGWINCH it begins to sample the stack of the main thread. On the
 * next SIGWINCH it writes the profile to a file in the folder that `BENCH_SLICES` names.
 */
import { renameSync, writeFileSync } from 'node:fs';
import { Session } from 'node:inspector/promises';
import { isMainThread } from 'node:worker_threads';

const SAMPLE_US = 100;

function listen(folder: string): void {
  const session = new Session();
  let isOn = false;
  const say = (what: string, text: string): void => {
    const path = `${folder}/${what}-${process.pid}.json`;
    writeFileSync(`${path}.new`, text);
    renameSync(`${path}.new`, path);
  };
  process.on('SIGWINCH', async () => {
    isOn = !isOn;
    if (isOn) {
      session.connect();
      await session.post('Profiler.enable');
      await session.post('Profiler.setSamplingInterval', { interval: SAMPLE_US });
      await session.post('Profiler.start');
      return say('profiling', 'true');
    }
    const { profile } = await session.post('Profiler.stop');
    session.disconnect();
    say('profile', JSON.stringify(profile));
  });
}

// Node loads this into the gateway's worker threads too.
if (isMainThread) listen(process.env['BENCH_SLICES'] ?? '.');
