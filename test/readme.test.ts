/** The commands of docs/tour.md, as a reader would paste them: shown text that does not work is worse than none. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { freePort } from './support/port.ts';
import { dataDir, runGateway } from './support/process.ts';

const ROOT = join(import.meta.dirname, '..');
const QUICKSTART = '## From nothing to a call';
const LOCAL_SERVER = '## Put a local server behind it';
/** The test prints this line before the output of each block. */
const MARK = 'next block of the tour';

function blocksOf(heading: string): string[] {
  const [, section = ''] = readFileSync(join(ROOT, 'docs/tour.md'), 'utf8').split(`\n${heading}\n`);
  const [own = ''] = section.split('\n## ');
  return [...own.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, commands = '']) => commands);
}

const hasCurl = spawnSync('curl', ['--version']).error === undefined;

test.serial('the commands of the tour lead from an empty gateway to a working call', async (t) => {
  const blocks = blocksOf(QUICKSTART);
  t.is(blocks.length, 7);
  if (!hasCurl) {
    t.log('not run: curl is not here');
    return;
  }
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t), LOG_LEVEL: 'silent' });
  const port = new URL(gateway.url).port;
  const targetPort = String(await freePort());
  const commands = blocks.map((block) => {
    const here = block.replace(/8080|3001/g, (written) => (written === '8080' ? port : targetPort));
    return `printf '\\n${MARK}\\n'\n${here}`;
  });
  // A separate process group, so that the target that the commands start in the background ends, too.
  const shell = spawn('sh', ['-eu'], { cwd: ROOT, env: { PATH: process.env['PATH'] }, detached: true });
  const end = (): void => {
    try {
      process.kill(-(shell.pid ?? Number.NaN), 'SIGKILL');
    } catch {
      // Nothing of it is left.
    }
  };
  t.teardown(end);
  let output = '';
  let errors = '';
  shell.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  shell.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text;
  });
  shell.stdin.end(commands.join('\n'));
  const closed = once(shell, 'close');
  const [code] = await once(shell, 'exit');
  end();
  await closed;
  t.is(code, 0, errors);

  const outputs = output.split(`\n${MARK}\n`).slice(1);
  t.is(outputs.length, blocks.length);
  const [registered, target, policy, , opened, called = '', logged] = outputs;
  t.like(JSON.parse(registered ?? ''), { email: 'admin@example.com', role: 'admin' });
  t.like(JSON.parse(target ?? ''), { name: 'everything', enabled: true });
  t.like(JSON.parse(policy ?? ''), { effect: 'allow', enabled: true });
  t.is(opened?.trim(), '', 'a session is opened');

  interface Reply {
    readonly id: number;
    readonly result?: { readonly tools?: readonly { readonly name: string }[]; readonly content?: unknown };
    readonly error?: { readonly code: number };
  }
  const replies = [...called.matchAll(/\{"jsonrpc".*\}/g)].map(([text]) => JSON.parse(text) as Reply);
  t.deepEqual(
    replies.map(({ id }) => id),
    [2, 3, 4],
    called,
  );
  const [list, denied, echo] = replies;
  t.deepEqual(
    list?.result?.tools?.map(({ name }) => name),
    ['echo', 'get-sum'],
  );
  t.is(denied?.error?.code, 403);
  t.deepEqual(echo?.result?.content, [{ type: 'text', text: 'Echo: hello' }]);
  const rows = JSON.parse(logged ?? '') as { resource_name: string; effect: string }[];
  t.deepEqual(
    rows.map(({ resource_name, effect }) => [resource_name, effect]),
    [
      ['echo', 'allow'],
      ['get-env', 'deny'],
    ],
  );
});

test.serial('the commands of the tour about a local server read a file through the gateway', async (t) => {
  const [start = '', ...commands] = blocksOf(LOCAL_SERVER);
  t.is(commands.length, 3);
  if (!hasCurl) {
    t.log('not run: curl is not here');
    return;
  }
  const folder = dataDir(t);
  const [, allowed = ''] = /STDIO_ALLOWED=\$PWD(\S+) npm start/.exec(start) ?? [];
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t), LOG_LEVEL: 'silent', STDIO_ALLOWED: join(ROOT, allowed) });
  const [login = '', , , apiToken = ''] = blocksOf(QUICKSTART);
  const script = [login, apiToken, ...commands].join('\n').replaceAll('8080', new URL(gateway.url).port);
  const shell = spawn('sh', ['-eu'], { cwd: ROOT, env: { PATH: process.env['PATH'] } });
  let output = '';
  for (const stream of [shell.stdout, shell.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  shell.stdin.end(script.replaceAll('/tmp/files', folder));
  const [code] = await once(shell, 'close');
  t.is(code, 0, output);
  t.regex(output, /"name":"files"/);
  const [, answer = ''] = /(\{[^\n]*"id":2[^\n]*\})/.exec(output) ?? [];
  t.deepEqual(JSON.parse(answer || '{}').result?.content, [{ type: 'text', text: 'hello\n' }], output);
});
