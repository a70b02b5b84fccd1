/**
 * The JSON Schema of policy files and test files, with which editors complete and check YAML. Tests keep both equal to the
 * parsers.
 */
import { UUID } from '../../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { POLICY_LIMITS } from '../schema.ts';
import { LABEL, MAX_ITEMS, NAME_MAX, URI_MAX } from './test-file.ts';

const TEXT = '^[^\\u0000-\\u001f\\u007f-\\u009f]*$';
/** Line breaks and tabs are allowed, too. */
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

/** JSON Schema draft 7, which editors support. */
export function policyFileSchema() {
  return {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Portcullis policy',
    description:
      'One policy. Policies are evaluated by priority, the highest first. The first one that matches decides; if none matches, the answer is deny.',
    type: 'object',
    properties: {
      name: text(POLICY_LIMITS.name, 'For people; it appears in the audit log.'),
      description: orNull(text(POLICY_LIMITS.description, 'Free text. It may contain line breaks.', 0, LINES)),
      target: orNull({
        type: 'string',
        description: 'The name of a target. Default: every target.',
        pattern: TARGET_NAME.source,
      }),
      resource_type: { description: 'The kind of objects that the policy covers.', enum: ['all', ...RESOURCE_TYPES] },
      resource_pattern: orNull(
        text(
          POLICY_LIMITS.pattern,
          'An RE2 pattern that is searched in the name: use ^ and $ to match the whole name. The name of a resource is its URI. Default: every name.',
        ),
      ),
      effect: { description: 'allow grants access, deny refuses it.', enum: [...EFFECTS] },
      priority: {
        type: 'integer',
        description: 'Higher priorities are evaluated first. At equal priority, deny goes before allow.',
        minimum: -(2 ** 31),
        maximum: 2 ** 31 - 1,
      },
      enabled: { type: 'boolean', description: 'false disables the policy without deleting it.', default: true },
      subjects: {
        type: 'array',
        description: 'The callers to whom the policy applies. An empty list matches no caller.',
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

/** Also draft 7. It does not check that the names in a file refer to something. */
export function testFileSchema() {
  const principal = {
    type: 'object',
    properties: {
      role: text(POLICY_LIMITS.subjectValue, 'The role of the caller.'),
      groups: { ...list(text(POLICY_LIMITS.subjectValue, 'A group.'), 'The groups of the caller.'), uniqueItems: true },
      user: text(POLICY_LIMITS.subjectValue, 'The user id of the caller. Default: an id that no policy names.'),
    },
    required: ['role'],
    additionalProperties: false,
  };
  const request = {
    type: 'object',
    properties: {
      target: target('The name of a target. Without an object, the test asks whether the target may be used at all.'),
      tool: text(NAME_MAX, 'The name of a tool.'),
      resource: text(URI_MAX, 'The URI of a resource.'),
      prompt: text(NAME_MAX, 'The name of a prompt.'),
    },
    minProperties: 1,
    additionalProperties: false,
    allOf: RESOURCE_TYPES.flatMap((one, i) => RESOURCE_TYPES.slice(i + 1).map((other) => ({ not: { required: [one, other] } }))),
  };
  const expectation = {
    type: 'object',
    properties: {
      principals: labels('Default: all of the test.'),
      requests: labels('Default: all of the test.'),
      effect: { description: 'What the engine must answer.', enum: [...EFFECTS] },
      policy: orNull(
        text(
          POLICY_LIMITS.name,
          'The policy that must decide: its name, or the name of its file without .yaml. null: no policy matches.',
        ),
      ),
    },
    required: ['effect'],
    additionalProperties: false,
  };
  const test = {
    type: 'object',
    properties: {
      name: text(POLICY_LIMITS.name, 'What the test is about.'),
      principals: labels('Default: all of the file.'),
      requests: labels('Default: all of the file.'),
      expect: list(expectation, 'Every principal makes every request. A request without an expectation here must be denied.'),
    },
    required: ['name'],
    additionalProperties: false,
  };
  return {
    $schema: 'http://json-schema.org/draft-07/schema#',
    title: 'Portcullis policy tests',
    description: 'Who may do what, and which policy decides. A request without an expectation must be denied.',
    type: 'object',
    properties: {
      target: target('The target of every request that does not name one.'),
      principals: byLabel(principal, 'Callers, under names that you choose.'),
      requests: byLabel(request, 'The requests, under names that you choose.'),
      tests: list(test, 'Tables of principals and requests.', 1),
    },
    required: ['principals', 'requests', 'tests'],
    additionalProperties: false,
  };
}

const textOf = (schema: object): string => `${JSON.stringify(schema, null, 2)}\n`;

/** The text of `policies/policy.schema.json`. */
export const policyFileSchemaText = (): string => textOf(policyFileSchema());
/** The text of `policies/tests/test.schema.json`. */
export const testFileSchemaText = (): string => textOf(testFileSchema());
