/**
 * Histograms for the hot path of every call. prom-client copies and hashes the labels of each observation, which costs more than
 * a cached decision. Here an observation is one look-up and two additions, and allocates nothing.
 */
import type { Metric, Registry } from 'prom-client';

export type Timings = ReturnType<typeof createTimings>;

export interface TimingsOptions {
  readonly name: string;
  readonly help: string;
  /** Upper bounds in seconds, ascending. */
  readonly bounds: readonly number[];
  readonly labels?: readonly [] | readonly [string] | readonly [string, string];
}

interface Series {
  readonly labels: Readonly<Record<string, string>>;
  /** One count for each bound, and one for values above all bounds. */
  readonly counts: Float64Array;
  sum: number;
}

/** Once the first label has this many values, further values share a series: target names come and go while the process runs. */
const MAX_VALUES = 200;
const OTHER = '_OTHER';

export function createTimings(registry: Registry, options: TimingsOptions) {
  const { name, help, bounds, labels = [] } = options;
  const series = new Map<string, Map<string, Series>>();

  function add(first: string, second: string): Series {
    const own = series.has(first) || series.size < MAX_VALUES ? first : OTHER;
    const inner = series.get(own) ?? new Map<string, Series>();
    series.set(own, inner);
    const known = inner.get(second);
    if (known !== undefined) return known;
    const values = Object.fromEntries([own, second].slice(0, labels.length).map((value, at) => [labels[at] ?? '', value]));
    const added = { labels: values, counts: new Float64Array(bounds.length + 1), sum: 0 };
    inner.set(second, added);
    return added;
  }
  if (labels.length === 0) add('', '');

  function valuesOf({ labels: own, counts, sum }: Series) {
    let total = 0;
    const buckets = [...counts].map((count, at) => {
      total += count;
      return { metricName: `${name}_bucket`, labels: { ...own, le: bounds[at] ?? '+Inf' }, value: total };
    });
    return [
      ...buckets,
      { metricName: `${name}_sum`, labels: own, value: sum },
      { metricName: `${name}_count`, labels: own, value: total },
    ];
  }

  const metric = {
    name,
    help,
    type: 'histogram',
    aggregator: 'sum',
    get: async () => ({
      ...{ name, help, type: 'histogram', aggregator: 'sum' },
      values: [...series.values()].flatMap((inner) => [...inner.values()].flatMap(valuesOf)),
    }),
  };
  // The registry uses only these members of a metric.
  registry.registerMetric(metric as unknown as Metric);

  return {
    /** Records a duration. The label values are in the order of the histogram's labels; there are at most two. */
    observe(ms: number, first: string = '', second: string = ''): void {
      const one = series.get(first)?.get(second) ?? add(first, second);
      const seconds = ms / 1_000;
      let at = 0;
      while (at < bounds.length && seconds > (bounds[at] ?? 0)) at++;
      one.counts[at] = (one.counts[at] ?? 0) + 1;
      one.sum += seconds;
    },
  };
}
