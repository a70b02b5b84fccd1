/** A clock that a test moves on. */
import type { Clock } from '../../src/mcp/upstream/pace.ts';

export interface ManualClock extends Clock {
  pass(ms: number): void;
}

export function manualClock(): ManualClock {
  let time = 1_000_000;
  const timers = new Set<{ readonly at: number; readonly run: () => void }>();
  return {
    now: () => time,
    after(ms, run) {
      const timer = { at: time + ms, run };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    pass(ms) {
      time += ms;
      for (const timer of [...timers]) {
        if (timer.at <= time && timers.delete(timer)) timer.run();
      }
    },
  };
}
