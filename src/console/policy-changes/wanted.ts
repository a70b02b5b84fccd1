/** A policy in a form, as fields or as YAML, and what the operations take of it. */
import { invalidRequest } from '../../base/errors.ts';
import {
  EFFECTS,
  type Effect,
  type PolicyResourceType,
  RESOURCE_TYPES,
  SUBJECT_TYPES,
  type SubjectType,
} from '../../engine/compile/policy.ts';
import { formatPolicyFile, type PolicyFile, parsePolicyFile, policyFileForm } from '../../policies/files/yaml.ts';
import { readPolicy } from '../../policies/schema.ts';
import type { TargetJson } from '../../targets/document.ts';
import type { Field, Form } from '../form.ts';

type Targets = readonly Pick<TargetJson, 'id' | 'name'>[];

export const yamlFor = (targets: Targets): Field => ({
  ...{ name: 'yaml', label: 'Policy as YAML', hint: 'In the format of policy files.', isLong: true },
  words: {
    '': Object.keys(policyFileForm.describe()['keys']).map((key) => `${key}:`),
    target: targets.map(({ name }) => name),
    resource_type: [...RESOURCE_TYPES, 'all'],
    effect: EFFECTS,
    enabled: ['true', 'false'],
    subjects: SUBJECT_TYPES.map((type) => (type === 'everyone' ? type : `${type}:`)),
  },
});

export const fieldsFor = (targets: Targets): readonly Field[] => [
  { name: 'name', label: 'Name', required: true, hint: 'For people. It appears in the audit log.' },
  { name: 'description', label: 'Description', hint: 'You can leave it out.', isLong: true, rows: 2 },
  {
    name: 'effect',
    label: 'Effect',
    isThird: true,
    options: [
      ['allow', 'Allow'],
      ['deny', 'Deny'],
    ],
  },
  {
    name: 'target_id',
    label: 'Target',
    isThird: true,
    options: [['', 'Every target'], ...targets.map(({ id, name }) => [id, name] as const)],
  },
  {
    name: 'resource_type',
    label: 'Covers',
    isThird: true,
    options: [
      ['tool', 'Tools'],
      ['resource', 'Resources'],
      ['prompt', 'Prompts'],
      ['all', 'Tools, resources and prompts'],
    ],
  },
  {
    name: 'resource_pattern',
    label: 'Pattern',
    isCode: true,
    hint: 'An RE2 pattern, for example ^get-. It matches anywhere in the name unless ^ and $ anchor it. Empty: every name.',
  },
  { name: 'priority', label: 'Priority', required: true, hint: 'Policies with a higher priority are evaluated first.' },
  {
    name: 'subjects',
    label: 'Applies to',
    isLong: true,
    isCode: true,
    hint: 'One subject per line: everyone, role: <name>, group: <name>, or user: <e-mail or id>. Without a subject, the policy matches no request.',
  },
];

export const NEW: Form = { effect: 'allow', resource_type: 'tool', priority: '100', enabled: 'yes' };

export function formOf(policy: Documented): Form {
  const { name, description, effect, target_id, resource_type, resource_pattern, priority, enabled, subjects } = policy;
  return {
    ...{ name, description: description ?? '', effect, target_id: target_id ?? '', resource_type },
    ...{ resource_pattern: resource_pattern ?? '', priority: String(priority), enabled: enabled ? 'yes' : '' },
    subjects: subjects
      .map(({ subject_type: type, subject_value: value }) => (value === null ? type : `${type}: ${value}`))
      .join('\n'),
  };
}

/** What the operations take. Throws AppError `invalid_request`, with the paths of the form. */
export function documentIn(form: Form, targets: Targets) {
  return readPolicy(form['yaml'] === undefined ? fromFields(form) : fromYaml(form['yaml'], targets));
}

export type Wanted = ReturnType<typeof documentIn>;

/** Which names the policy of the form is about. An operation checks the values. */
export const aboutIn = ({ target_id = '', resource_type = '', resource_pattern = '' }: Form) => ({
  target_id: orNull(target_id),
  resource_type,
  resource_pattern: orNull(resource_pattern),
});

const orNull = (text: string): string | null => (text === '' ? null : text);

function fromFields(form: Form): object {
  const {
    name,
    description = '',
    effect,
    target_id = '',
    resource_type,
    resource_pattern = '',
    priority = '',
    subjects = '',
  } = form;
  const line = (each: string): object => {
    const [, subject_type, value] = /^(everyone|role|group|user)(?:: ?(.*))?$/.exec(each) ?? [];
    if (subject_type === undefined)
      throw invalidRequest([
        { path: 'subjects', message: 'must have on each line everyone, role: <name>, group: <name> or user: <id>' },
      ]);
    return { subject_type, ...(value === undefined ? {} : { subject_value: value }) };
  };
  return {
    ...{ name, effect, resource_type, enabled: form['enabled'] === 'yes' },
    // Browsers send line breaks as CRLF.
    description: description === '' ? null : description.replaceAll('\r\n', '\n'),
    target_id: orNull(target_id),
    resource_pattern: orNull(resource_pattern),
    priority: /^-?[0-9]{1,10}$/.test(priority) ? Number(priority) : Number.NaN,
    subjects: subjects
      .split(/\r?\n/)
      .filter((each) => each !== '')
      .map(line),
  };
}

function fromYaml(text: string, targets: Targets): object {
  const read = parsePolicyFile(text.replaceAll('\r\n', '\n'), 'policy.yaml');
  if ('errors' in read)
    throw invalidRequest(
      read.errors.map(({ line, column, message }) => ({ path: 'yaml', message: `line ${line}, column ${column}: ${message}` })),
    );
  const { target, ...policy } = read.policy;
  const found = target === null ? null : targets.find(({ name }) => name === target)?.id;
  if (found === undefined) throw invalidRequest([{ path: 'yaml', message: `names the target ${target}, which does not exist` }]);
  return { ...policy, target_id: found };
}

/** A policy, stored or wanted. */
interface Documented {
  readonly name: string;
  readonly description: string | null;
  readonly target_id: string | null;
  readonly resource_type: PolicyResourceType;
  readonly resource_pattern: string | null;
  readonly effect: Effect;
  readonly priority: number;
  readonly enabled: boolean;
  readonly subjects: readonly { readonly subject_type: SubjectType; readonly subject_value: string | null }[];
}

/** The text of the file of a policy. */
export function yamlOf(policy: Documented, targets: Targets): string {
  const { name, description, target_id, resource_type, resource_pattern, effect, priority, enabled, subjects } = policy;
  const target = target_id === null ? null : (targets.find(({ id }) => id === target_id)?.name ?? target_id);
  const file: PolicyFile = {
    ...{ name, description, target, resource_type, resource_pattern, effect, priority, enabled },
    subjects: subjects.map(({ subject_type, subject_value }) => ({ subject_type, subject_value })),
  };
  return formatPolicyFile(file);
}
