/** The policy set that a command is about, and the texts of policies and answers. */
import { join } from 'node:path';
import type { PolicyRef } from '../../policies/files/test-run.ts';
import { describePolicyFileError } from '../../policies/files/yaml.ts';
import type { answerJson } from '../../policies/sets/questions-about.ts';
import { CommandError, type Given, type Option, UsageError } from '../command.ts';
import { dirOf, ownerOf, prunes, testDirOf } from './manifest.ts';
import { readPolicyFolder } from './policy-folder.ts';

export const DIR: Option = { value: 'DIR', help: 'the folder of the policy files (default: policies)' };
export const OWNER: Option = {
  value: 'NAME',
  help: 'the owner of the files, if the folder has no portcullis.yaml that names it',
};
export const SET_OPTIONS = {
  dir: DIR,
  owner: OWNER,
  prune: { help: 'like apply --prune: without the policies whose files no longer exist' },
  adopt: { help: 'like apply --adopt: takes over policies that were created over the API' },
  draft: { value: 'NAME', help: 'a draft that the gateway stores, instead of files' },
} as const satisfies Record<string, Option>;

export const EXPECT = {
  'expect-revision': {
    value: 'REVISION',
    help: 'refuses if policies of the owner changed after this revision, so that you apply exactly what you reviewed; plan prints it',
  },
  'expect-targets': {
    value: 'HASH',
    help: 'refuses if a target that the files name was renamed or replaced since the plan that printed this hash',
  },
} as const satisfies Record<string, Option>;

/** The values of `EXPECT` in the form of the API. */
export function expectedIn(given: Given): object {
  const [revision, targets] = [given.text('expect-revision'), given.text('expect-targets')];
  if (targets !== undefined && !/^[0-9a-f]{16}$/.test(targets)) {
    throw new UsageError(`--expect-targets must have 16 hexadecimal digits, as plan prints them, not ${targets}`);
  }
  return {
    ...(revision === undefined ? {} : { expected_revision: revisionOf(revision) }),
    ...(targets === undefined ? {} : { expected_targets: targets }),
  };
}

/** The set in the form of the API. */
export function setOf(given: Given): object {
  const draft = given.text('draft');
  if (draft === undefined) return fileSetOf(given);
  const other = ['dir', 'owner'].find((option) => given.text(option) !== undefined) ?? ['prune', 'adopt'].find(given.flag);
  if (other !== undefined) throw new UsageError(`pass either --draft or --${other}, not both`);
  return { draft };
}

export const fileSetOf = (given: Given) => ({
  files: Object.fromEntries(policyFiles(given)),
  owner: ownerOf(given),
  prune: prunes(given),
  adopt: given.flag('adopt'),
});

export function policyFiles(given: Given): Map<string, string> {
  const dir = dirOf(given);
  const files = readPolicyFolder(dir, testDirOf(given));
  if (files.size === 0)
    throw new CommandError(`${dir} contains no policy files (*.yaml): set --dir to their folder`, 'no_folder');
  return files;
}

export function revisionOf(text: string): number {
  if (!/^[0-9]{1,15}$/.test(text)) throw new UsageError(`a revision must be a number, not ${text}: history lists the revisions`);
  return Number(text);
}

export interface Between {
  readonly from: number;
  readonly to: number;
}

export function betweenOf(given: Given): URLSearchParams {
  const [from = '', to] = given.args;
  return new URLSearchParams({
    from: String(revisionOf(from)),
    ...(to === undefined ? {} : { to: String(revisionOf(to)) }),
  });
}

/** Reports errors in files with the paths of the files, so that terminals and editors find the position. */
export async function pointing<T>(dir: string, tests: string, ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    const places = error.errors.flatMap(({ path, file, line, column, message }) =>
      file === undefined || line === undefined || column === undefined
        ? []
        : [describePolicyFileError({ file: join(path.startsWith('tests.') ? tests : dir, file), line, column, message })],
    );
    // If a test failed, keep the first sentence: the line of a test says only what the test expected, not that nothing was
    // applied.
    const head = error.code === 'tests_failed' ? [error.message] : [];
    throw places.length === 0 ? error : new CommandError([...head, ...places].join('\n'), error.code, error.errors);
  }
}

export type AnswerJson = ReturnType<typeof answerJson>;

export const quote = (text: string): string => JSON.stringify(text);
export const refText = ({ name, priority, file, id }: PolicyRef): string =>
  `${quote(name)} (${[file, `priority ${priority}`, id].filter((part) => part !== null).join(', ')})`;

export function answerText({ effect, reason, policy }: AnswerJson): string {
  if (policy !== null) return `${effect} by ${refText(policy)}`;
  switch (reason) {
    case 'default':
      return `${effect}: no policy matches`;
    case 'not_canonical':
      return `${effect}: the URI is ambiguous, so no policy is evaluated`;
    default:
      return `${effect}: the evaluation failed`;
  }
}
