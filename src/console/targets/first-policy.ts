/** The first policies for a target, made from the list of its tools. Pure. */
import type { CheckedTool } from '../../mcp/check.ts';
import { canBeAsked } from '../../policies/analysis/names.ts';
import { exactPatterns } from '../../policies/suggest/exact-pattern.ts';

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

export const chosen = (tools: readonly CheckedTool[], choice: Choice): readonly CheckedTool[] =>
  choice === 'none' ? [] : choice === 'all' ? tools : tools.filter(({ read_only }) => read_only);

/** Whether a policy can name the tool. */
export const isNameable = ({ name }: CheckedTool): boolean =>
  canBeAsked('tool', name) && exactPatterns([name]).inexpressible.length === 0;

const whom = ({ subject_type, subject_value }: Subject): string =>
  subject_type === 'everyone' ? 'Everyone' : `${subject_type === 'role' ? 'Role' : 'Group'} ${subject_value}`;

/** Returns policies that allow the subject exactly these tools. A new tool of the target stays closed. `by`: what made them. */
export function policiesFor(
  target: string,
  tools: readonly CheckedTool[],
  choice: Choice,
  subject: Subject,
  by: string,
): FirstPolicy[] {
  const nameable = chosen(tools, choice).filter(isNameable);
  const { exact } = exactPatterns(nameable.map(({ name }) => name));
  const number = exact.reduce((sum, { names }) => sum + names.length, 0);
  const count = `${number} tool${number === 1 ? '' : 's'}`;
  const what = choice === 'read-only' ? 'tools that only read' : 'tools';
  return exact.map(({ pattern: resource_pattern }, index) => ({
    name: `${whom(subject)} may use ${what} of ${target}${exact.length > 1 ? ` (${index + 1} of ${exact.length})` : ''}`,
    description:
      choice === 'read-only'
        ? `Made by ${by} from the ${count} that the target says only read. Nothing proves that.`
        : `Made by ${by} from all ${count} that the target had.`,
    resource_type: 'tool',
    resource_pattern,
    effect: 'allow',
    priority: PRIORITY,
    enabled: true,
    subjects: [subject],
  }));
}
