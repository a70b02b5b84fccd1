import test from 'ava';
import { createClockCheck } from '../../src/db/clock.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

const HOUR = 60 * 60_000;

eachEngine(
  test,
  'a clock that has jumped is not trusted once, and one that differs from the server is never trusted',
  async (t, at, engine) => {
    const database = await openTestDatabase(t, at);
    let shift = 0;
    let elapsed = 0;
    const started = Date.now();
    const check = createClockCheck(
      database,
      () => started + elapsed + shift,
      () => elapsed,
    );
    await check();
    elapsed = HOUR / 2;
    await check();
    // An administrator corrects the clock, or the machine was suspended.
    for (const jump of [2 * HOUR, -2 * HOUR]) {
      shift += jump;
      await t.throwsAsync(check(), { message: /^the clock has jumped by -?2\.0 hours$/ });
      if (shift === 0 || engine === 'sqlite') await check();
      else await t.throwsAsync(check(), { message: /differs from that of the database server by 2\.5 hours/ });
    }
  },
);
