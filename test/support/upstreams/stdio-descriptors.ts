/** Prints which descriptors a process of a target has. This process was started with one more descriptor than usual. */
import { readlinkSync } from 'node:fs';
import { isFault } from '../../../src/mcp/upstream/upstream.ts';
import { initialize, type Message, placeFor, startStdio, textOf } from './stdio.ts';

const ends: (() => unknown)[] = [];
const { upstream } = startStdio({ teardown: (end: () => unknown) => ends.push(end) } as never);
// The shell has closed its own listing of the folder before it tests the entries.
const script = `read line; n=; for f in /proc/$$/fd/*; do [ -e "$f" ] && ! [ "$f" -ef /dev/null ] && n="$n \${f##*/}"; done
  printf '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"%s"}}\\n' "$n"; read line`;
const answer = await initialize(upstream, placeFor({ command: '/bin/sh', args: ['-c', script] }));
if (isFault(answer)) throw new Error(answer.fault, { cause: answer.cause });
const { error } = JSON.parse(await textOf(answer)) as Message;
const own = readlinkSync('/proc/self/fd/30').endsWith('.ts');
process.stdout.write(JSON.stringify({ own, childs: error?.message.trim().split(' ') }));
for (const end of ends) await end();
