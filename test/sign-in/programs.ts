/** Programs of others: where they are installed, and a browser of theirs that is this test. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ExecutionContext } from 'ava';

export type Teardown = Pick<ExecutionContext, 'teardown'>;

export interface Ran {
  readonly code: number | null;
  readonly output: string;
}

export interface Program {
  /** Resolves with the first text of its output that has this form, and rejects if the program ends before. */
  says(form: RegExp): Promise<string>;
  readonly ended: Promise<Ran>;
}

/** Starts a program, which ends with the test. */
export function start(
  { teardown }: Teardown,
  command: string,
  args: readonly string[],
  environment: Record<string, string> = {},
): Program {
  const child = spawn(command, args, { env: { ...process.env, ...environment }, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  const looks: (() => void)[] = [];
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      for (const look of looks) look();
    });
  const ended = once(child, 'close').then(([code]: (number | null)[]) => ({ code: code ?? null, output }));
  teardown(async () => {
    child.kill('SIGKILL');
    await ended.catch(() => undefined);
  });
  return {
    ended,
    says: (form) =>
      new Promise((resolve, reject) => {
        const look = (): void => {
          const found = form.exec(output)?.[0];
          if (found !== undefined) resolve(found);
        };
        looks.push(look);
        look();
        ended.then(() => reject(new Error(`the program ended: ${output}`)), reject);
      }),
  };
}

/** Runs a program that must succeed. */
export async function must(t: Teardown, command: string, args: readonly string[]): Promise<void> {
  const { code, output } = await start(t, command, args).ended;
  if (code !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${code}: ${output}`);
}

export function temporary({ teardown }: Teardown): string {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-programs-'));
  teardown(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));
  return folder;
}

export interface FakeBrowser {
  /** For programs that open the browser of the system: `xdg-open` and Python's `webbrowser` start what BROWSER names. */
  readonly environment: Record<string, string>;
  /** The addresses that were opened. */
  readonly opened: readonly string[];
  /** Resolves with the next address that a program opens. */
  next(): Promise<string>;
}

const TELL = `await fetch(process.argv[2], { method: 'POST', body: process.argv[3] });\n`;

export async function fakeBrowser(t: Teardown): Promise<FakeBrowser> {
  const opened: string[] = [];
  let wait: (address: string) => void = () => undefined;
  const server = createServer(async (req, res) => {
    let address = '';
    for await (const chunk of req) address += chunk;
    res.end();
    opened.push(address);
    wait(address);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const folder = temporary(t);
  const [tell, browser] = [join(folder, 'tell.mjs'), join(folder, 'xdg-open')];
  writeFileSync(tell, TELL);
  const us = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  writeFileSync(browser, `#!/bin/sh\nexec '${process.execPath}' '${tell}' '${us}' "$1"\n`, { mode: 0o755 });
  return {
    environment: { BROWSER: browser, PATH: `${folder}:${process.env['PATH']}` },
    opened,
    next: () =>
      new Promise((resolve) => {
        wait = resolve;
      }),
  };
}
