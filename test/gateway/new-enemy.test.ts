/** Law 4: when the API has answered the removal of a right, no replica allows a call by that right. */
import test, { type ExecutionContext } from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { freePort } from '../support/port.ts';
import { dataDir, runGateway } from '../support/process.ts';
import { newEnemy, type Score, scoreLine } from './new-enemy.ts';

const ROUNDS = Number(process.env['PORTCULLIS_TEST_REVOCATIONS'] ?? 8);
const REPLICAS = (process.env['PORTCULLIS_TEST_REPLICAS'] ?? '2').split(',').map(Number);
/** Without the gate, a round takes as long as replicas may lag behind, and fewer rounds are enough to find stale allows. */
const OPEN_ROUNDS = Math.min(40, Math.ceil(ROUNDS / 10));
const account = { email: 'admin@example.com', password: 'a long passphrase' };

async function battle(
  t: ExecutionContext,
  databaseUrl: string,
  replicas: number,
  rounds: number,
  freshness: string,
): Promise<Score> {
  const environment = {
    DATABASE_URL: databaseUrl,
    DATA_DIR: dataDir(t),
    MASTER_KEY: Buffer.alloc(32, 3).toString('base64'),
    LOG_LEVEL: 'error',
    MCP_RATE_LIMIT: '10000000',
    API_RATE_LIMIT: '10000000',
    DENIAL_RATE_LIMIT: '10000000',
    LOGIN_RATE_LIMIT: '100000',
    CHANGE_RATE_LIMIT: '100000',
    OAUTH_RATE_LIMIT: '10000000',
    CLIENT_REGISTRATION_RATE_LIMIT: '100000',
    FRESHNESS: freshness,
  };
  const ports = await Promise.all(Array.from({ length: replicas }, () => freePort()));
  const PUBLIC_URL = `http://127.0.0.1:${ports[0]}`;
  const gateways = await Promise.all(ports.map((port) => runGateway(t, { ...environment, PUBLIC_URL, PORT: String(port) })));
  const urls = gateways.map(({ url }) => url);
  await rest(urls[0] ?? '', 'POST', '/api/auth/register', { body: account });
  const { body } = await rest<{ token: string }>(urls[0] ?? '', 'POST', '/api/auth/login', { body: account });
  const score = await newEnemy({ urls, admin: body.token, rounds });
  t.log(scoreLine(score));
  for (const { child, ended } of gateways) {
    child.kill('SIGTERM');
    t.is(await ended, 0);
  }
  return score;
}

for (const replicas of REPLICAS) {
  eachServer(
    test.serial,
    `after each of ${ROUNDS} revocations of each kind none of ${replicas} replicas allows a call`,
    async (t, at) => {
      t.timeout(120_000 + ROUNDS * 10_000);
      const score = await battle(t, at.url, replicas, ROUNDS, 'strict');
      t.is(score.stale, 0);
      t.is(score.errors, 0);
      t.is(score.lateAllows, 0);
      t.true(score.traffic.allowed > 0 && score.traffic.denied > 0, 'there was traffic');
    },
  );
}

eachServer(test.serial, 'without the gate the same test finds stale allows', async (t, at) => {
  t.timeout(240_000);
  const score = await battle(t, at.url, 2, OPEN_ROUNDS, 'bounded:2000');
  t.true(score.stale >= (ROUNDS < 1_000 ? 1 : 50), `${score.stale} of ${score.calls}`);
});
