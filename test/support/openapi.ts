/** Checks answers of the REST API against the contract. */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import { openapiDocument } from '../../src/rest/contract.ts';

const document = openapiDocument('http://127.0.0.1:8080');

/** Returns a schema that allows no further members. A client may tolerate unknown members, but a test must not. */
function closed(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(closed);
  if (typeof schema !== 'object' || schema === null) return schema;
  const inner = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, closed(value)]));
  return 'properties' in inner && !('additionalProperties' in inner) ? { ...inner, additionalProperties: false } : inner;
}

const ajv = new Ajv2020({
  strict: true,
  strictTypes: false,
  allErrors: true,
  formats: { 'date-time': /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/ },
});
ajv.addVocabulary(['components']);
ajv.addSchema({ $id: 'doc', components: { schemas: closed(document.components.schemas) } }, 'doc', undefined, false);

const compiled = new Map<string, ValidateFunction>();
function validator(schema: unknown): ValidateFunction {
  const key = JSON.stringify(schema);
  let validate = compiled.get(key);
  if (!validate) {
    validate = ajv.compile(JSON.parse(key.replaceAll('"#/components', '"doc#/components')));
    compiled.set(key, validate);
  }
  return validate;
}

const templates = Object.keys(document.paths)
  .map((template) => ({
    template,
    pattern: new RegExp(`^${template.replaceAll('.', '\\.').replace(/\{\w+\}/g, '[^/]+')}$`),
  }))
  .sort((a, b) => a.template.split('{').length - b.template.split('{').length);

/** Throws unless the document says that this operation may answer with this status and such a body (undefined: none). */
export function assertConforms(method: string, path: string, status: number, body: unknown): void {
  const [bare = ''] = path.split('?');
  const template = templates.find(({ pattern }) => pattern.test(bare))?.template ?? '';
  const response = document.paths[template]?.[method.toLowerCase()]?.responses[status];
  const about = `${method} ${template || bare} ${status}`;
  // What no operation is for (404, 405) is answered before any: with a problem.
  if (!response && ![403, 404, 405].includes(status)) throw new Error(`${about}: the contract does not have this status`);
  const content = response ? (response['content'] as Record<string, { schema: unknown }> | undefined) : undefined;
  const schema = response ? Object.values(content ?? {})[0]?.schema : { $ref: '#/components/schemas/Problem' };
  if (schema === undefined) {
    if (body !== undefined) throw new Error(`${about}: there should be no body`);
    return;
  }
  const validate = validator(schema);
  if (!validate(body)) throw new Error(`${about}: ${ajv.errorsText(validate.errors)} in ${JSON.stringify(body)}`);
}
