/** A policy file as JSON Schema, for editors that complete and check YAML. Tests hold it equal to what `parsePolicyFile` takes. */
import { UUID } from '../http/validate.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { EFFECTS, RESOURCE_TYPES } from './document.ts';
import { POLICY_LIMITS } from './schema.ts';

const TEXT = '^[^\\u0000-\\u001f\\u007f-\\u009f]*$';
const text = (maxLength: number, description: string, minLength = 1) => ({
  type: 'string',
  description,
  minLength,
  maxLength,
  pattern: TEXT,
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
      description: orNull(text(POLICY_LIMITS.description, 'Free text.', 0)),
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

/** As `policies/policy.schema.json` has it. */
export const policyFileSchemaText = (): string => `${JSON.stringify(policyFileSchema(), null, 2)}\n`;
