/** Questions to the person at the terminal. */
import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { printable } from '../../base/printable.ts';
import { CommandError, type Given, UsageError } from '../command.ts';
import { isInputTerminal } from '../read-text.ts';

/** All functions throw CommandError `interrupted` if the person presses Ctrl-C or Ctrl-D instead of answering. */
export interface Person {
  /** An empty answer means `preset`. */
  ask(question: string, preset?: string): Promise<string>;
  /** The terminal does not show the answer. */
  askHidden(question: string): Promise<string>;
}

/** null: no person is at a terminal, so a command must not ask anything. */
export const personAtTerminal = (): Person | null =>
  isInputTerminal() && process.stdout.isTTY ? { ask: (question, preset) => ask(question, preset), askHidden } : null;

async function ask(question: string, preset?: string): Promise<string> {
  const answer = (await answerTo(preset === undefined ? `${question}: ` : `${question} [${preset}]: `, process.stderr)).trim();
  return answer === '' && preset !== undefined ? preset : answer;
}

async function askHidden(question: string): Promise<string> {
  try {
    const answer = answerTo('', new Writable({ write: (_chunk, _encoding, done) => done() }));
    // By now the terminal shows nothing that is typed.
    process.stderr.write(printable(`${question}: `));
    return await answer;
  } finally {
    process.stderr.write('\n');
  }
}

function answerTo(question: string, output: NodeJS.WritableStream): Promise<string> {
  return new Promise((resolve, reject) => {
    // With `terminal` the interface itself shows what is typed, and so can leave it out.
    const lines = createInterface({ input: process.stdin, output, terminal: true, historySize: 0 });
    lines.on('SIGINT', () => lines.close());
    lines.on('close', () => reject(new CommandError('there was no answer, so the command ends here', 'interrupted')));
    lines.question(printable(question), (answer) => {
      resolve(answer);
      lines.close();
    });
  });
}

/** Returns the option, or what the person answers. Throws UsageError if there is neither. */
export async function optionOrAnswer(
  given: Given,
  option: string,
  person: Person | null,
  question: (person: Person) => Promise<string>,
): Promise<string> {
  const value = given.text(option);
  if (value !== undefined) return value;
  if (person === null) throw new UsageError(`--${option} is missing, and there is no terminal on which to ask`);
  return question(person);
}
