/** Law 5: nothing takes effect before its decision is durable. The process is killed at random moments under load. */
import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { startLoad } from '../support/load.ts';

const KILLS = Number(process.env['PORTCULLIS_TEST_KILLS'] ?? 3);
const CALLERS = 16;

eachEngine(
  test.serial,
  `after ${KILLS} kills under load the audit log has everything that was forwarded, denied or listed`,
  async (t: ExecutionContext, at) => {
    t.timeout(120_000 + KILLS * 15_000);
    const load = await startLoad(t, { DATABASE_URL: at.url });
    for (let kill = 0; kill < KILLS; kill++) {
      load.begin(CALLERS, 0);
      await load.next(50 + Math.floor(Math.random() * 150), 'allowed', 'denied', 'listed');
      load.gateway.child.kill('SIGKILL');
      await load.gateway.ended;
      await load.halt();
      await load.restart();
    }
    const { chains } = await load.check(t);
    // The process after the last kill has recorded nothing.
    t.is(chains, KILLS);
  },
);
