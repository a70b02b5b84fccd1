import test from 'ava';
import { createOutput } from '../../src/base/output.ts';

/** A disk with room for this many bytes. */
function disk(room: number) {
  let text = '';
  const tries: (() => void)[] = [];
  const later: (() => void)[] = [];
  const output = createOutput(
    {
      write: (bytes, then) =>
        void tries.push(() => {
          const written = Math.min(bytes.length, room);
          if (written === 0) {
            then(new Error('ENOSPC'), 0);
            return;
          }
          room -= written;
          text += bytes.toString('utf8', 0, written);
          then(null, written);
        }),
      later: (_, then) => void later.push(then),
    },
    (lines) => `lost ${lines}\n`,
  );
  /** Runs every write and every wait that is due. */
  const run = (): void => {
    for (const then of later.splice(0)) then();
    for (let next = tries.shift(); next !== undefined; next = tries.shift()) next();
  };
  const free = (bytes: number): void => {
    room += bytes;
  };
  return { output, run, free, written: () => text };
}

test('lines that fit on no disk wait, and are whole when there is room', (t) => {
  const { output, run, free, written } = disk(10);
  output.write('first\n');
  output.write('second\n');
  run();
  output.write('third\n');
  run();
  t.is(written(), 'first\nseco');
  t.is(output.rest().toString(), 'nd\nthird\n');
  free(1_000);
  run();
  t.is(written(), 'first\nsecond\nthird\n');
});

test('too many waiting lines are lost, and their number is said', (t) => {
  const { output, run, free, written } = disk(0);
  const line = `${'x'.repeat(1_023)}\n`;
  for (let n = 0; n < 3_000; n++) output.write(line);
  run();
  t.true(output.rest().length <= 2 * 1_024 * 1_024);
  t.regex(output.rest().toString(), /\nlost \d+\n$/, 'also if the process ends now');
  free(10_000_000);
  run();
  const lines = written().split('\n');
  const kept = lines.filter((each) => each.length === 1_023).length;
  t.deepEqual(lines.slice(kept), [`lost ${3_000 - kept}`, '']);
  output.write('after\n');
  run();
  t.true(written().endsWith('\nafter\n'));
});
