/** JSON Schemas (2020-12) of what the REST API takes and gives. */
import { TOKEN_NAME_MAX } from '../auth/store.ts';
import { MISFITS } from '../decision/explain.ts';
import { ERRORS } from '../errors.ts';
import { EFFECTS, RESOURCE_TYPES, SUBJECT_TYPES } from '../policies/document.ts';
import { DRAFT_NAME } from '../policies/drafts/draft.ts';
import { FILE_NAME, OWNER } from '../policies/files.ts';
import { POLICY_LIMITS } from '../policies/schema.ts';
import { CREDENTIAL_LIMITS, CREDENTIAL_SUBJECTS, CREDENTIAL_TYPES } from '../targets/credential-document.ts';
import { METHOD, PARAM, TARGET_LIMITS } from '../targets/document.ts';
import { ASKABLE, ISOLATIONS, TARGET_NAME, TRANSPORTS } from '../targets/target.ts';
import { USER_LIMITS } from '../users/document.ts';
import { REASON_MAX } from './caller.ts';
import { UUID } from './validate.ts';

export type Schema = Readonly<Record<string, unknown>>;

export const ref = (name: SchemaName): Schema => ({ $ref: `#/components/schemas/${name}` });
export const listOf = (items: Schema): Schema => ({ type: 'array', items });

/** Members in `optional` may be absent; all others are there. */
export function object(properties: Readonly<Record<string, Schema>>, optional: readonly string[] = []): Schema {
  return { type: 'object', properties, required: Object.keys(properties).filter((name) => !optional.includes(name)) };
}

/** The body of a request: what is not named is refused. */
const strict = (properties: Readonly<Record<string, Schema>>, required: readonly string[]): Schema => ({
  type: 'object',
  properties,
  required,
  additionalProperties: false,
});

const orNull = (schema: Schema): Schema =>
  typeof schema['type'] === 'string' && !('enum' in schema)
    ? { ...schema, type: [schema['type'], 'null'] }
    : { anyOf: [schema, { type: 'null' }] };
const described = (description: string, schema: Schema): Schema => ({ ...schema, description });

const string: Schema = { type: 'string' };
const text = (maxLength: number): Schema => ({ type: 'string', minLength: 1, maxLength });
const integer: Schema = { type: 'integer' };
const boolean: Schema = { type: 'boolean' };
const oneOf = (values: readonly string[]): Schema => ({ type: 'string', enum: values });
export const uuid: Schema = { type: 'string', pattern: UUID.source };
const time: Schema = { type: 'string', format: 'date-time' };
const sha256: Schema = { type: 'string', pattern: '^[0-9a-f]{64}$' };
const int32: Schema = { type: 'integer', minimum: -(2 ** 31), maximum: 2 ** 31 - 1 };
export const targetName: Schema = { type: 'string', pattern: TARGET_NAME.source };
export const ownerName: Schema = { type: 'string', pattern: OWNER.source };
const email = text(USER_LIMITS.email);
const password = text(USER_LIMITS.password);
const newPassword = { ...password, minLength: USER_LIMITS.passwordMin };
const role = text(USER_LIMITS.name);
const groups = { ...listOf(text(USER_LIMITS.name)), uniqueItems: true };
const credentialValue = text(CREDENTIAL_LIMITS.value);
const times = { created_at: time, updated_at: time };

const subjectType = oneOf(SUBJECT_TYPES);
const subjectValue = described(
  'A role, a group, or the id of a user; null or left out exactly for `everyone`.',
  orNull(text(POLICY_LIMITS.subjectValue)),
);
const subjectInput = strict({ subject_type: subjectType, subject_value: subjectValue }, ['subject_type']);
const subjectAsRead = strict({ id: uuid, subject_type: subjectType, subject_value: subjectValue }, ['subject_type']);

const policyMembers = {
  name: text(POLICY_LIMITS.name),
  description: orNull({ type: 'string', maxLength: POLICY_LIMITS.description }),
  target_id: described('null: every target.', orNull(uuid)),
  resource_type: oneOf(['all', ...RESOURCE_TYPES]),
  resource_pattern: described(
    'RE2, found anywhere in the name unless `^` and `$` say otherwise. null: every name.',
    orNull(text(POLICY_LIMITS.pattern)),
  ),
  effect: oneOf(EFFECTS),
  priority: described('The higher is read first; the first policy that fits decides.', int32),
  enabled: boolean,
};

const policyFiles = described('Texts of YAML files, by name.', {
  type: 'object',
  propertyNames: { pattern: FILE_NAME.source },
  additionalProperties: string,
});
const planMembers = {
  files: policyFiles,
  owner: described(
    'Whose files they are: each owner has names, and removes policies, of its own. Left out: `default`.',
    ownerName,
  ),
  prune: described('Whether policies of the owner go whose files are not there.', boolean),
  adopt: described('Whether policies that were made over the API become those of the files that are called like them.', boolean),
  expected_revision: described('Refused (412) where the policies are at another.', { type: 'integer', minimum: 0 }),
};
const draftName: Schema = { type: 'string', pattern: DRAFT_NAME.source };
/** Files, or the draft that has them. */
const sourceMembers = { ...planMembers, draft: described('A draft, in place of `files` and what goes with them.', draftName) };
const reason = described('Why; it is kept with the change.', text(REASON_MAX));
/** As a file has it. */
const fileContent = orNull(
  object({
    name: string,
    description: orNull(string),
    target: described('Its name; its id where the target is gone.', orNull(string)),
    resource_type: policyMembers.resource_type,
    resource_pattern: orNull(string),
    effect: policyMembers.effect,
    priority: int32,
    enabled: boolean,
    subjects: listOf(object({ subject_type: subjectType, subject_value: orNull(string) })),
  }),
);
const policyChange = {
  action: described(
    "adopt: an update of a policy that was made over the API and is the file's from then on.",
    oneOf(['create', 'update', 'adopt', 'delete']),
  ),
  file: described('null where no file is asked.', orNull(string)),
  policy_id: described('null where it is not made yet.', orNull(uuid)),
  name: string,
  members: described('Those that differ.', listOf(string)),
  before: fileContent,
  after: fileContent,
};
const policyChanges = listOf(object(policyChange));
const askedPrincipal: Schema = {
  oneOf: [
    strict({ user: described('Id or e-mail of a user.', text(USER_LIMITS.name)) }, ['user']),
    strict({ role, sub: described('Left out: nobody in particular.', text(USER_LIMITS.name)), groups }, ['role']),
  ],
};
const askedMembers = {
  principal: askedPrincipal,
  target: targetName,
  resource_type: described('Left out, with `resource_name`: may the target be used at all?', oneOf(RESOURCE_TYPES)),
  resource_name: { type: 'string', minLength: 1, maxLength: 2048 },
};
const askedRequest = strict(askedMembers, ['principal', 'target']);
const policyRef = object({
  id: described('null: it is not made yet.', orNull(uuid)),
  name: string,
  priority: int32,
  file: described('null: it is of no file.', orNull(string)),
});
const answered = {
  effect: oneOf(EFFECTS),
  reason: described(
    'not_canonical: the URI has more than one reading, and is refused before any policy is asked.',
    oneOf(['matched', 'default', 'error', 'not_canonical']),
  ),
  policy: orNull(policyRef),
};
const principalShown = object({
  sub: string,
  role: string,
  groups: listOf(string),
  email: described('null: it is no stored user.', orNull(string)),
  enabled: described('false: requests of this user are refused before any policy is asked.', boolean),
});
const targetShown = object({ id: uuid, name: targetName, enabled: boolean });
const objectShown = { resource_type: orNull(oneOf(RESOURCE_TYPES)), resource_name: orNull(string) };

/** What a change of the policies does to decisions. */
const verdict = described(
  'stricter: some requests are denied that were allowed, none the other way round; looser: the contrary; incomparable: both; unknown: it would take too long to tell.',
  oneOf(['equal', 'stricter', 'looser', 'incomparable', 'unknown']),
);
const decided = object({ effect: oneOf(EFFECTS), policy: described('null: no policy fits.', orNull(policyRef)) });
const policyChangesWithFlips = listOf(
  object({
    ...policyChange,
    flips: described(
      'Requests that get another effect, and that this policy decides before or after: at most one that is allowed then and one that is denied; none: there is no such request; null: it could not be told.',
      orNull(
        listOf(
          object({
            principal: object({ sub: string, role: string, groups: listOf(string) }),
            subjects: described(
              'What of the principal counts: whoever has these, and nothing else that a policy names, is answered the same.',
              listOf(object({ subject_type: subjectType, subject_value: string })),
            ),
            target: described('Its name; its id where it is gone; made up where it holds for every other.', string),
            ...objectShown,
            before: decided,
            after: decided,
          }),
        ),
      ),
    ),
  }),
);

const count = (description: string): Schema => described(description, { type: 'integer', minimum: 0 });
const policyPlan = {
  revision: described('That the plan was made on; after an apply, the one that it made.', integer),
  changes: policyChanges,
  unchanged: described('Files that say what is so already.', integer),
  left: described(
    'Policies whose files are gone, and which stay because `prune` was not asked for.',
    listOf(object({ file: string, policy_id: uuid, name: string })),
  ),
  unmanaged: described('Policies that are of no file, even where one says the same and has not adopted it.', integer),
};

/** What a replay and a shadow have found. */
const replayed = {
  revision: described('That the files or the draft were planned on.', integer),
  from: time,
  to: time,
  decisions: count('That are recorded in that time.'),
  replayed: count('Those of them that could be made again.'),
  coverage: described('Percent, rounded down to tenths; null: nothing is recorded.', orNull({ type: 'number' })),
  not_replayed: described(
    'Why others could not: no policy was asked, or it has been erased what they were made on.',
    object({ no_target: integer, not_canonical: integer, error: integer, erased: integer }),
  ),
  grants: count('Denied then, and allowed by the set that is tried.'),
  refuses: count('The contrary.'),
  already: count('Of these, and of `lists.hides`: what the policies as they are now answer so already.'),
  lists: object({
    lists: count('Recorded lists.'),
    names: count('That they showed.'),
    hides: count('Of these, those that would not be shown.'),
    hidden: count('Names that they did not show: these are not recorded, and of them nothing is known.'),
    cut: count('Names that they showed, and that could not be tried.'),
  }),
  unlisted: count('Decisions and names of flips beyond those that are listed.'),
  changes: count('Policies that would be made, changed or deleted.'),
  unexercised: described(
    'Those of them that no recorded decision was made by, or would be: of them the replay says nothing.',
    listOf(policyRef),
  ),
  flips: described(
    'The most frequent first.',
    listOf(
      object({
        kind: described('listed: a name that a list showed.', oneOf(['request', 'listed'])),
        principal: object({
          sub: string,
          email: described('null, with `groups`: erased.', orNull(string)),
          role: orNull(string),
          groups: orNull(listOf(string)),
        }),
        target: object({ id: string, name: orNull(string) }),
        ...objectShown,
        recorded: object({ effect: oneOf(EFFECTS), policy: orNull(object({ id: string, name: orNull(string) })) }),
        now: described(
          'By the policies as they are now, or, for a shadow, as they were when it was counted.',
          orNull(oneOf(EFFECTS)),
        ),
        would_be: object(answered),
        count: integer,
        first: object({ id: uuid, created_at: time }),
        last: object({ id: uuid, created_at: time }),
      }),
    ),
  ),
};
const draftSummary = {
  name: draftName,
  owner: ownerName,
  prune: boolean,
  adopt: boolean,
  shadow: described('Whether it is evaluated beside the live policies.', boolean),
  author: described('Who saved it last.', object({ id: string, email: string })),
  hash: described('Of its content; quoted, it is the ETag.', sha256),
  ...times,
};

const revisionMembers = {
  revision: integer,
  created_at: time,
  actor: object({ id: string, email: string }),
  request_id: string,
  reason: orNull(string),
  created: described('Policies that were made.', integer),
  updated: integer,
  deleted: integer,
  policy: described('The policy, where it was one alone.', orNull(object({ id: uuid, name: string }))),
};

const managedAs = described(
  '`<owner>/<file name without .yaml>` of the file that it is applied from; null: it was made over the API.',
  orNull(string),
);
const credentialKey = {
  type: oneOf(CREDENTIAL_TYPES),
  name: described('Of a bearer `authorization`, of a header its name in lower case, of env a variable.', string),
};
const suppliedKey = strict(credentialKey, ['type']);

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
    maxItems: TARGET_LIMITS.extensionMethods,
  }),
  user_credentials: described('Headers or variables that users may supply values of their own for.', {
    ...listOf(suppliedKey),
    maxItems: TARGET_LIMITS.userCredentials,
  }),
  capture_arguments: described(
    'Whether the audit log has the arguments of `tools/call` and `prompts/get`, and the names of members whose values it never has; null: it has none.',
    orNull(
      strict({ mask: { ...listOf(text(TARGET_LIMITS.maskedName)), maxItems: TARGET_LIMITS.mask, uniqueItems: true } }, ['mask']),
    ),
  ),
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

/** A change of which there is nothing to show but that it happened. */
const UNSHOWN = 'and for a logout and a password';

const readOnly = (properties: Readonly<Record<string, Schema>>): Record<string, Schema> =>
  Object.fromEntries(
    Object.entries(properties).map(([name, schema]) => [name, described('Read-only: left out, or as it was read.', schema)]),
  );

const schemas = {
  Account: strict({ email, password }, ['email', 'password']),
  NewAccount: strict({ email, password: newPassword }, ['email', 'password']),
  PasswordChange: strict({ current_password: password, new_password: newPassword }, ['current_password', 'new_password']),
  Login: object({ user: { $ref: '#/components/schemas/User' }, token: described('A JWT, good for 12 hours.', string) }),
  NewApiToken: strict({ name: text(TOKEN_NAME_MAX) }, ['name']),
  ApiToken: object({ id: uuid, name: string, created_at: time }),
  CreatedApiToken: object({
    api_token: { $ref: '#/components/schemas/ApiToken' },
    token: described('A JWT without an end, shown this once.', string),
  }),
  Key: object({ kid: string, created_at: time }),

  User: object({ id: uuid, email: string, role: string, groups: listOf(string), enabled: boolean, ...times }),
  NewUser: strict({ email, password: newPassword, role: described('Left out: `user`.', role), groups }, ['email', 'password']),
  UserUpdate: strict({ role, groups, enabled: boolean, ...readOnly({ id: uuid, email: string, ...times }) }, []),

  PolicySubject: object({ id: uuid, subject_type: subjectType, subject_value: orNull(string) }),
  NewPolicySubject: subjectInput,
  Policy: object({
    id: uuid,
    ...policyMembers,
    subjects: listOf({ $ref: '#/components/schemas/PolicySubject' }),
    managed_as: managedAs,
    ...times,
  }),
  NewPolicy: strict({ ...policyMembers, subjects: { ...listOf(subjectInput), maxItems: POLICY_LIMITS.subjects } }, [
    'name',
    'resource_type',
    'effect',
    'priority',
    'subjects',
  ]),
  PolicyUpdate: strict(
    {
      ...policyMembers,
      subjects: { ...listOf(subjectAsRead), maxItems: POLICY_LIMITS.subjects },
      ...readOnly({ id: uuid, managed_as: managedAs, ...times }),
    },
    [],
  ),
  Revision: object(revisionMembers),
  RevisionSet: object({
    revision: integer,
    made: described('null for revision 0.', orNull(object(revisionMembers))),
    policies: listOf({ $ref: '#/components/schemas/Policy' }),
  }),
  PolicyRego: object({
    revision: integer,
    data: { type: 'object' },
    data_hash: sha256,
    engine_hash: sha256,
    rego: object({ 'gateway.rego': { type: 'string' }, 'reference.rego': { type: 'string' } }),
  }),
  PolicyDiff: object({ from: integer, to: integer, changes: policyChanges }),
  PolicyComparison: object({ from: integer, to: integer, verdict, changes: policyChangesWithFlips }),
  PolicyFiles: object({ owner: ownerName, files: policyFiles }),
  PolicyFilesToPlan: strict(planMembers, ['files']),
  PolicyFilesToApply: strict(
    {
      ...planMembers,
      reason,
      tests: described('Texts of YAML files of tests, by name: nothing is applied unless all pass on what would be.', {
        ...policyFiles,
        minProperties: 1,
      }),
    },
    ['files'],
  ),
  PolicyPlan: object(policyPlan),
  PolicyPlanWithFlips: object({ ...policyPlan, verdict, changes: policyChangesWithFlips }),
  Rollback: strict({ revision: { type: 'integer', minimum: 0 }, expected_revision: planMembers.expected_revision, reason }, [
    'revision',
  ]),
  RolledBack: object({ revision: described('The new one; that of now where nothing changed.', integer), changes: policyChanges }),
  PolicyQuestion: askedRequest,
  PolicyExplanation: object({
    revision: integer,
    data_hash: sha256,
    engine_hash: sha256,
    principal: principalShown,
    target: targetShown,
    ...objectShown,
    ...answered,
    passed_over: described(
      'Policies that are read before the one that decides, in this order, and the first member of each that does not fit; at most 1000.',
      listOf(
        object({
          ...(policyRef['properties'] as Record<string, Schema>),
          effect: oneOf(EFFECTS),
          misfit: oneOf(MISFITS),
          wants: described('What would have to be so; null where the member says nothing.', orNull(string)),
        }),
      ),
    ),
    passed_over_count: integer,
  }),
  PolicyFilesToSimulate: strict({ ...sourceMembers, requests: { ...listOf(askedRequest), minItems: 1, maxItems: 1000 } }, [
    'requests',
  ]),
  PolicySimulation: object({
    revision: integer,
    changed: described('How many of the results change.', integer),
    results: listOf(
      object({
        principal: principalShown,
        target: targetShown,
        ...objectShown,
        now: object(answered),
        would_be: object(answered),
        change: described(
          'policy: the effect stays, and another policy decides.',
          oneOf(['none', 'grants', 'refuses', 'policy']),
        ),
      }),
    ),
  }),
  PolicyTests: strict(
    {
      tests: described('Texts of YAML files of tests, by name.', { ...policyFiles, minProperties: 1 }),
      ...sourceMembers,
      files: described(
        'Policies to test as `apply` would make them; without them and without a draft: those there are.',
        policyFiles,
      ),
    },
    ['tests'],
  ),
  PolicyTestReport: object({
    revision: integer,
    passed: integer,
    failed: integer,
    results: listOf(
      object({
        file: string,
        line: integer,
        column: integer,
        test: string,
        principal: string,
        request: string,
        target: targetName,
        passed: boolean,
        expected: object({ effect: oneOf(EFFECTS), policy: orNull(string) }, ['policy']),
        actual: object(answered),
      }),
    ),
    coverage: object({
      policies: described('Enabled ones.', integer),
      decided: described('Those that decided at least one case.', integer),
      percent: { type: 'number' },
      undecided: listOf(policyRef),
    }),
  }),
  PolicyReplay: strict(
    {
      ...sourceMembers,
      files: described('Left out, with `draft`: the policies as they are are tried.', policyFiles),
      from: time,
      to: described('Left out: now.', time),
    },
    ['from'],
  ),
  PolicyReplayReport: object(replayed),
  PolicyDraftSummary: object(draftSummary),
  PolicyDraft: object({ ...draftSummary, files: policyFiles, tests: policyFiles }),
  NewPolicyDraft: strict(
    {
      files: planMembers.files,
      tests: described('Texts of YAML files of tests, by name: they must pass before the draft is activated.', policyFiles),
      owner: planMembers.owner,
      prune: planMembers.prune,
      adopt: planMembers.adopt,
    },
    ['files'],
  ),
  PolicyDraftActivation: strict({ expected_revision: planMembers.expected_revision, reason }, []),
  PolicyShadow: object({
    draft: draftName,
    problem: described(
      'Why the draft cannot be applied to the policies as they are now; until it can, decisions wait.',
      orNull(string),
    ),
    ...replayed,
  }),
  AccessRow: object({
    subject_type: subjectType,
    subject_value: described('A role, a group, or the id of a user; null for `everyone`.', orNull(string)),
    email: orNull(string),
    role: orNull(string),
    groups: orNull(listOf(string)),
    target: targetName,
    resource_type: described('null: the row says that the target can be used at all.', orNull(oneOf(RESOURCE_TYPES))),
    resource_name: orNull(string),
    policy_id: uuid,
    policy_name: string,
    policy_priority: int32,
  }),
  PolicyLint: object({
    revision: integer,
    analysed: described('Enabled policies.', integer),
    findings: listOf(
      object({
        code: string,
        severity: oneOf(['error', 'warning', 'info']),
        message: string,
        policies: described(
          'First the one that it is about, then those that bring it about.',
          listOf(object({ id: uuid, name: string, file: orNull(string) })),
        ),
        witness: described(
          'A request that shows it; null where none could. A target, user or role that no policy names is made up.',
          orNull(
            object({
              principal: object({ sub: string, role: string, groups: listOf(string) }),
              target: string,
              ...objectShown,
              decision: object({ effect: oneOf(EFFECTS), policy_id: orNull(uuid) }),
              without: described('The decision without the policy.', object({ effect: oneOf(EFFECTS), policy_id: orNull(uuid) })),
            }),
          ),
        ),
      }),
    ),
  }),

  Target: {
    anyOf: [
      object({ id: uuid, transport: httpTransport, ...urlMembers, ...targetMembers, ...times }),
      object({ id: uuid, transport: { const: 'stdio' }, ...processMembers, ...targetMembers, ...times }),
    ],
  },
  NewTarget: {
    anyOf: [
      strict({ transport: httpTransport, ...urlMembers, ...targetMembers }, ['name', 'url']),
      strict({ transport: { const: 'stdio' }, ...processMembers, ...targetMembers }, ['name', 'transport', 'command']),
    ],
  },
  TargetUpdate: strict(
    { transport, ...urlMembers, ...processMembers, ...targetMembers, ...readOnly({ id: uuid, ...times }) },
    [],
  ),
  Credential: object({
    subject_type: oneOf(CREDENTIAL_SUBJECTS),
    subject_value: described('null exactly for `default`.', orNull(string)),
    ...credentialKey,
    usable: described(
      'false: the target has moved, so that it must be set again; or it is of a user, and the target does not take it from users.',
      boolean,
    ),
    supplied_by: oneOf(['administrator', 'user']),
    ...times,
  }),
  NewCredential: {
    oneOf: [
      strict({ type: { const: 'bearer' }, value: credentialValue }, ['type', 'value']),
      strict({ type: oneOf(['header', 'env']), name: text(CREDENTIAL_LIMITS.name), value: credentialValue }, [
        'type',
        'name',
        'value',
      ]),
    ],
  },
  OwnCredential: object({
    target: targetName,
    ...credentialKey,
    set: described('Whether there is a value for the caller.', boolean),
    updated_at: orNull(time),
  }),
  OwnCredentialValue: strict({ value: credentialValue }, ['value']),

  LogEntry: object({
    id: described('The decision id that the caller was told.', uuid),
    created_at: time,
    user_id: string,
    user_email: string,
    user_role: string,
    user_groups: listOf(string),
    target_id: orNull(uuid),
    target_name: string,
    method: string,
    resource_type: orNull(oneOf(RESOURCE_TYPES)),
    resource_name: orNull(string),
    arguments: described(
      'Masked; null unless the target has `capture_arguments`, and once they are erased. `cut`: texts are shortened, or `value` is null.',
      orNull(object({ value: described('Any JSON.', {}), cut: boolean })),
    ),
    effect: oneOf(EFFECTS),
    policy_id: orNull(uuid),
    policy_name: orNull(string),
    policy_priority: orNull(int32),
    reason: oneOf(['matched', 'default', 'error', 'no_target', 'not_canonical']),
    issuer: string,
    revision: integer,
    data_hash: sha256,
    engine_hash: sha256,
    outcome: described('null until it is known.', orNull(oneOf(['ok', 'error', 'upstream_error', 'denied', 'cancelled']))),
    duration_ms: orNull(integer),
    shown: described(
      'What a list showed, after filtering; names are cut off at 256 KiB.',
      orNull(object({ count: integer, hidden: integer, names: listOf(string) })),
    ),
  }),
  Checkpoint: object({ checkpoint: described('A compact JWS under a key of /.well-known/jwks.json.', string) }),
  Erasing: strict({ user_id: text(USER_LIMITS.name) }, ['user_id']),
  Erased: object({ erased: described('Rows that were changed.', integer) }),
  Change: object({
    sequence: integer,
    revision: integer,
    created_at: time,
    actor: object({ id: string, email: string }),
    request_id: string,
    reason: described('In the words of who made it; null: not said.', orNull(string)),
    action: string,
    object_type: oneOf(['policy', 'user', 'token', 'target', 'credential', 'key', 'session', 'draft']),
    object_id: string,
    before: described(`As it was, without secrets; null where it was made, ${UNSHOWN}.`, { type: ['object', 'null'] }),
    after: described(`As it became, without secrets; null where it was deleted or revoked, ${UNSHOWN}.`, {
      type: ['object', 'null'],
    }),
  }),

  Session: object({
    id: uuid,
    user_id: string,
    target_id: described('null: every target that its user may use.', orNull(uuid)),
    revision: described('Of the protocol.', string),
    client: described('What the client says it is.', object({ name: orNull(string), version: orNull(string) })),
    created_at: time,
    seen_at: described('Of its last request, give or take a minute.', time),
  }),
  Recycling: strict({ user_id: uuid, target_id: uuid }, []),
  Recycled: object({ recycled: described('Sessions that go on with a fresh half at the target.', integer) }),

  Status: object({
    sequence: described('Of the newest administrative change.', integer),
    revision: described('Of the newest policy set.', integer),
    replicas: listOf(
      object({
        id: uuid,
        this: described('It answers this request.', boolean),
        started_at: time,
        seen_ms_ago: described('How old the word of it is.', integer),
        sequence: integer,
        revision: integer,
        lag: described('Changes that it has not read yet; it reads them before it decides again.', integer),
        engine_hash: sha256,
      }),
    ),
  }),

  Live: object({ live: boolean }),
  Ready: object({ ready: boolean, checks: { type: 'object', additionalProperties: boolean } }),
  KeySet: object({ keys: listOf({ type: 'object' }) }),
  ResourceMetadata: object({
    resource: string,
    authorization_servers: listOf(string),
    bearer_methods_supported: listOf(string),
  }),
  OpenApi: { type: 'object' },

  Problem: object(
    {
      type: described('`urn:portcullis:problem:<code>`', string),
      title: string,
      status: integer,
      detail: string,
      code: oneOf(Object.keys(ERRORS)),
      request_id: uuid,
      errors: described(
        'Every bad member, by its path; what is wrong in a file, with its place.',
        listOf(
          object({ path: string, message: string, file: string, line: integer, column: integer }, ['file', 'line', 'column']),
        ),
      ),
    },
    ['errors'],
  ),
} satisfies Record<string, Schema>;

export type SchemaName = keyof typeof schemas;
export const SCHEMAS: Readonly<Record<SchemaName, Schema>> = schemas;
