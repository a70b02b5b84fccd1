/** Runs docs/teams.md from its first command to its last, with real repositories of git and a real gateway. */
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { startGateway } from '../support/gateway.ts';
import { blocksOf, CLI, hasTools, homeOf, placeholders, startShell } from './page.ts';

const PORTCULLIS = `#!/bin/sh\nexec '${process.execPath}' ${CLI.map((word) => `'${word}'`).join(' ')} "$@"\n`;

test.serial('the commands of the page about teams work in order, and print what the page shows', async (t) => {
  if (!hasTools) {
    t.log('NOT RUN: the page needs curl and git');
    return;
  }
  // It starts some 60 processes, one after the other.
  t.timeout(300_000);
  const gateway = await startGateway(t);
  const { home, env } = homeOf(t, { portcullis: PORTCULLIS });
  for (const team of ['payments', 'data', 'security'])
    spawnSync('git', ['init', '-q', '--bare', '-b', 'main', join(home, 'github', `${team}.git`)], { env });
  writeFileSync(join(home, 'password'), 'a long passphrase');
  const shell = startShell(t, home, env);
  await shell.run(`portcullis init --server ${gateway.url} --email admin@example.com --password-file password > /dev/null`);
  const here = (commands: string): string =>
    commands.replaceAll('http://127.0.0.1:8080', gateway.url).replaceAll('git@github.com:example', join(home, 'github'));
  for (const { commands, shown } of blocksOf('docs/teams.md')) {
    const printed = await shell.run(here(commands));
    t.notRegex(printed, /eyJ/, 'no token is printed');
    t.is(placeholders(printed), shown ?? '', commands);
  }
});
