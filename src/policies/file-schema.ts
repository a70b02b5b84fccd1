/** Policy files and files of tests as JSON Schema, for editors that complete and check YAML. Tests hold both equal to the parsers. */
import { UUID } from '../http/validate.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { EFFECTS, RESOURCE_TYPES } from './document.ts';
import { POLICY_LIMITS } from './schema.ts';
import { LABEL, MAX_ITEMS, NAME_MAX, URI_MAX } from './test-file.ts';

const TEXT = '^[^\\u0000-\\u001f\\u007f-\\u009f]*$';
/** Line breaks and tabs as well. */
const LINES = '^(?:[^\\u0000-\\u001f\\u007f-\\u009f]|\\r?\\n|\\t)*$';
const text = (maxLength: number, description: string, minLength = 1, pattern = TEXT) => ({
  type: 'string',
  description,
  minLength,
  maxLength,
  pattern,
});
const orNull = <S extends { readonly type: string }>(schema: S) => ({ ...schema, type: [schema.type, 'null'] });
const only = (member: string, schema: object) => ({
  type: 'object',
  properties: { [member]: schema },
  required: [member],
  additionalProperties: false,
});

/** Draft 7: what editors know. */
export function policyFileSchema() {
  return {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Portcullis policy',
    description:
      'One policy. Policies are read by priority, the higher first; the first that fits decides; without one, the answer is deny.',
    type: 'object',
    properties: {
      name: text(POLICY_LIMITS.name, 'For people; it appears in the audit log.'),
      description: orNull(text(POLICY_LIMITS.description, 'Free text. It may have line breaks.', 0, LINES)),
      target: orNull({ type: 'string', description: 'Name of a target. Left out: every target.', pattern: TARGET_NAME.source }),
      resource_type: { description: 'What it covers.', enum: ['all', ...RESOURCE_TYPES] },
      resource_pattern: orNull(
        text(
          POLICY_LIMITS.pattern,
          'RE2, searched for in the name: write ^ and $ for the whole of it. The name of a resource is its URI. Left out: every name.',
        ),
      ),
      effect: { description: 'allow grants, deny refuses.', enum: [...EFFECTS] },
      priority: {
        type: 'integer',
        description: 'The higher is read first; at equal priority deny before allow.',
        minimum: -(2 ** 31),
        maximum: 2 ** 31 - 1,
      },
      enabled: { type: 'boolean', description: 'false takes the policy out without deleting it.', default: true },
      subjects: {
        type: 'array',
        description: 'Whom it applies to; an empty list is nobody.',
        maxItems: POLICY_LIMITS.subjects,
        items: {
          anyOf: [
            { const: 'everyone' },
            only('role', text(POLICY_LIMITS.subjectValue, 'Users with this role.')),
            only('group', text(POLICY_LIMITS.subjectValue, 'Users in this group.')),
            only('user', { type: 'string', description: 'One user, by id.', pattern: UUID.source }),
          ],
        },
      },
    },
    required: ['name', 'resource_type', 'effect', 'priority', 'subjects'],
    additionalProperties: false,
  };
}

const list = (items: object, description: string, minItems = 0) => ({
  type: 'array',
  description,
  minItems,
  maxItems: MAX_ITEMS,
  items,
});
const byLabel = (items: object, description: string) => ({
  type: 'object',
  description,
  minProperties: 1,
  maxProperties: MAX_ITEMS,
  propertyNames: { pattern: LABEL.source },
  additionalProperties: items,
});
const labels = (description: string) => ({ ...list({ type: 'string', minLength: 1 }, description, 1), uniqueItems: true });
const target = (description: string) => ({ type: 'string', description, pattern: TARGET_NAME.source });

/** Draft 7, too. What the names of a file refer to it does not say. */
export function testFileSchema() {
  const principal = {
    type: 'object',
    properties: {
      role: text(POLICY_LIMITS.subjectValue, 'Their role.'),
      groups: { ...list(text(POLICY_LIMITS.subjectValue, 'A group.'), 'The groups they are in.'), uniqueItems: true },
      user: text(POLICY_LIMITS.subjectValue, 'Their id; left out: nobody in particular.'),
    },
    required: ['role'],
    additionalProperties: false,
  };
  const request = {
    type: 'object',
    properties: {
      target: target('Name of a target. Alone: may it be used at all?'),
      tool: text(NAME_MAX, 'Name of a tool.'),
      resource: text(URI_MAX, 'URI of a resource.'),
      prompt: text(NAME_MAX, 'Name of a prompt.'),
    },
    minProperties: 1,
    additionalProperties: false,
    allOf: RESOURCE_TYPES.flatMap((one, i) => RESOURCE_TYPES.slice(i + 1).map((other) => ({ not: { required: [one, other] } }))),
  };
  const expectation = {
    type: 'object',
    properties: {
      principals: labels('Left out: all of the test.'),
      requests: labels('Left out: all of the test.'),
      effect: { description: 'What the engine must answer.', enum: [...EFFECTS] },
      policy: orNull(
        text(
          POLICY_LIMITS.name,
          'The policy that must decide: its name, or that of its file without .yaml. null: no policy fits.',
        ),
      ),
    },
    required: ['effect'],
    additionalProperties: false,
  };
  const test = {
    type: 'object',
    properties: {
      name: text(POLICY_LIMITS.name, 'What it is about.'),
      principals: labels('Left out: all of the file.'),
      requests: labels('Left out: all of the file.'),
      expect: list(expectation, 'Every principal makes every request; what is not expected here must be denied.'),
    },
    required: ['name'],
    additionalProperties: false,
  };
  return {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Portcullis policy tests',
    description: 'Who may do what, and by which policy. What no test expects must be denied.',
    type: 'object',
    properties: {
      target: target('Name of the target of each request that names none.'),
      principals: byLabel(principal, 'Callers, by names of your own.'),
      requests: byLabel(request, 'What they ask for, by names of your own.'),
      tests: list(test, 'Tables of principals and requests.', 1),
    },
    required: ['principals', 'requests', 'tests'],
    additionalProperties: false,
  };
}

const textOf = (schema: object): string => `${JSON.stringify(schema, null, 2)}\n`;

/** As `policies/policy.schema.json` has it. */
export const policyFileSchemaText = (): string => textOf(policyFileSchema());
/** As `policies/tests/test.schema.json` has it. */
export const testFileSchemaText = (): string => textOf(testFileSchema());
