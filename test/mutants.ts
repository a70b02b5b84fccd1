/**
 * `npm run test:mutants` puts faults into compiled documents and into the compiler. The decision suite must notice each of them.
 * `--seeds=n` makes n mutants of each kind of fault in documents (default: 10).
 */
import { parseArgs } from 'node:util';
import { runMutants } from './engine/mutation/run.ts';

const { values } = parseArgs({ options: { seeds: { type: 'string', default: '10' } } });
const began = performance.now();
const { mutants, killed, survivors, effort } = await runMutants({ seeds: Number(values.seeds), everyNthPatch: 1, trials: 800 });
for (const survivor of survivors) console.log(`survived: ${survivor}`);
const seconds = ((performance.now() - began) / 1_000).toFixed(0);
console.log(
  `${killed} of ${mutants} mutants noticed (${((100 * killed) / mutants).toFixed(1)}%), ${effort.toFixed(1)} policy sets each, ${seconds} s`,
);
process.exitCode = survivors.length === 0 ? 0 : 1;
