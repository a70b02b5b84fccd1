/** Pages of docs/ whose commands a test runs, one block after the other, and whose output it compares. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import type { ExecutionContext } from 'ava';

export const ROOT = join(import.meta.dirname, '../..');
const MARK = 'end of a block of the page';

interface Block {
  readonly commands: string;
  /** The output that the page shows for the commands; null: it shows none. */
  readonly shown: string | null;
}

/** Returns the blocks in the order of the page. */
export function blocksOf(page: string): Block[] {
  const fences = [...readFileSync(join(ROOT, page), 'utf8').matchAll(/^```(\w*)\n(.*?)^```$/gms)];
  return fences.flatMap(([, language, text = ''], at) => {
    if (language === 'text') return [];
    if (language !== 'sh') throw new Error(`a block of ${page} is neither sh nor text: ${text}`);
    const [, following, shown = ''] = fences[at + 1] ?? [];
    return [{ commands: text, shown: following === 'text' ? shown : null }];
  });
}

/** Replaces values that differ from run to run with the placeholders of the pages. */
export const placeholders = (text: string): string =>
  text
    .replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, '<id>')
    .replace(/(?<=--expect-targets )[0-9a-f]{16}/g, '<hash>')
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, '<time>')
    .replace(/(?<=\()\d{4}-\d\d-\d\d(?=\))/g, '<day>')
    .replace(/\d+(?= bytes)/g, '<bytes>');

/** If a test runs alone, nothing was built for it. */
const builtForThisRun = process.env['PORTCULLIS_TEST_BUILT'] === 'true';
/** The arguments with which node runs the command `portcullis`. */
export const CLI: readonly string[] = builtForThisRun
  ? [join(ROOT, 'dist/cli/portcullis.js')]
  : [`--import=${import.meta.resolve('../../scripts/loader/register.js')}`, join(ROOT, 'src/cli/portcullis.ts')];

export const hasTools = ['curl', 'git'].every((tool) => spawnSync(tool, ['--version']).error === undefined);

/** A home with programs of its own, and the environment of its shells. It ends with the test. */
export function homeOf(t: ExecutionContext, programs: Readonly<Record<string, string>>) {
  const home = realpathSync(mkdtempSync(join(tmpdir(), 'portcullis-page-')));
  t.teardown(() => rmSync(home, { recursive: true, force: true }));
  const bin = join(home, 'bin');
  mkdirSync(bin);
  for (const [name, text] of Object.entries(programs)) writeFileSync(join(bin, name), text, { mode: 0o755 });
  const path = [bin, dirname(process.execPath), process.env['PATH']].join(delimiter);
  const someone = { NAME: 'Somebody', EMAIL: 'somebody@example.com' };
  const identity = ['AUTHOR', 'COMMITTER'].flatMap((who) =>
    Object.entries(someone).map(([what, value]) => [`GIT_${who}_${what}`, value]),
  );
  return { home, path, env: { PATH: path, HOME: home, GIT_CONFIG_NOSYSTEM: '1', ...Object.fromEntries(identity) } };
}

/** A shell that is given one block after the other. */
export function startShell(t: ExecutionContext, cwd: string, env: NodeJS.ProcessEnv) {
  const child = spawn('sh', ['-eu'], { cwd, env });
  let [output, errors, over] = ['', '', false];
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text;
  });
  const closed = once(child, 'close').then(() => {
    over = true;
  });
  // A shell that has ended takes no commands: `run` says so.
  child.stdin.on('error', () => undefined);
  t.teardown(async () => {
    child.stdin.end();
    await closed;
  });
  return {
    /** Runs the commands and returns their standard output. Throws if one fails or writes to standard error. */
    async run(commands: string): Promise<string> {
      [output, errors] = ['', ''];
      child.stdin.write(`${commands}\nprintf '\\n${MARK}\\n'\n`);
      while (!over && !output.endsWith(`\n${MARK}\n`)) await Promise.race([once(child.stdout, 'data'), closed]);
      if (over || errors !== '') throw new Error(`${commands}\nprinted:\n${output}\n${errors}`);
      return output.slice(0, -`\n${MARK}\n`.length);
    },
  };
}
