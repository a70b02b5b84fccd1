/**
 * Runs a process of a target. It inherits nothing from the gateway, exchanges lines of JSON, and is ended together with
 * everything that it started.
 */

import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, openSync, readdirSync, readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';
import { createStock, isOverdrawn, type Taken } from '../../../base/budgets.ts';
import { decodeInLane, LARGE_TEXT } from '../../../base/json/large.ts';
import type { Log } from '../../../base/log.ts';
import { deferred } from '../../../base/promises.ts';
import { lane } from '../../../base/turns/lane.ts';
import { PART_BYTES, pipeInTurns } from '../reading-turns.ts';
import { ProcessFault } from '../upstream.ts';
import {
  createLineReader,
  endsOf,
  type Line,
  lineParts,
  oversizedId,
  printableLine,
  readLargeLine,
  readLine,
  type Skipped,
  toLine,
} from './lines.ts';
import { createLineLog, createStderr, hideSecrets } from './stderr.ts';

/** How long each step of ending a process waits: closed stdin, SIGTERM, SIGKILL. */
const GRACE_MS = 2_000;
/** How long to read the pipes of a process that has ended. A pipe that another process holds open never ends. */
const DRAIN_MS = 500;
/** Bytes of messages that wait to be written. */
const INPUT = { perKey: 8 * 1024 * 1024, all: 16 * 1024 * 1024 };
/** The memory that each of them takes in addition to its text. */
const WAITING_COST = 512;
const GARBAGE_BYTES = 1024 * 1024;
const SHOWN_LENGTH = 500;
/** The bytes of standard error that are read in one turn. Each line is searched for secrets, which takes long. */
const STDERR_PART_BYTES = 1024;
/** A process that has ended leaves no more than its full pipes, unless another process writes into them. */
const LAST_READS = 8;
/** How many characters of standard error a fault carries. */
const CAUSE_LENGTH = 2_000;

/** Computed when the gateway starts: node itself closes the descriptors that it opens later. */
const NO_OTHERS = coverDescriptors();

export interface ProcessSpec {
  readonly name: string;
  /** The account that pays for reading, as for HTTP (connect.ts). */
  readonly source: string;
  readonly command: string;
  readonly args: readonly string[];
  /** null: the process gets a temporary folder. */
  readonly cwd: string | null;
  /** The complete environment. */
  readonly env: Readonly<Record<string, string>>;
  /** Values that must never be logged. */
  readonly secrets: readonly string[];
}

export interface ProcessHandlers {
  line(line: Exclude<Line, { kind: 'garbage' }>): void;
  /** So many bytes of lines wait for their end, or to be read. Returns why there is no room for so many. */
  waiting(bytes: number): Error | null;
  /** Called once, also if the process could not be started. No line follows. */
  ended(why: ProcessFault): void;
}

export type TargetProcess = ReturnType<typeof startProcess>;

export function startProcess(spec: ProcessSpec, maxLineBytes: number, handlers: ProcessHandlers, log: Log) {
  let folder: string | null = null;
  let child: ChildProcessByStdio<Writable, Readable, Readable>;
  try {
    // mkdtemp creates the folder with mode 0700.
    if (spec.cwd === null) folder = mkdtempSync(join(tmpdir(), 'portcullis-target-'));
    child = spawn(spec.command, [...spec.args], {
      cwd: spec.cwd ?? folder ?? undefined,
      // node passes this variable on unless it is set here.
      env: { NODE_V8_COVERAGE: undefined, ...spec.env },
      stdio: ['pipe', 'pipe', 'pipe', ...NO_OTHERS],
      // Its own process group, so that everything it starts can be ended with it.
      detached: true,
      shell: false,
    }) as ChildProcessByStdio<Writable, Readable, Readable>;
    child.on('error', nothing);
    // If no file descriptor is left, node creates no pipes, although the types say otherwise.
    if ((child.stdin as Writable | undefined) === undefined) throw new Error('no file descriptors are left');
  } catch (cause) {
    const removed = remove(folder, spec, log);
    queueMicrotask(() => handlers.ended(new ProcessFault('unreachable', 'the process could not be started', { cause })));
    return { send: () => 'closed' as const, pause: nothing, resume: nothing, end: nothing, kill: nothing, gone: removed };
  }

  const { pid, stdin, stdout } = child;
  const about = { target: spec.name, pid: pid ?? 0 };
  const hiding = hideSecrets(spec.secrets);
  const logLine = createLineLog(about, log);
  const stderr = createStderr(hiding, logLine);
  const startedAt = performance.now();
  /** Why the gateway ends the process. */
  let ending: { readonly why: string; readonly expected: boolean } | null = null;
  let over = false;
  let garbage = 0;
  const timers: NodeJS.Timeout[] = [];
  const { promise: gone, resolve: leave } = deferred();

  function hasExited(): boolean {
    return pid === undefined || child.exitCode !== null || child.signalCode !== null;
  }

  function signalGroup(signal: NodeJS.Signals): void {
    if (pid === undefined) return;
    try {
      process.kill(-pid, signal);
    } catch {
      // The process group is empty.
    }
  }

  function end(why: string): void {
    if (ending !== null || over) return;
    ending = { why, expected: true };
    stdin.end();
    // Its remaining output is discarded: a full pipe must not keep it from ending.
    stdout.resume();
    timers.push(setTimeout(signalGroup, GRACE_MS, 'SIGTERM'), setTimeout(signalGroup, 2 * GRACE_MS, 'SIGKILL'));
  }

  function kill(why: string): void {
    if (over || ending !== null) return;
    ending = { why, expected: false };
    log.warn({ ...about, why }, 'target process killed: it misbehaved');
    stdout.resume();
    signalGroup('SIGKILL');
  }

  /** Messages that wait until the process has read earlier ones, by sender. Senders take turns. */
  const unwritten = new Map<string, { readonly text: string; readonly room: Taken }[]>();
  const input = createStock('input of the process', INPUT);
  let isWriting = false;

  async function writeInTurns(): Promise<void> {
    isWriting = true;
    for (let [first] = unwritten; first !== undefined; [first] = unwritten) {
      if (stdin.writable && stdin.writableNeedDrain) await drainedOrClosed(stdin);
      const [sender, messages] = first;
      const message = messages.shift();
      if (message !== undefined) {
        const parts = lineParts(message.text);
        await lane.run(spec.source, () => {
          const { value: part } = parts.next();
          if (part === undefined || !stdin.writable) return true;
          stdin.write(part);
          return false;
        });
        message.room.giveBack();
      }
      unwritten.delete(sender);
      if (messages.length > 0) unwritten.set(sender, messages);
    }
    isWriting = false;
  }

  /** Set while a large line is being read. Later lines wait for it. */
  let reading: Promise<void> | null = null;
  const behind: Buffer[] = [];
  /** The bytes of that line. */
  let readingBytes = 0;
  let isPaused = false;

  function takeLine(bytes: Buffer): void {
    if (ending !== null || bytes.length === 0) return;
    if (reading !== null) behind.push(bytes);
    else if (bytes.length > LARGE_TEXT) {
      readingBytes = bytes.length;
      const why = handlers.waiting(readingBytes);
      if (why !== null) {
        hasRead();
        skipped({ ...endsOf(bytes), bytes: bytes.length, why: why.message });
        return;
      }
      stdout.pause();
      reading = takeLargeLine(bytes);
    } else {
      const text = bytes.toString('utf8');
      take(bytes.length, text, readLine(text));
    }
  }

  /** The line is read, and its receiver counts it now. */
  function hasRead(): void {
    readingBytes = 0;
    handlers.waiting(reader.kept);
  }

  async function takeLargeLine(bytes: Buffer): Promise<void> {
    try {
      const text = (await decodeInLane(bytes, spec.source, true)) ?? '';
      const line = await readLargeLine(text, spec.source);
      hasRead();
      take(bytes.length, text, line);
    } catch (err) {
      log.warn({ ...about, err }, 'large message of a target dropped: reading it failed');
    }
    hasRead();
    reading = null;
    for (let next = behind.shift(); next !== undefined; next = reading === null ? behind.shift() : undefined) takeLine(next);
    await reading;
    goOn();
  }

  function goOn(): void {
    if (!isPaused && reading === null && output.pending === null) stdout.resume();
  }

  function take(size: number, text: string, line: Line): void {
    if (ending !== null) return;
    if (line.kind === 'garbage') {
      const shown = (): string => {
        const hidden = hiding.hide(text.slice(0, hiding.cut(text, 2 * SHOWN_LENGTH)));
        return printableLine(hidden).slice(0, SHOWN_LENGTH);
      };
      logLine(shown, 'target printed a line that is not a message');
      garbage += size;
      if (garbage > GARBAGE_BYTES) kill('it printed too much that is not a message');
      return;
    }
    garbage = 0;
    handlers.line(line);
  }

  /** Resolves when all that the ended process has left is taken. */
  async function drained(): Promise<void> {
    for (let left = LAST_READS; left > 0 && (output.pending !== null || errors.pending !== null); left--) {
      await output.pending;
      await errors.pending;
      // Let the rest of the pipes' content arrive.
      await sleep(1).then(() => immediate());
    }
  }

  function finish(how: string, cause?: unknown): void {
    if (over) return;
    over = true;
    for (const timer of timers) clearTimeout(timer);
    stderr.end();
    for (const stream of [stdin, stdout, child.stderr]) stream.destroy();
    const lifetime_ms = Math.round(performance.now() - startedAt);
    if (ending?.expected) log.info({ ...about, how, why: ending.why, lifetime_ms }, 'target process ended');
    else log.warn({ ...about, how, why: ending?.why, lifetime_ms, stderr: stderr.tail() }, 'target process ended');
    const message = `the process ${how}${ending === null ? '' : ` (${ending.why})`}`;
    const fault = pid === undefined ? 'unreachable' : 'crashed';
    handlers.ended(new ProcessFault(fault, message, { cause, stderr: stderr.tail().slice(-CAUSE_LENGTH) }));
    void remove(folder, spec, log).then(leave);
  }

  function skipped({ why, ...line }: Skipped): void {
    if (ending !== null) return;
    const id = oversizedId(line);
    log.warn(
      { ...about, bytes: line.bytes, limit: maxLineBytes, answers: id !== null, why },
      `message of a target skipped: ${why === null ? 'it is too large' : 'there is no room for it'}`,
    );
    if (id === null) return;
    if (why !== null) handlers.line({ kind: 'crowded', id, reason: why });
    else handlers.line({ kind: 'oversized', id, reason: `an answer of ${line.bytes} bytes is too large` });
  }

  const reader = createLineReader(maxLineBytes, takeLine, skipped);
  const takeOutput = (bytes: Buffer): void => {
    if (ending !== null || over) return;
    if (!reader.push(bytes)) {
      kill('it sent a line that does not end');
      return;
    }
    const why = handlers.waiting(reader.kept + readingBytes);
    if (why === null) return;
    reader.drop(why.message);
    handlers.waiting(readingBytes);
  };
  const output = pipeInTurns(spec.source, PART_BYTES, takeOutput, goOn);
  stdout.on('data', (bytes: Buffer) => {
    if (ending === null && !output.push(bytes)) stdout.pause();
  });
  // A process that can no longer be read or written is useless, even if it keeps running.
  const cutOff = (why: string): void => {
    timers.push(setTimeout(kill, GRACE_MS, why));
  };
  stdout.on('end', () => cutOff('it closed its output'));
  stdin.on('close', () => cutOff('it closed its input'));
  const errors = pipeInTurns(spec.source, STDERR_PART_BYTES, stderr.push, () => child.stderr.resume());
  child.stderr.on('data', (bytes: Buffer) => {
    if (!over && !errors.push(bytes)) child.stderr.pause();
  });
  // Pipe errors are ignored: the `exit` event reports the end of the process.
  for (const stream of [stdin, stdout, child.stderr]) stream.on('error', nothing);
  const closed = once(child, 'close').catch(nothing);
  child.on('error', (cause) => {
    if (pid === undefined) finish(`could not be started (${codeOf(cause)})`, cause);
  });
  child.on('exit', (code, signal) => {
    // The signal is sent now, while no other process can have this group id.
    signalGroup('SIGKILL');
    stdout.resume();
    const how = signal === null ? `ended with exit code ${code}` : `ended by ${signal}`;
    // The event loop may be late, so immediate() lets the pipes be read first.
    const late = sleep(DRAIN_MS).then(() => immediate());
    void Promise.race([closed, late])
      .then(drained)
      .then(() => reading)
      .then(() => finish(how));
  });
  if (pid !== undefined) log.info({ ...about, command: spec.command }, 'target process started');

  return {
    /**
     * Messages of one sender keep their order. `full`: too many messages of the sender, or of all senders, wait. `closed`: the process has ended,
     * or is about to.
     */
    send(text: string, sender = ''): 'sent' | 'full' | 'closed' {
      if (over || ending !== null || !stdin.writable || hasExited()) return 'closed';
      if (!isWriting && !stdin.writableNeedDrain && text.length <= LARGE_TEXT) {
        stdin.write(toLine(text));
        return 'sent';
      }
      const room = input.take(sender, Buffer.byteLength(text) + WAITING_COST);
      if (isOverdrawn(room)) return 'full';
      const messages = unwritten.get(sender);
      if (messages === undefined) unwritten.set(sender, [{ text, room }]);
      else messages.push({ text, room });
      if (!isWriting) void writeInTurns();
      return 'sent';
    },
    /** Stops reading its output, which makes the process wait. */
    pause(): void {
      if (ending !== null || hasExited()) return;
      isPaused = true;
      stdout.pause();
    },
    resume(): void {
      isPaused = false;
      goOn();
    },
    /** Closes stdin, then sends SIGTERM, then SIGKILL. */
    end,
    /** Sends SIGKILL at once, because the process misbehaved. */
    kill,
    /** Resolves when the process, its process group and its folder are gone. */
    gone,
  };
}

function nothing(): void {}

async function drainedOrClosed(stream: Writable): Promise<void> {
  const waiting = new AbortController();
  const { signal } = waiting;
  await Promise.race([once(stream, 'drain', { signal }), once(stream, 'close', { signal })]).catch(nothing);
  waiting.abort();
}

/**
 * Descriptors that node opens are closed when it starts another program. Descriptors that the gateway inherited are not, except
 * the lowest ones. This covers the inherited ones with /dev/null in processes of targets.
 */
function coverDescriptors(): ('ignore' | number)[] {
  let inherited: number[];
  try {
    inherited = readdirSync('/proc/self/fdinfo')
      .map(Number)
      .filter((fd) => fd > 2 && !closesOnExec(fd));
  } catch {
    return [];
  }
  if (inherited.length === 0) return [];
  const empty = openSync('/dev/null', 'r');
  return Array.from({ length: Math.max(...inherited) - 2 }, (_, at) => (inherited.includes(at + 3) ? empty : 'ignore'));
}

/** Whether the descriptor has O_CLOEXEC, as Linux shows it (proc(5)). */
function closesOnExec(fd: number): boolean {
  try {
    const flags = /^flags:\s*([0-7]+)/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '0';
    return (Number.parseInt(flags, 8) & 0o2000000) !== 0;
  } catch {
    // This is the descriptor with which the folder was read. It is closed already.
    return true;
  }
}

function codeOf(cause: Error): string {
  return (cause as NodeJS.ErrnoException).code ?? cause.message;
}

async function remove(folder: string | null, { name }: ProcessSpec, log: Log): Promise<void> {
  if (folder === null) return;
  try {
    await rm(folder, { recursive: true, force: true, maxRetries: 2 });
  } catch (err) {
    log.warn({ target: name, folder, err }, 'removing the folder of a target process failed');
  }
}
