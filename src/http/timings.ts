/**
 * Histograms for the path of every call. Those of prom-client copy and hash the labels of each observation, which costs more than a
 * decision out of the cache; here an observation is a look-up and two additions, and leaves nothing behind.
 */
import type { Metric, Registry } from 'prom-client';

export interface Timings {
  /** `labels` in the order of the histogram's; at most two. */
  observe(ms: number, first?: string, second?: string): void;
}

export interface TimingsOptions {
  readonly name: string;
  readonly help: string;
  /** Upper bounds in seconds, ascending. */
  readonly bounds: readonly number[];
  readonly labels?: readonly [] | readonly [string] | readonly [string, string];
}

interface Series {
  readonly labels: Readonly<Record<string, string>>;
  /** One for each bound, and one for what is above all of them. */
  readonly counts: Float64Array;
  sum: number;
}

/** Values of the first label beyond this number share a series: the names of targets come and go while the process lives. */
const MAX_VALUES = 200;
const OTHER = '_OTHER';

export function createTimings(registry: Registry, options: TimingsOptions): Timings {
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
  // This is all that the registry asks of a metric.
  registry.registerMetric(metric as unknown as Metric);

  return {
    observe(ms, first = '', second = '') {
      const one = series.get(first)?.get(second) ?? add(first, second);
      const seconds = ms / 1_000;
      let at = 0;
      while (at < bounds.length && seconds > (bounds[at] ?? 0)) at++;
      one.counts[at] = (one.counts[at] ?? 0) + 1;
      one.sum += seconds;
    },
  };
}
