/**
 * The nouns of the command line, and the operations of REST behind each command. A new operation needs a line here, or a reason in `LEFT_OUT`.
 */
import type { Verb } from './operation.ts';

export interface Noun {
  readonly about: string;
  readonly verbs: Readonly<Record<string, Verb>>;
}

const TARGET = { target: 'id' };
const USER = { user: 'id' };
const PROVIDER = { provider: 'id' };
const CLIENT = { client: 'id' };
const ID = { id: 'id' };
const FAULT = 'A fault shows its kind, its message, and the end of what a process printed to standard error.';

export const LOG_COLUMNS = ['created_at', 'effect', 'user_email', 'target_name', 'method', 'resource_name', 'policy_name|reason'];

export const NOUNS: Readonly<Record<string, Noun>> = {
  target: {
    about: 'The MCP servers behind the gateway.',
    verbs: {
      list: { does: 'GET /api/targets', columns: ['name', 'transport', 'url|command', 'enabled', 'description', 'id'] },
      show: { does: 'GET /api/targets/{id}', takes: TARGET },
      create: { does: 'POST /api/targets', takes: { name: 'name' } },
      update: { does: 'PUT /api/targets/{id}', takes: TARGET },
      enable: { does: 'PUT /api/targets/{id}', takes: TARGET, body: { enabled: true }, only: [], summary: 'enables a target' },
      disable: { does: 'PUT /api/targets/{id}', takes: TARGET, body: { enabled: false }, only: [], summary: 'disables a target' },
      delete: { does: 'DELETE /api/targets/{id}', takes: TARGET },
      check: {
        does: 'POST /api/targets/{id}/check',
        takes: TARGET,
        summary: 'opens a session with the credentials for you, lists the tools, and ends the session',
        help: `Policies do not take part. ${FAULT} With a fault, the exit code is 1.`,
        fault: 'fault',
      },
      catalogue: {
        does: 'GET /api/targets/{id}/catalogue',
        takes: TARGET,
        rows: 'names',
        columns: ['resource_type', 'resource_name', 'matches', 'seen_at'],
      },
      'list-own': {
        does: 'GET /api/auth/access',
        columns: ['target', 'endpoint'],
        summary: 'lists the targets that you may use',
      },
      'show-own': {
        does: 'GET /api/auth/access/{target}',
        takes: { 'target-name': 'target' },
        rows: 'names',
        columns: ['resource_type', 'resource_name'],
        summary: 'lists what you may use of a target, as it last listed it',
      },
      health: { does: 'GET /api/targets/{id}/health', takes: TARGET, help: `Each replica knows only its own requests. ${FAULT}` },
      connections: {
        does: 'GET /api/targets/{id}/connections',
        takes: TARGET,
        columns: ['user_id', 'issuer', 'scopes', 'problem', 'connected_at', 'id'],
      },
      disconnect: {
        does: 'DELETE /api/targets/{id}/connections/{connection}',
        takes: { ...TARGET, connection: 'connection' },
      },
      'account-client': { does: 'GET /api/targets/{id}/account-client', takes: TARGET },
      'set-account-secret': { does: 'PUT /api/targets/{id}/account-client', takes: TARGET },
      'delete-account-secret': { does: 'DELETE /api/targets/{id}/account-client', takes: TARGET },
    },
  },
  user: {
    about: 'The users of the gateway.',
    verbs: {
      list: { does: 'GET /api/users', columns: ['email|subject', 'role', 'groups', 'enabled', 'issuer', 'id'] },
      show: { does: 'GET /api/users/{id}', takes: USER },
      create: { does: 'POST /api/users', takes: { 'e-mail': 'email' } },
      role: {
        does: 'PUT /api/users/{id}',
        takes: { ...USER, role: 'role' },
        only: [],
        summary: 'gives a user a role',
        help: 'For a user of a provider, this role replaces that of the provider.',
      },
      groups: {
        does: 'PUT /api/users/{id}',
        takes: { ...USER, groups: 'groups' },
        only: [],
        summary: 'replaces the groups of a user with a local account: A,B, or "" for none',
      },
      update: {
        does: 'PUT /api/users/{id}',
        takes: USER,
        only: ['role', 'groups', 'given_role', 'given_groups', 'enabled'],
      },
      enable: { does: 'PUT /api/users/{id}', takes: USER, body: { enabled: true }, only: [], summary: 'lets a user in again' },
      disable: {
        does: 'PUT /api/users/{id}',
        takes: USER,
        body: { enabled: false },
        only: [],
        summary: 'refuses a user from the next request on, with every token',
      },
      recycle: { does: 'POST /api/users/{id}/recycle', takes: USER },
      'end-tokens': {
        does: 'POST /api/users/{id}/end-tokens',
        takes: USER,
        summary: 'ends what the user has except API tokens: login tokens, browser sessions, grants, tokens of the provider',
      },
      link: { does: 'POST /api/users/{id}/link', takes: { ...USER, issuer: 'issuer', subject: 'subject' } },
    },
  },
  token: {
    about:
      'API tokens, for programs. Only a login token can make and revoke them: portcullis login does not have one, the page /console/tokens does.',
    verbs: {
      list: {
        does: 'GET /api/auth/tokens',
        columns: ['name', 'created_at', 'expires_at', 'limits', 'id'],
        summary: "lists your API tokens, or a user's",
      },
      create: {
        does: 'POST /api/auth/tokens',
        takes: { name: 'name' },
        help: 'The answer shows the token, which the gateway cannot show again.',
      },
      revoke: { does: 'DELETE /api/auth/tokens/{id}', takes: { token: 'id' } },
      rights: { does: 'GET /api/auth/rights', summary: 'shows what the token of this command may administer' },
    },
  },
  session: {
    about: 'Sessions of MCP clients; browser sessions of people; and grants: what users have allowed OAuth clients.',
    verbs: {
      list: {
        does: 'GET /api/sessions',
        columns: ['user_id', 'target_id', 'client.name', 'client.version', 'revision', 'created_at', 'seen_at', 'id'],
      },
      end: { does: 'DELETE /api/sessions/{id}', takes: ID },
      recycle: { does: 'POST /api/sessions/recycle' },
      browsers: {
        does: 'GET /api/auth/browser-sessions',
        columns: ['method', 'agent', 'address', 'signed_in_at', 'seen_at', 'id'],
        summary: "lists your browser sessions, or a user's",
      },
      'end-browser': { does: 'DELETE /api/auth/browser-sessions/{id}', takes: ID },
      'end-browsers': { does: 'DELETE /api/auth/browser-sessions', summary: "ends all of your browser sessions, or a user's" },
      grants: {
        does: 'GET /api/auth/grants',
        columns: ['client.name|client.client_id', 'resources', 'created_at', 'used_at', 'expires_at', 'id'],
        summary: 'lists what you, or a user, have allowed OAuth clients',
      },
      'end-grant': { does: 'DELETE /api/auth/grants/{id}', takes: ID },
    },
  },
  client: {
    about: 'OAuth clients that users have approved.',
    verbs: {
      list: { does: 'GET /api/clients', columns: ['name', 'kind', 'enabled', 'created_at', 'used_at', 'client_id', 'id'] },
      show: { does: 'GET /api/clients/{id}', takes: CLIENT },
      enable: {
        does: 'PUT /api/clients/{id}',
        takes: CLIENT,
        body: { enabled: true },
        summary: 'lets users approve a client again',
      },
      disable: {
        does: 'PUT /api/clients/{id}',
        takes: CLIENT,
        body: { enabled: false },
        summary: 'ends the grants of a client, which users can then no longer approve',
      },
      delete: { does: 'DELETE /api/clients/{id}', takes: CLIENT },
    },
  },
  provider: {
    about: "Companies' OpenID providers.",
    verbs: {
      list: { does: 'GET /api/providers', columns: ['name', 'title', 'preset', 'issuer', 'enabled', 'id'] },
      show: { does: 'GET /api/providers/{id}', takes: PROVIDER },
      create: { does: 'POST /api/providers', takes: { name: 'name' } },
      update: { does: 'PUT /api/providers/{id}', takes: PROVIDER },
      delete: { does: 'DELETE /api/providers/{id}', takes: PROVIDER },
      health: { does: 'GET /api/providers/{id}/health', takes: PROVIDER },
      check: {
        does: 'POST /api/providers/{id}/probe',
        takes: PROVIDER,
        summary: 'reads metadata and keys of a provider now, and shows its health',
      },
      scim: { does: 'GET /api/providers/{id}/scim', takes: PROVIDER },
      'create-scim-token': { does: 'POST /api/providers/{id}/scim/token', takes: PROVIDER },
      'revoke-scim-token': { does: 'DELETE /api/providers/{id}/scim/token', takes: PROVIDER },
    },
  },
  right: {
    about: 'Rights of administration that administrators have given.',
    verbs: {
      list: { does: 'GET /api/rights', columns: ['subject_type', 'subject_value', 'right', 'owner', 'created_at', 'id'] },
      take: { does: 'DELETE /api/rights/{id}', takes: ID },
    },
  },
  credential: {
    about: 'The credentials with which the gateway calls targets. Nothing shows their values.',
    verbs: {
      list: {
        does: 'GET /api/targets/{id}/credentials',
        takes: TARGET,
        columns: ['subject_type', 'subject_value', 'type', 'name', 'usable', 'supplied_by', 'updated_at'],
      },
      own: {
        does: 'GET /api/credentials',
        summary: 'lists the credentials that you may supply yourself',
        columns: ['target', 'type', 'name', 'set', 'updated_at'],
      },
      'set-own': {
        does: 'PUT /api/credentials/{target}/{name}',
        takes: { 'target-name': 'target', name: 'name' },
        summary: 'sets your own value',
      },
      'delete-own': {
        does: 'DELETE /api/credentials/{target}/{name}',
        takes: { 'target-name': 'target', name: 'name' },
        summary: 'deletes your own value',
      },
    },
  },
  connection: {
    about: 'Your own accounts at targets.',
    verbs: {
      list: {
        does: 'GET /api/connections',
        summary: 'lists your own accounts at targets, and the targets that need one',
        columns: ['target', 'issuer', 'scopes', 'problem', 'connected_at', 'connect_url', 'id'],
      },
      delete: { does: 'DELETE /api/connections/{id}', takes: ID, summary: 'disconnects your own account' },
    },
  },
  log: {
    about: 'The audit log: every decision of the gateway.',
    verbs: {
      show: { does: 'GET /api/logs/{id}', takes: { id: 'id' } },
      count: {
        does: 'GET /api/logs/counts',
        rows: 'counts',
        columns: ['hour', 'policy_id', 'target_id', 'allowed', 'denied', 'unmatched'],
      },
      demand: {
        does: 'GET /api/logs/demand',
        rows: 'demand',
        columns: [
          'denials',
          'user_count',
          'target_name',
          'resource_type',
          'resource_name',
          'last.created_at',
          'last.policy_name|last.reason',
        ],
        summary: 'lists what was denied, the most frequent first',
      },
      denials: {
        does: 'GET /api/logs/denials',
        limit: 100,
        columns: ['created_at', 'target_name', 'method', 'resource_name', 'id'],
        summary: 'lists what was denied to you, newest first',
      },
      checkpoint: { does: 'GET /api/logs/checkpoint' },
      verification: { does: 'GET /api/logs/verification' },
      erase: { does: 'POST /api/logs/erase', takes: { user: 'user_id' } },
    },
  },
  change: {
    about: 'The log of administrative changes.',
    verbs: {
      list: {
        does: 'GET /api/changes',
        limit: 100,
        columns: ['sequence', 'created_at', 'actor.email|actor.id', 'action', 'object_type', 'object_id', 'override', 'reason'],
      },
    },
  },
  key: {
    about: 'The keys that sign tokens.',
    verbs: {
      list: {
        does: 'GET /.well-known/jwks.json',
        rows: 'keys',
        columns: ['kid', 'alg', 'kty', 'use'],
        summary: 'lists the public keys',
      },
      status: {
        does: 'GET /api/keys',
        columns: ['kid', 'created_at', 'retired_at', 'api_tokens'],
        summary: 'shows since when each key signs or signs no more, and how many API tokens it signed are valid',
      },
      rotate: { does: 'POST /api/keys/rotate' },
    },
  },
  replica: {
    about: 'The replicas of the gateway.',
    verbs: {
      list: {
        does: 'GET /api/status',
        rows: 'replicas',
        columns: ['this', 'started_at', 'seen_ms_ago', 'sequence', 'revision', 'lag', 'id'],
      },
    },
  },
};

/** Operations without a command of a noun, and why. */
export const LEFT_OUT: Readonly<Record<string, string>> = {
  listPolicies: 'portcullis policies export writes every policy into a file',
  listPoliciesInOrder: 'for the console; portcullis policies lint and explain name what the order does',
  getPolicy: 'portcullis policies export writes every policy into a file',
  ...Object.fromEntries(
    ['createPolicy', 'updatePolicy', 'deletePolicy', 'addPolicySubject', 'removePolicySubject'].map((id) => [
      id,
      'portcullis policies apply changes policies as files, with their tests',
    ]),
  ),
  ...Object.fromEntries(['listOwners', 'getOwner', 'setOwner', 'deleteOwner'].map((id) => [id, 'portcullis owner has them'])),
  register: 'the account page registers people; portcullis user create makes users',
  logIn: 'portcullis login signs in without giving the password to the command line',
  logOut: 'portcullis logout ends the login of the command line',
  changePassword: 'the account page changes a password, and the command line must not see it',
  reportVerification: 'portcullis audit verify --report sends what it found',
  reproduceDecision: 'portcullis audit reproduce makes a decision again with its own engine',
  getRego: 'portcullis bundle contains the rules',
  getHome: 'for browsers',
  getOpenApi: 'for programs',
  getLiveness: 'for orchestrators',
  getReadiness: 'for orchestrators',
  getMetrics: 'for Prometheus',
  getAuthorizationServer: 'for OAuth clients',
  getOpenIdConfiguration: 'for OAuth clients',
  getResourceMetadata: 'for MCP clients',
  getMcpMetadata: 'for MCP clients',
  getTargetMetadata: 'for MCP clients',
};
