/** Measures one neighbour and its control, each with a gateway that has just been started. */
import { readFileSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Guardian, killGroup } from '../../test/support/databases/guardian.ts';
import { dropped } from '../audit/path.ts';
import type { OrderFrom } from '../gateway/orders.ts';
import type { NeighbourFigures, PhaseFigures } from './bars.ts';
import type { VictimOrders } from './victim.ts';
import type { LoadOrders, Tally } from './workload.ts';
import { type Attack, callsOf, type Neighbour, type Phase, startWorld, type World, type WorldParts } from './world.ts';

export interface Parts extends WorldParts {
  readonly load: OrderFrom<LoadOrders>;
  readonly victim: OrderFrom<VictimOrders>;
  createDatabase(): Promise<{ readonly url: string; drop(): Promise<void> }>;
  /** `short`: the time that a neighbour asks for is ignored. */
  readonly plan: { readonly ms: number; readonly warmUpCalls: number; readonly short: boolean };
}

const WARM_UP_SESSIONS = 100;
/** Time after the neighbour has ended in which memory and slices still count. */
const SETTLE_MS = 1_000;

/** Resident bytes now, and their peak since `forgetPeak`. */
function memoryOf(pid: number): { readonly now: number; readonly peak: number } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const bytes = (name: string): number => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status)?.[1]) * 1024;
  return { now: bytes('VmRSS'), peak: bytes('VmHWM') };
}

const forgetPeak = (pid: number): void => writeFileSync(`/proc/${pid}/clear_refs`, '5');

/** Runs the command for `ms`, then kills it. */
async function shell(guardian: Guardian, command: string, ms: number): Promise<null> {
  const { pid } = guardian.start('/bin/sh', ['-c', command]);
  await sleep(ms);
  if (pid !== undefined) killGroup(pid, 'SIGKILL');
  return null;
}

function generate(
  { guardian, load }: Parts,
  { phase, origin }: World,
  { workload, instead }: Attack,
  ms: number,
): Promise<Tally | null> {
  if (phase === 'neighbour') return load('begin', { origin, workload, ms });
  return 'shell' in instead ? shell(guardian, instead.shell, ms) : load('again', { instead, ms });
}

async function measurePhase(parts: Parts, neighbour: Neighbour, phase: Phase): Promise<PhaseFigures> {
  const { victim, instrument, plan } = parts;
  const ms = plan.short ? plan.ms : (neighbour.ms ?? plan.ms);
  const database = await parts.createDatabase();
  let pid: number | undefined;
  try {
    const { world, warmer } = await startWorld(parts, database.url, neighbour, phase);
    pid = world.pid;
    await victim('open', callsOf(warmer));
    await victim('warm', { calls: plan.warmUpCalls });
    await victim('open', { ...callsOf(warmer), url: `${world.origin}/mcp`, kind: 'session', tool: 'bench__echo' });
    await victim('warm', { calls: WARM_UP_SESSIONS });
    const attack = await neighbour.prepare(world, ms);
    await victim('open', attack.victim ?? callsOf(world.victim));
    await instrument.slices(pid);
    forgetPeak(pid);
    const before = memoryOf(pid).now;
    const [tally, figures] = await Promise.all([generate(parts, world, attack, ms), victim('run', { ms })]);
    await sleep(SETTLE_MS);
    const slices = await instrument.slices(pid);
    return { victim: figures, tally, memory: memoryOf(pid).peak - before, slices };
  } finally {
    if (pid !== undefined) killGroup(pid, 'SIGKILL');
    await dropped([database]);
  }
}

/** Runs the neighbour first, because the control sends the same bytes again. */
export async function measureNeighbour(parts: Parts, neighbour: Neighbour): Promise<NeighbourFigures> {
  const { name, what } = neighbour;
  try {
    const beside = await measurePhase(parts, neighbour, 'neighbour');
    return { name, what, beside, control: await measurePhase(parts, neighbour, 'control') };
  } catch (error) {
    return { name, what, failed: error instanceof Error ? error.message : String(error) };
  }
}
