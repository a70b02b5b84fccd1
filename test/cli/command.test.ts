/** What holds for every command, as a process of its own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { CommandError } from '../../src/cli/command.ts';
import { readPolicyFolder, removePolicyFile, writePolicyFile } from '../../src/cli/policy-folder.ts';
import { file } from '../policies/sets.ts';
import { program } from '../support/process.ts';
import { folder, portcullis } from './cli.ts';

/** Those that no other test asks for their help. */
const HELPED = ['user', 'user reset-password', 'setup-code', 'audit verify'];
const VERSIONED = ['', 'user reset-password', 'policies plan'];
const wordsOf = (command: string): string[] => command.split(' ').filter((word) => word !== '');
const { version } = JSON.parse(readFileSync(join(import.meta.dirname, '../../package.json'), 'utf8')) as { version: string };

test.serial('every command has its help, and needs nothing for it', async (t) => {
  t.timeout(300_000);
  for (const command of HELPED) {
    const help = await portcullis({}, ...wordsOf(command), '--help');
    t.is(help.code, 0, `${command}: ${help.err}`);
    t.regex(help.out, /^Usage: portcullis/, command);
  }
});

test.serial('every command tells its version, and needs nothing for it', async (t) => {
  for (const command of VERSIONED) {
    t.deepEqual(await portcullis({}, ...wordsOf(command), '--version'), { code: 0, out: `portcullis ${version}\n`, err: '' });
  }
});

test.serial('a command that is called wrongly exits with 2, also if a variable is wrong', async (t) => {
  for (const wrong of [['nothing'], ['user', 'reset-password'], ['setup-code']]) {
    const { code, err } = await portcullis({ PORT: 'x' }, ...wrong);
    t.is(code, 2, `${wrong.join(' ')}: ${err}`);
  }
});

test.serial('a reader who leaves early ends nothing, and breaks nothing', async (t) => {
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

test('a folder inside that has policies is refused by its name, but for that of the tests', (t) => {
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

test('a link inside a folder that leads to policies is refused, too, and one that leads in a circle is not', (t) => {
  const [dir, elsewhere] = [folder(t), folder(t)];
  writeFileSync(join(dir, 'a.yaml'), file());
  writeFileSync(join(elsewhere, 'b.yaml'), file());
  mkdirSync(join(dir, 'team', 'deep'), { recursive: true });
  for (const name of ['one', 'two']) symlinkSync(join(dir, 'team'), join(dir, 'team', 'deep', name));
  t.deepEqual([...readPolicyFolder(dir).keys()], ['a.yaml']);
  symlinkSync(elsewhere, join(dir, 'team', 'deep', 'shared'));
  t.throws(() => readPolicyFolder(dir), { message: /team is a folder with YAML files, and subfolders are not read/ });
});

test('a file of a policy that cannot be written is named, with the reason', (t) => {
  const dir = folder(t);
  mkdirSync(join(dir, 'a.yaml'));
  t.throws(() => writePolicyFile(dir, 'a.yaml', ''), { instanceOf: CommandError, message: /a\.yaml cannot be written: EISDIR/ });
  t.throws(() => removePolicyFile(dir, 'b.yaml'), { instanceOf: CommandError, message: /b\.yaml cannot be written: ENOENT/ });
  const file = join(dir, 'file');
  writeFileSync(file, '');
  t.throws(() => writePolicyFile(file, 'a.yaml', ''), { instanceOf: CommandError, message: /a\.yaml cannot be written: EEXIST/ });
});

for (const what of ['policies schema', 'audit verify --help']) {
  test.serial(`output that cannot be written, as on a full disk, is told and has an exit code of its own: ${what}`, async (t) => {
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

test.serial('nothing is left undone where only progress and faults cannot be written', async (t) => {
  const full = openSync('/dev/full', 'w');
  const child = spawn(process.execPath, [...program('cli/portcullis'), 'policies', 'nothing'], {
    stdio: ['ignore', 'ignore', full],
  });
  closeSync(full);
  t.deepEqual(await once(child, 'close'), [2, null]);
});

test('a link to a folder that has policies is refused like the folder, and a link that goes nowhere is not one', (t) => {
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
