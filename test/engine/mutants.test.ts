import test from 'ava';
import { runMutants } from './mutation/run.ts';
import { stalePatches } from './mutation/sources.ts';

test('each fault of the compiler is still a change of its source', (t) => {
  t.deepEqual(stalePatches(), []);
});

test('the tests notice faults in compiled documents and in the compiler (all of them: npm run test:mutants)', async (t) => {
  const { mutants, killed, survivors } = await runMutants({ seeds: 1, everyNthPatch: 4, trials: 120 });
  t.log(`${killed} of ${mutants}`);
  t.deepEqual(survivors, []);
  t.true(mutants >= 60);
});
