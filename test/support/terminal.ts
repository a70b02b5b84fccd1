/** A real terminal for tests: tmux, which apt-get installs. */
import { spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';

export interface Terminal {
  /** Types the text, and presses Enter. */
  type(text: string): void;
  /** Presses a key by the name that tmux has for it, such as `C-c`. */
  press(key: string): void;
  /** Resolves with the screen and what has scrolled off it, as soon as that matches. Throws after a minute. */
  shows(form: RegExp): Promise<string>;
}

const PATIENCE_MS = 60_000;
const LOOK_EVERY_MS = 100;
let servers = 0;

/** Opens a shell that gets only these variables. */
export type OpenTerminal = (cwd: string, environment: Readonly<Record<string, string>>) => Terminal;

/**
 * Declares a test that needs tmux, and `more` programs. Without them the test is skipped, which the report of `npm test` lists; with `CI=true`
 * it fails.
 */
export function terminalTest(
  title: string,
  run: (t: ExecutionContext, open: OpenTerminal) => Promise<void>,
  ...more: readonly string[]
): void {
  const missing = ['tmux', ...more].filter((name) => spawnSync(name, ['-V']).error !== undefined).join(' ');
  const needs = `needs ${missing}: apt-get install ${missing}`;
  if (missing !== '' && process.env['CI'] !== 'true') {
    test.skip(`${title} (${needs})`, () => undefined);
    return;
  }
  test.serial(title, async (t) => {
    if (missing !== '') return t.fail(`CI ${needs}`);
    t.timeout(300_000);
    // A server of its own, so that nothing else on this machine is touched, and none that the test before is still ending.
    const socket = `portcullis-${process.pid}-${++servers}`;
    const tmux = (...args: string[]): string => {
      const { status, stdout, stderr } = spawnSync('tmux', ['-L', socket, '-f', '/dev/null', ...args], { encoding: 'utf8' });
      if (status !== 0) throw new Error(`tmux ${args[0]}: ${stderr}`);
      return stdout;
    };
    let opened = 0;
    t.teardown(() => spawnSync('tmux', ['-L', socket, 'kill-server']));
    await run(t, (cwd, environment) => {
      const name = `terminal-${++opened}`;
      const variables = Object.entries({ PS1: 'ready> ', ...environment }).map(([key, value]) => `${key}=${value}`);
      tmux(
        'new-session',
        '-d',
        '-s',
        name,
        '-x',
        '200',
        '-y',
        '50',
        '-c',
        cwd,
        'env',
        '-i',
        'TERM=screen',
        ...variables,
        'sh',
        '-i',
      );
      const screen = (): string => tmux('capture-pane', '-p', '-J', '-S', '-', '-t', name);
      return {
        type(text) {
          tmux('send-keys', '-l', '-t', name, text);
          tmux('send-keys', '-t', name, 'Enter');
        },
        press: (key) => void tmux('send-keys', '-t', name, key),
        async shows(form) {
          for (const until = Date.now() + PATIENCE_MS; ; await sleep(LOOK_EVERY_MS)) {
            const text = screen();
            if (form.test(text)) return text;
            if (Date.now() > until) throw new Error(`the terminal does not show ${form}:\n${text}`);
          }
        },
      };
    });
  });
}
