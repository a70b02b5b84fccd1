import test from 'ava';
import { Histogram, Registry } from 'prom-client';
import { createTimings } from '../../src/rest/timings.ts';

const bounds = [0.01, 0.1, 1];
const seconds = [0, 0.005, 0.01, 0.010_1, 0.1, 0.5, 1, 1.5, 300];

test('a histogram has the same output as one of prom-client', async (t) => {
  const [own, theirs] = [new Registry(), new Registry()];
  const described = { name: 'a_seconds', help: 'What it is' };
  const timings = createTimings(own, { ...described, bounds, labels: ['method', 'error'] });
  const histogram = new Histogram({ ...described, buckets: bounds, labelNames: ['method', 'error'], registers: [theirs] });
  for (const [method, error] of [
    ['tools/call', ''],
    ['tools/call', 'denied'],
    ['a "quoted"\nname\\', ''],
  ] as const) {
    for (const value of seconds) {
      timings.observe(value * 1_000, method, error);
      histogram.observe({ method, error }, value);
    }
  }
  const lines = async (registry: Registry) =>
    (await registry.metrics())
      .split('\n')
      // The order of labels means nothing.
      .map((line) =>
        line.replace(
          /\{(.*)\}/,
          (_, labels: string) =>
            `{${labels
              .split(/,(?=\w+=)/)
              .sort()
              .join(',')}}`,
        ),
      )
      .sort();
  t.deepEqual(await lines(own), await lines(theirs));
});

test('a histogram without labels is listed before anything is observed', async (t) => {
  const registry = new Registry();
  createTimings(registry, { name: 'b_seconds', help: 'b', bounds });
  t.regex(await registry.metrics(), /^b_seconds_count 0$/m);
  t.regex(await registry.metrics(), /^b_seconds_bucket\{le="\+Inf"\} 0$/m);
});

test('the number of series is limited, however many values a label has', async (t) => {
  const registry = new Registry();
  const timings = createTimings(registry, { name: 'c_seconds', help: 'c', bounds, labels: ['target'] });
  for (let n = 0; n < 5_000; n++) timings.observe(1, `target-${n}`);
  const counts: string[] = (await registry.metrics()).match(/^c_seconds_count.*$/gm) ?? [];
  t.true(counts.length <= 201, String(counts.length));
  t.true(counts.includes('c_seconds_count{target="_OTHER"} 4800'));
  const total = counts.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
  t.is(total, 5_000);
});
