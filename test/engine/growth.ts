/** Measures whether many decisions make the process grow. `--decisions=n` decisions are made one by one, and as many in lists. */
import { parseArgs } from 'node:util';
import type { NamedObject } from '../../src/engine/decision.ts';
import { createEngine, loadPolicyModule } from '../../src/engine/engine.ts';
import { policyWith } from './support.ts';

const { values } = parseArgs({ options: { decisions: { type: 'string', default: '1000000' } } });
const decisions = Number(values.decisions);
const MOST_MIB = 40;
const POLICIES = 300;
const LIST = 500;
/** After this many decisions, every heap has been filled and rewound. */
const WARM_UP = 300_000;
const ANN = { sub: 'ann', role: 'dev', groups: ['a'] };

/** 200 of the patterns stay regular expressions, so that three instances hold them. The others are prefixes. */
const policies = Array.from({ length: POLICIES }, (_, n) =>
  policyWith({
    id: `p${n}`,
    effect: n % 2 === 0 ? 'allow' : 'deny',
    target_id: `t${n % 4}`,
    resource_pattern: n % 3 === 0 ? `^x${n}_` : `^x${n}_[0-9]+$`,
  }),
);
const module = await loadPolicyModule();
const engine = await createEngine({
  module,
  policies,
  revision: 1,
  onFault: (error) => {
    throw error;
  },
});

const objectOf = (n: number, i: number): NamedObject => ({ resource_type: 'tool', resource_name: `x${n}_${i}` });

function oneByOne(count: number): void {
  for (let i = 0; i < count; i++) {
    const n = i % POLICIES;
    const { policy } = engine.decide(ANN, `t${n % 4}`, objectOf(n, i));
    if (policy?.id !== `p${n}`) throw new Error(`${n}: ${policy?.id}`);
  }
}
function inLists(count: number): void {
  for (let from = 0; from < count; from += LIST) {
    const target = (from / LIST) % 4;
    const places = Array.from({ length: LIST }, (_, i) => target + 4 * ((from + i) % (POLICIES / 4)));
    const list = engine.decideMany(
      ANN,
      `t${target}`,
      places.map((n, i) => objectOf(n, from + i)),
    );
    places.forEach((n, i) => {
      if (list[i]?.policy?.id !== `p${n}`) throw new Error(`${n}: ${list[i]?.policy?.id}`);
    });
  }
}

let failed = false;
for (const [name, run] of Object.entries({ 'one by one': oneByOne, 'in lists': inLists })) {
  const began = performance.now();
  const step = Math.ceil(decisions / 10 / LIST) * LIST;
  run(Math.max(step, WARM_UP));
  const before = process.memoryUsage().rss;
  let most = 0;
  for (let tenth = 1; tenth < 10; tenth++) {
    run(step);
    most = Math.max(most, (process.memoryUsage().rss - before) / 2 ** 20);
  }
  failed ||= most > MOST_MIB;
  const seconds = ((performance.now() - began) / 1_000).toFixed(0);
  console.log(`${step * 10} decisions ${name}: grew by at most ${most.toFixed(1)} MiB after the first tenth, ${seconds} s`);
}
process.exitCode = failed ? 1 : 0;
