/** Targets. */

import { RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { ASKABLE } from '../../mcp/protocol/capabilities.ts';
import { FAULT_KINDS } from '../../mcp/upstream/health.ts';
import { METHOD, PARAM, TARGET_LIMITS } from '../../targets/document.ts';
import { ISOLATIONS, TRANSPORTS } from '../../targets/target.ts';
import { get, many, nothing, one, type Paths, tagged, wholeOrPaged } from '../openapi/operation.ts';
import {
  boolean,
  described,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  readOnly,
  type Schema,
  strict,
  string,
  targetName,
  text,
  time,
  times,
  uuid,
} from '../openapi/schema.ts';
import { credentialKey } from './credentials-contract.ts';

const suppliedKey = named('UserCredential', strict(credentialKey, ['type']));
const timeout = described(
  'How long the target may be silent during a request, in milliseconds; null: the value of `UPSTREAM_TIMEOUT_MS`.',
  orNull({ type: 'integer', minimum: TARGET_LIMITS.minTimeout, maximum: TARGET_LIMITS.maxTimeout }),
);
const targetMembers = {
  name: targetName,
  description: orNull({ type: 'string', maxLength: TARGET_LIMITS.description }),
  enabled: boolean,
  denials: described(
    '`shown`: the answer to a refused call says that policy refuses it. `hidden`: the answer is the same as for an unknown name.',
    oneOf(['shown', 'hidden']),
  ),
  may_ask: described('What the target may request from its clients.', { ...listOf(oneOf(ASKABLE)), uniqueItems: true }),
  extension_methods: described('Methods of the target that are not in the protocol.', {
    ...listOf(
      named(
        'ExtensionMethod',
        strict(
          {
            method: { type: 'string', maxLength: TARGET_LIMITS.method, pattern: METHOD.source },
            resource_type: oneOf(RESOURCE_TYPES),
            param: described('The member of `params` that names the tool, resource or prompt.', {
              type: 'string',
              maxLength: TARGET_LIMITS.param,
              pattern: PARAM.source,
            }),
          },
          ['method', 'resource_type', 'param'],
        ),
      ),
    ),
    maxItems: TARGET_LIMITS.extensionMethods,
  }),
  user_credentials: described('Headers or variables for which users may supply their own values.', {
    ...listOf(suppliedKey),
    maxItems: TARGET_LIMITS.userCredentials,
  }),
  capture_arguments: described(
    'If set, the audit log records the arguments of `tools/call` and `prompts/get`. `mask` names members whose values are never recorded. null: arguments are not recorded.',
    orNull(
      named(
        'CaptureArguments',
        strict({ mask: { ...listOf(text(TARGET_LIMITS.maskedName)), maxItems: TARGET_LIMITS.mask, uniqueItems: true } }, [
          'mask',
        ]),
      ),
    ),
  ),
  timeout_ms: timeout,
};
const transport = described('Absent: `streamable-http`.', oneOf(TRANSPORTS));
const httpTransport = oneOf(TRANSPORTS.filter((name) => name !== 'stdio'));
const urlMembers = { url: { type: 'string', maxLength: TARGET_LIMITS.url } };
const absolutePath: Schema = { type: 'string', maxLength: TARGET_LIMITS.path };
const processMembers = {
  command: described('The absolute path of an executable that STDIO_ALLOWED names.', absolutePath),
  args: { ...listOf({ type: 'string', maxLength: TARGET_LIMITS.arg }), maxItems: TARGET_LIMITS.args },
  cwd: described(
    'The working folder; null: an empty folder of its own, which is deleted when the process ends.',
    orNull(absolutePath),
  ),
  env: described(
    'The whole environment of the process, except credentials. Administrators can read it, so do not put secrets here.',
    {
      type: 'object',
      additionalProperties: { type: 'string', maxLength: TARGET_LIMITS.envValue },
      maxProperties: TARGET_LIMITS.env,
    },
  ),
  isolation: described('Which sessions share a process.', oneOf(ISOLATIONS)),
};

export const TARGET_SCHEMAS = {
  Target: {
    anyOf: [
      named('HttpTarget', object({ id: uuid, transport: httpTransport, ...urlMembers, ...targetMembers, ...times })),
      named('StdioTarget', object({ id: uuid, transport: { const: 'stdio' }, ...processMembers, ...targetMembers, ...times })),
    ],
  },
  NewTarget: {
    anyOf: [
      named('NewHttpTarget', strict({ transport: httpTransport, ...urlMembers, ...targetMembers }, ['name', 'url'])),
      named(
        'NewStdioTarget',
        strict({ transport: { const: 'stdio' }, ...processMembers, ...targetMembers }, ['name', 'transport', 'command']),
      ),
    ],
  },
  TargetUpdate: strict(
    { transport, ...urlMembers, ...processMembers, ...targetMembers, ...readOnly({ id: uuid, ...times }) },
    [],
  ),
  TargetHealth: object({
    replica: described('The replica that answers. Each replica knows only its own requests.', uuid),
    status: described(
      '`suspended`: the replica sends no requests to the target before `retry_at`. `unknown`: it has sent none since it started.',
      oneOf(['unknown', 'ok', 'failing', 'suspended']),
    ),
    last_success_at: orNull(time),
    last_fault: orNull(
      named(
        'TargetFault',
        object({
          at: time,
          kind: oneOf(FAULT_KINDS),
          message: string,
          stderr: described('The end of what the process printed to standard error, without credentials.', orNull(string)),
        }),
      ),
    ),
    retry_at: orNull(time),
  }),
} satisfies Record<string, Schema>;

export const TARGET_PATHS: Paths = {
  '/api/targets': {
    get: get('listTargets', 'List all targets.', 'admin', many('Target', 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createTarget',
      summary: 'Register a target.',
      access: 'admin',
      takes: 'NewTarget',
      gives: { 201: one('Target', 'ETag', 'Location') },
      refuses: [409],
    },
  },
  '/api/targets/{id}/health': {
    get: get(
      'getTargetHealth',
      'Get the health of a target, as the replica that answers has last seen it.',
      'admin',
      one('TargetHealth'),
    ),
  },
  '/api/targets/{id}': {
    get: tagged('getTarget', 'Get a target.', one('Target', 'ETag')),
    put: {
      id: 'updateTarget',
      summary:
        'Update a target. Omitted members keep their values. A change of the URL, transport, command, arguments or environment disables its credentials until they are set again.',
      access: 'admin',
      takes: 'TargetUpdate',
      gives: { 200: one('Target', 'ETag') },
      refuses: [409],
      conditional: true,
    },
    delete: {
      id: 'deleteTarget',
      summary: 'Delete a target and its credentials. A target that a policy names cannot be deleted.',
      access: 'admin',
      gives: { 204: nothing() },
      refuses: [409],
      conditional: true,
    },
  },
};
