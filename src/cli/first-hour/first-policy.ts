/** Reads what the options of `portcullis add` say about the first policies. */
import { CHOICES, type Choice, type Subject } from '../../console/targets/first-policy.ts';
import { UsageError } from '../command.ts';

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
