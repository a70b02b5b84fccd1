/** Targets. */
import { FAULT_KINDS } from '../../mcp/upstream/health.ts';
import { RESOURCE_TYPES } from '../../policies/document.ts';
import { METHOD, PARAM, TARGET_LIMITS } from '../../targets/document.ts';
import { ASKABLE, ISOLATIONS, TRANSPORTS } from '../../targets/target.ts';
import { credentialKey } from './credentials.ts';
import { get, many, nothing, one, type Paths, tagged, wholeOrPaged } from './operation.ts';
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
} from './schema.ts';

const suppliedKey = named('UserCredential', strict(credentialKey, ['type']));
const timeout = described(
  'How long the target may be silent while a request is under way, in milliseconds; null: as long as `UPSTREAM_TIMEOUT_MS` says.',
  orNull({ type: 'integer', minimum: TARGET_LIMITS.minTimeout, maximum: TARGET_LIMITS.maxTimeout }),
);
const targetMembers = {
  name: targetName,
  description: orNull({ type: 'string', maxLength: TARGET_LIMITS.description }),
  enabled: boolean,
  denials: described(
    'What a refused call is answered: that policy refuses it, or what a name that nobody has is answered.',
    oneOf(['shown', 'hidden']),
  ),
  may_ask: described('What the target may ask its clients for.', { ...listOf(oneOf(ASKABLE)), uniqueItems: true }),
  extension_methods: described("Methods beyond the protocol's that the target serves.", {
    ...listOf(
      named(
        'ExtensionMethod',
        strict(
          {
            method: { type: 'string', maxLength: TARGET_LIMITS.method, pattern: METHOD.source },
            resource_type: oneOf(RESOURCE_TYPES),
            param: described('Member of `params` that names the tool, resource or prompt.', {
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
  user_credentials: described('Headers or variables that users may supply values of their own for.', {
    ...listOf(suppliedKey),
    maxItems: TARGET_LIMITS.userCredentials,
  }),
  capture_arguments: described(
    'Whether the audit log has the arguments of `tools/call` and `prompts/get`, and the names of members whose values it never has; null: it has none.',
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
const transport = described('Left out: `streamable-http`.', oneOf(TRANSPORTS));
const httpTransport = oneOf(TRANSPORTS.filter((name) => name !== 'stdio'));
const urlMembers = { url: { type: 'string', maxLength: TARGET_LIMITS.url } };
const absolutePath: Schema = { type: 'string', maxLength: TARGET_LIMITS.path };
const processMembers = {
  command: described('Absolute path of an executable that STDIO_ALLOWED names.', absolutePath),
  args: { ...listOf({ type: 'string', maxLength: TARGET_LIMITS.arg }), maxItems: TARGET_LIMITS.args },
  cwd: described('null: an empty folder of the process, gone with it.', orNull(absolutePath)),
  env: described(
    'All that the process finds in its environment, credentials aside. Shown to administrators: no place for secrets.',
    {
      type: 'object',
      additionalProperties: { type: 'string', maxLength: TARGET_LIMITS.envValue },
      maxProperties: TARGET_LIMITS.env,
    },
  ),
  isolation: described('Who shares a process.', oneOf(ISOLATIONS)),
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
    replica: described('The replica that answers: each has seen its own requests only.', uuid),
    status: described(
      '`suspended`: the target is not asked before `retry_at`. `unknown`: nothing was asked of it since the replica started.',
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
          stderr: described('The last of what a process printed to its standard error, without credentials.', orNull(string)),
        }),
      ),
    ),
    retry_at: orNull(time),
  }),
} satisfies Record<string, Schema>;

export const TARGET_PATHS: Paths = {
  '/api/targets': {
    get: get('listTargets', 'All targets.', 'admin', many('Target', 'Link'), { query: wholeOrPaged }),
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
    get: get('getTargetHealth', 'What the replica that answers has last seen of a target.', 'admin', one('TargetHealth')),
  },
  '/api/targets/{id}': {
    get: tagged('getTarget', 'One target.', one('Target', 'ETag')),
    put: {
      id: 'updateTarget',
      summary:
        'Update a target; what is omitted stays. A change of the URL, transport, command, arguments or environment disables its credentials until they are set again.',
      access: 'admin',
      takes: 'TargetUpdate',
      gives: { 200: one('Target', 'ETag') },
      refuses: [409],
      conditional: true,
    },
    delete: {
      id: 'deleteTarget',
      summary: 'Delete a target that no policy names, and its credentials.',
      access: 'admin',
      gives: { 204: nothing() },
      refuses: [409],
      conditional: true,
    },
  },
};
