/** The first policies for a target, made from the list of its tools. Pure. */
import type { CheckedTool } from '../../mcp/check.ts';
import { POLICY_LIMITS } from '../../policies/schema.ts';
import { counted, UsageError } from '../command.ts';

export const CHOICES = ['read-only', 'all', 'none'] as const;
export type Choice = (typeof CHOICES)[number];

export interface Subject {
  readonly subject_type: 'everyone' | 'role' | 'group';
  readonly subject_value?: string;
}

/** A policy without its target, which REST and files name in different ways. */
export interface FirstPolicy {
  readonly name: string;
  readonly description: string;
  readonly resource_type: 'tool';
  readonly resource_pattern: string;
  readonly effect: 'allow';
  readonly priority: number;
  readonly enabled: true;
  readonly subjects: readonly Subject[];
}

const PRIORITY = 100;

/** Reads `everyone`, `role:NAME` or `group:NAME`. Throws UsageError. */
export function readSubject(text: string): Subject {
  const [, type, value = ''] = /^(role|group):(.+)$/.exec(text) ?? [];
  if (text === 'everyone') return { subject_type: 'everyone' };
  if (type === 'role' || type === 'group') return { subject_type: type, subject_value: value };
  throw new UsageError(`${text} must be everyone, role:NAME or group:NAME`);
}

export function readChoice(text: string): Choice {
  const choice = CHOICES.find((one) => one === text);
  if (choice === undefined) throw new UsageError(`${text} must be ${CHOICES.join(', ')}`);
  return choice;
}

export const chosen = (tools: readonly CheckedTool[], choice: Choice): readonly CheckedTool[] =>
  choice === 'none' ? [] : choice === 'all' ? tools : tools.filter(({ read_only }) => read_only);

/** Returns the pattern for exactly this text, in the syntax of RE2. */
export const literal = (text: string): string =>
  text.replace(/[^A-Za-z0-9_-]/gu, (character) =>
    /[!-~ ]/.test(character) ? `\\${character}`.replace('\\ ', ' ') : `\\x{${(character.codePointAt(0) ?? 0).toString(16)}}`,
  );

/** Returns the fewest patterns that each fit a policy and together match exactly these names. */
function patternsFor(names: readonly string[]): string[] {
  const patterns: string[] = [];
  let parts: string[] = [];
  const joined = (more: readonly string[]): string => `^(${more.join('|')})$`;
  for (const part of names.map(literal)) {
    if (parts.length > 0 && joined([...parts, part]).length > POLICY_LIMITS.pattern) {
      patterns.push(joined(parts));
      parts = [];
    }
    parts.push(part);
  }
  return parts.length === 0 ? patterns : [...patterns, joined(parts)];
}

const MAX_NAME = 256;
const CONTROL = /\p{Cc}|\p{Cs}/u;

/** Whether a policy can name the tool. */
export const isNameable = ({ name }: CheckedTool): boolean =>
  name !== '' && [...name].length <= MAX_NAME && !CONTROL.test(name) && `^(${literal(name)})$`.length <= POLICY_LIMITS.pattern;

const whom = ({ subject_type, subject_value }: Subject): string =>
  subject_type === 'everyone' ? 'Everyone' : `${subject_type === 'role' ? 'Role' : 'Group'} ${subject_value}`;

/** Returns policies that allow the subject exactly these tools. A new tool of the target stays closed. */
export function policiesFor(target: string, tools: readonly CheckedTool[], choice: Choice, subject: Subject): FirstPolicy[] {
  const names = [
    ...new Set(
      chosen(tools, choice)
        .filter(isNameable)
        .map(({ name }) => name),
    ),
  ].sort();
  const patterns = patternsFor(names);
  const what = choice === 'read-only' ? 'tools that only read' : 'tools';
  return patterns.map((resource_pattern, index) => ({
    name: `${whom(subject)} may use ${what} of ${target}${patterns.length > 1 ? ` (${index + 1} of ${patterns.length})` : ''}`,
    description:
      choice === 'read-only'
        ? `Made by portcullis add from the ${counted(names.length, 'tool')} that the target says only read. Nothing proves that.`
        : `Made by portcullis add from all ${counted(names.length, 'tool')} that the target had.`,
    resource_type: 'tool',
    resource_pattern,
    effect: 'allow',
    priority: PRIORITY,
    enabled: true,
    subjects: [subject],
  }));
}
