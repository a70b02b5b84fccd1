/** Behaviour that every command has, tested as a process. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { CommandError, runGroup } from '../../src/cli/command.ts';
import { ENTRIES, runWords } from '../../src/cli/entries.ts';
import { readPolicyFolder, removePolicyFile, writePolicyFile } from '../../src/cli/policies/policy-folder.ts';
import { file } from '../policies/sets.ts';
import { program } from '../support/process.ts';
import { folder, inProcess, policies, portcullis } from './cli.ts';

const VERSIONED = ['', 'user reset-password', 'policies plan'];
const wordsOf = (command: string): string[] => command.split(' ').filter((word) => word !== '');
const { version } = JSON.parse(readFileSync(join(import.meta.dirname, '../../package.json'), 'utf8')) as { version: string };

test.serial('every command prints its help without any configuration, in both spellings', async (t) => {
  for (const [name, { load }] of Object.entries(ENTRIES)) {
    const group = await load();
    const isOne = group.path === 'portcullis';
    t.is(
      isOne,
      group.commands.some((command) => command.name === name),
    );
    for (const command of group.commands) {
      const { code, out } = await inProcess({}, (terminal) => runGroup(group, [command.name, '--help'], terminal));
      t.is(code, 0, `${name} ${command.name}`);
      t.true(out.startsWith(`Usage: ${group.path} ${command.name}`), out);
    }
  }
  for (const words of [['policies', 'lint'], ['user', 'reset-password'], ['start']]) {
    const help = await portcullis({ PORT: 'x' }, ...words, '--help');
    t.is(help.code, 0, help.err);
    t.regex(help.out, /^Usage: portcullis/);
    t.deepEqual(await portcullis({}, 'help', ...words), help);
  }
});

test.serial('every command prints its version without any configuration', async (t) => {
  for (const command of VERSIONED) {
    t.deepEqual(await portcullis({}, ...wordsOf(command), '--version'), { code: 0, out: `portcullis ${version}\n`, err: '' });
  }
});

test.serial('a command with wrong arguments or variables exits with 2', async (t) => {
  for (const wrong of [['nothing'], ['user', 'reset-password'], ['setup-code'], ['demo', '--port', 'abc']]) {
    const { code, err } = await portcullis({ PORT: 'x' }, ...wrong);
    t.is(code, 2, `${wrong.join(' ')}: ${err}`);
  }
});

test.serial('a path that cannot be used is named, and is a failure of the command', async (t) => {
  const dir = folder(t);
  writeFileSync(join(dir, 'plain'), '');
  writeFileSync(join(dir, 'a.yaml'), file());
  const long = join(dir, 'x'.repeat(300));
  for (const [words, said] of [
    [['test', '--dir', join(dir, 'plain', 'x')], /ENOTDIR: .*plain/],
    [['apply', '--dir', long], /ENAMETOOLONG: .*xxx/],
    [['lint', '--dir', dir, '--invariants', long], /ENAMETOOLONG: .*xxx/],
  ] as const) {
    const { code, out, err } = await inProcess({}, (terminal) => policies([...words, '--json'], terminal));
    t.is(code, 1, err);
    t.regex(err, said);
    t.is(JSON.parse(out).error.code, 'invalid_file');
  }
});

test.serial('a device without an end is no file of a command', async (t) => {
  const dir = folder(t);
  writeFileSync(join(dir, 'a.yaml'), file());
  const at = { PORTCULLIS_URL: 'http://127.0.0.1:1', PORTCULLIS_TOKEN: 'a.b.c' };
  for (const words of [
    ...['baseline', 'context', 'invariants'].map((option) => ['policies', 'lint', '--dir', dir, `--${option}`]),
    ['policies', 'simulate', '--dir', dir, '--requests'],
    ['target', 'create', 'x', '--file'],
    ['owner', 'set', 'x'],
  ]) {
    const ran = await inProcess(at, async (terminal) => (await runWords([...words, '/dev/zero'], terminal)) ?? -1);
    t.is(ran.code, 1, words.join(' '));
    t.regex(ran.err, /\/dev\/zero cannot be read.*(EFBIG|more than 67108864 bytes)/, words.join(' '));
  }
});

test.serial('a command finishes its work even if the reader of its output ends early', async (t) => {
  // Far more than a pipe holds.
  const child = spawn(process.execPath, [...program('cli/portcullis'), 'policies', 'schema'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env['PATH'] },
  });
  child.stdout.destroy();
  const err: string[] = [];
  child.stderr.setEncoding('utf8').on('data', (text: string) => void err.push(text));
  const [code] = await once(child, 'close');
  t.deepEqual([code, err.join('')], [0, '']);
});

test('a subfolder with policies is refused by name, except the folder of the tests', (t) => {
  const dir = folder(t);
  writeFileSync(join(dir, 'a.yaml'), file());
  for (const name of ['tests', 'docs', '.git']) mkdirSync(join(dir, name));
  writeFileSync(join(dir, 'docs', 'notes.md'), '');
  for (const name of ['tests', '.git']) writeFileSync(join(dir, name, 'b.yaml'), '');
  t.deepEqual([...readPolicyFolder(dir, join(dir, 'tests')).keys()], ['a.yaml']);
  mkdirSync(join(dir, 'docs', 'deep'));
  writeFileSync(join(dir, 'docs', 'deep', 'b.YML'), '');
  const error = t.throws(() => readPolicyFolder(dir, join(dir, 'tests')));
  t.is(
    error?.message,
    `${join(dir, 'docs')} is a folder with YAML files, and subfolders are not read: move its files into ${dir}`,
  );
});

test('a link to policies in a subfolder counts as policies of the subfolder, and circular links do no harm', (t) => {
  const [dir, elsewhere] = [folder(t), folder(t)];
  writeFileSync(join(dir, 'a.yaml'), file());
  writeFileSync(join(elsewhere, 'b.yaml'), file());
  mkdirSync(join(dir, 'team', 'deep'), { recursive: true });
  for (const name of ['one', 'two']) symlinkSync(join(dir, 'team'), join(dir, 'team', 'deep', name));
  t.deepEqual([...readPolicyFolder(dir).keys()], ['a.yaml']);
  symlinkSync(elsewhere, join(dir, 'team', 'deep', 'shared'));
  t.throws(() => readPolicyFolder(dir), { message: /team is a folder with YAML files, and subfolders are not read/ });
});

test('an error names a policy file that cannot be written, with the reason', (t) => {
  const dir = folder(t);
  mkdirSync(join(dir, 'a.yaml'));
  t.throws(() => writePolicyFile(dir, 'a.yaml', ''), { instanceOf: CommandError, message: /a\.yaml cannot be written: EISDIR/ });
  t.throws(() => removePolicyFile(dir, 'b.yaml'), { instanceOf: CommandError, message: /b\.yaml cannot be written: ENOENT/ });
  const file = join(dir, 'file');
  writeFileSync(file, '');
  t.throws(() => writePolicyFile(file, 'a.yaml', ''), { instanceOf: CommandError, message: /a\.yaml cannot be written: EEXIST/ });
});

for (const what of ['policies schema', 'audit verify --help']) {
  test.serial(`output that cannot be written, as on a full disk, has an exit code of its own: ${what}`, async (t) => {
    const full = openSync('/dev/full', 'w');
    const child = spawn(process.execPath, [...program('cli/portcullis'), ...wordsOf(what)], { stdio: ['ignore', full, 'pipe'] });
    closeSync(full);
    let err = '';
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      err += text;
    });
    const [code] = await once(child, 'close');
    t.is(err, 'portcullis: the output could not be written: ENOSPC: no space left on device, write\n');
    t.is(code, 74);
  });
}

test.serial('output that is cut off in the middle counts as not written', async (t) => {
  const out = join(folder(t), 'out');
  const command = [process.execPath, ...program('cli/portcullis'), 'policies', 'schema'];
  // The file may have 512 or 1,024 bytes, which depends on the shell. The schema has more.
  const written = openSync(out, 'w');
  const child = spawn('sh', ['-c', 'ulimit -f 1; exec "$@"', 'sh', ...command], { stdio: ['ignore', written, 'pipe'] });
  closeSync(written);
  const err: string[] = [];
  child.stderr?.setEncoding('utf8').on('data', (text: string) => void err.push(text));
  t.deepEqual(await once(child, 'close'), [74, null]);
  t.is(err.join(''), 'portcullis: the output could not be written: EFBIG: file too large, write\n');
  t.true(readFileSync(out).length > 0);
});

test.serial('a command finishes its work even if it cannot write progress and errors', async (t) => {
  const full = openSync('/dev/full', 'w');
  const child = spawn(process.execPath, [...program('cli/portcullis'), 'policies', 'nothing'], {
    stdio: ['ignore', 'ignore', full],
  });
  closeSync(full);
  t.deepEqual(await once(child, 'close'), [2, null]);
});

test('a link to a subfolder with policies is refused like the subfolder, and a broken link is ignored', (t) => {
  const [dir, elsewhere] = [folder(t), folder(t)];
  writeFileSync(join(dir, 'a.yaml'), file());
  writeFileSync(join(elsewhere, 'b.yaml'), file());
  symlinkSync(join(elsewhere, 'gone'), join(dir, 'nowhere'));
  t.deepEqual([...readPolicyFolder(dir).keys()], ['a.yaml']);
  symlinkSync(elsewhere, join(dir, 'linked'));
  t.throws(() => readPolicyFolder(dir), { message: /linked is a folder with YAML files, and subfolders are not read/ });
  unlinkSync(join(dir, 'linked'));
  symlinkSync('loop', join(dir, 'loop'));
  t.throws(() => readPolicyFolder(dir), { message: /loop cannot be read \(ELOOP\)/ });
});
