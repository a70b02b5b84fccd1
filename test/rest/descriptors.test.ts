import { connect, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { watchDescriptors } from '../../src/rest/descriptors.ts';
import { until } from '../support/listener.ts';
import { dataDir, runGateway } from '../support/process.ts';

test('the log says once a minute that no file descriptor is left, whichever code notices it', async (t) => {
  let code: string | null = null;
  let tried = 0;
  const said: object[] = [];
  const descriptors = watchDescriptors({
    log: { error: (record: object) => void said.push(record) },
    trySome: () => {
      tried++;
      if (code !== null) throw Object.assign(new Error(code), { code });
    },
    everyMs: 1,
  });
  t.teardown(() => descriptors.stop());
  const tries = async (): Promise<void> => {
    const before = tried;
    await until('it is tried a few times', () => tried > before + 3);
  };
  await tries();
  code = 'EACCES';
  await tries();
  t.deepEqual(said, []);
  code = 'EMFILE';
  await tries();
  t.deepEqual(said, [{ code: 'EMFILE' }]);
  t.true(descriptors.saw(Object.assign(new Error('accept'), { code: 'ENFILE' })));
  t.is(said.length, 1);
  t.false(descriptors.saw(new Error('accept')));
});

/** Runs a gateway with few file descriptors. After its start, it lets others take all of them. */
async function runWithFew(t: ExecutionContext) {
  const environment = { DATA_DIR: dataDir(t), LOG_LEVEL: 'debug' };
  const gateway = await runGateway(t, environment, ['sh', '-c', 'ulimit -n 400 && exec "$@"', 'sh']);
  await until('its libraries are loaded', () => gateway.output().includes('libraries for sign-ins loaded'));
  return gateway;
}

test.serial('a gateway without file descriptors keeps running, logs it once, and recovers', async (t) => {
  const gateway = await runWithFew(t);
  const sockets: Socket[] = [];
  const { port } = new URL(gateway.url);
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
  });
  for (let i = 0; i < 500; i++) sockets.push(connect(Number(port), '127.0.0.1').on('error', () => {}));
  const said = () =>
    gateway
      .output()
      .split('\n')
      .filter((line) => line.includes('out of file descriptors'));
  await until('it is said', () => said().length > 0);
  t.is(said().length, 1);
  for (const socket of sockets) socket.destroy();
  const works = () =>
    fetch(`${gateway.url}/health/live`).then(
      ({ status }) => status === 200,
      () => false,
    );
  await until('it takes connections again', works);
});

test.serial('sign-ins work again after a time without file descriptors, also if the first one came then', async (t) => {
  const gateway = await runWithFew(t);
  const { port } = new URL(gateway.url);
  const sockets: Socket[] = [];
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
  });
  const authorize = `GET /oauth/authorize?client_id=portcullis-cli HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\n\r\n`;
  let answer = '';
  const kept = connect(Number(port), '127.0.0.1').on('error', () => {});
  kept.on('data', (text: Buffer) => (answer += text));
  sockets.push(kept);
  await new Promise((resolve) => kept.once('connect', resolve));
  for (let i = 0; i < 500; i++) sockets.push(connect(Number(port), '127.0.0.1').on('error', () => {}));
  await until('it has no descriptor left', () => gateway.output().includes('out of file descriptors'));
  kept.write(authorize);
  await until('it answers', () => answer !== '');
  for (const socket of sockets) socket.destroy();
  const status = () =>
    fetch(`${gateway.url}/oauth/authorize?client_id=portcullis-cli`, { redirect: 'manual' }).then(
      ({ status }) => status,
      () => 0,
    );
  await until('sign-ins work again', async () => (await status()) === 400);
  t.pass();
});
