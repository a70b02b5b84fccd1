import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { ASKABLE } from '../../src/protocol/capabilities.ts';
import { isRedirectingVariable, isSteeringVariable, readCredential } from '../../src/targets/credential-document.ts';
import { changedDocument, extensionMethodProblem, readTarget, readTargetUpdate } from '../../src/targets/document.ts';
import type { Target } from '../../src/targets/target.ts';

const paths = (work: () => unknown): string[] => {
  try {
    work();
  } catch (error) {
    if (error instanceof AppError) return (error.errors ?? []).map(({ path }) => path).sort();
    throw error;
  }
  return [];
};
const target = (over: object = {}) => ({ name: 'everything', url: 'https://mcp.example.com/mcp', ...over });

test('a target has defaults', (t) => {
  t.deepEqual(readTarget(target()), {
    name: 'everything',
    description: null,
    transport: 'streamable-http',
    url: 'https://mcp.example.com/mcp',
    enabled: true,
    denials: 'shown',
    may_ask: ASKABLE,
    extension_methods: [],
    user_credentials: [],
    capture_arguments: null,
    own_accounts: null,
    timeout_ms: null,
  });
  t.deepEqual(readTarget({ name: 'local', transport: 'stdio', command: '/bin/server' }), {
    name: 'local',
    description: null,
    transport: 'stdio',
    command: '/bin/server',
    args: [],
    cwd: null,
    env: {},
    isolation: 'per_user',
    enabled: true,
    denials: 'shown',
    may_ask: ASKABLE,
    extension_methods: [],
    user_credentials: [],
    capture_arguments: null,
    own_accounts: null,
    timeout_ms: null,
  });
  t.deepEqual(readTargetUpdate({ enabled: false }), { enabled: false });
});

for (const url of [
  'http://localhost:3001/mcp',
  'http://127.0.0.1/',
  'http://[::1]:8080/mcp?x=@a',
  'https://example.com',
  'HTTPS://EXAMPLE.com/a/b@c',
  `https://example.com/${'x'.repeat(2028)}`,
]) {
  test(`accepted: ${url.slice(0, 60)}`, (t) => t.like(readTarget(target({ url })), { url }));
}

for (const url of [
  '',
  'mcp.example.com',
  '/mcp',
  'ftp://example.com/',
  'file:///etc/passwd',
  'javascript:alert(1)',
  'http:example.com',
  'http:///example.com',
  'http://user@example.com/',
  'http://user:secret@example.com/',
  'http://@example.com/',
  'http://example.com\\@evil.example/',
  'http://example.com/#',
  'http://example.com/#a',
  ' http://example.com/',
  'http://example.com/a b',
  'http://exa\tmple.com/',
  'http://ex\u00e4mple.com/',
  'http://example.com:99999/',
  `https://example.com/${'x'.repeat(2029)}`,
]) {
  test(`refused: ${JSON.stringify(url).slice(0, 60)}`, (t) =>
    t.deepEqual(
      paths(() => readTarget(target({ url }))),
      ['url'],
    ));
}

test('an error names each wrong member of a target', (t) => {
  for (const name of ['', 'A', 'a_b', '-a', '1a', 'a.b', 'a/b', 'x'.repeat(64), 'é', 5, null]) {
    t.deepEqual(
      paths(() => readTarget(target({ name }))),
      ['name'],
      String(name),
    );
  }
  t.deepEqual(
    paths(() => readTarget(target({ transport: 'http', enabled: 1, description: 'a\u0000', more: 1 }))),
    ['description', 'enabled', 'more', 'transport'],
  );
  t.deepEqual(
    paths(() => readTarget({})),
    ['name', 'url'],
  );
  t.deepEqual(
    paths(() => readTarget(target({ command: 'node' }))),
    ['command'],
  );
});

test('each transport has its own members', (t) => {
  const stdio = (over: object = {}) => ({ name: 'local', transport: 'stdio', command: '/bin/server', ...over });
  t.like(readTarget(target({ transport: 'sse' })), { transport: 'sse', url: 'https://mcp.example.com/mcp' });
  for (const [body, wrong] of [
    [target({ command: '/bin/x', args: [], cwd: null, env: {}, isolation: 'shared' }), 'args,command,cwd,env,isolation'],
    [stdio({ url: 'https://mcp.example.com/' }), 'url'],
    [{ name: 'local', transport: 'stdio' }, 'command'],
    [{ name: 'local', transport: 'sse' }, 'url'],
    [stdio({ command: 'server' }), 'command'],
    [stdio({ command: './server' }), 'command'],
    [stdio({ command: '/bin/a\u0000b' }), 'command'],
    [stdio({ command: '' }), 'command'],
    [stdio({ cwd: 'tmp' }), 'cwd'],
    [stdio({ isolation: 'per_session' }), 'isolation'],
    [stdio({ args: Array(65).fill('x') }), 'args'],
    [stdio({ args: ['ok', 'x'.repeat(4097)] }), 'args.1'],
    [stdio({ args: ['a\nb'] }), 'args.0'],
    [stdio({ args: [5] }), 'args.0'],
    [stdio({ args: '-x' }), 'args'],
    [stdio({ env: [] }), 'env'],
    [stdio({ env: { A: 1 } }), 'env'],
    [stdio({ env: { '1A': 'x' } }), 'env'],
    [stdio({ env: { 'A=B': 'x' } }), 'env'],
    [stdio({ env: { Ä: 'x' } }), 'env'],
    [stdio({ env: { '': 'x' } }), 'env'],
    [stdio({ env: JSON.parse('{"__proto__":"x"}') }), 'env'],
    [stdio({ env: { A: 'a\u0000' } }), 'env'],
    [stdio({ env: { A: 'x'.repeat(8193) } }), 'env'],
    [stdio({ env: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`A${i}`, 'x'])) }), 'env'],
    [stdio({ user_credentials: [{ type: 'bearer' }] }), 'user_credentials.0.type'],
    [target({ user_credentials: [{ type: 'env', name: 'TOKEN' }] }), 'user_credentials.0.type'],
  ] as const) {
    t.is(paths(() => readTarget(body)).join(), wrong, JSON.stringify(body).slice(0, 100));
  }
  const env = { LD_PRELOAD: '/lib/mine.so', constructor: 'x', EMPTY: '', LINES: 'a\nb' };
  const whole = stdio({ args: ['', '-x', 'ä b'], cwd: '/srv', env, isolation: 'per_group' });
  t.like(readTarget(whole), whole);
});

test('each option has its limits', (t) => {
  const method = (over: object = {}) => ({ method: 'acme/run', resource_type: 'tool', param: 'name', ...over });
  t.like(readTarget(target({ denials: 'hidden', may_ask: [], extension_methods: [method()] })), {
    denials: 'hidden',
    may_ask: [],
    extension_methods: [method()],
  });
  for (const [over, wrong] of [
    [{ denials: 'maybe' }, 'denials'],
    [{ may_ask: ['sampling', 'sampling'] }, 'may_ask.1'],
    [{ may_ask: ['everything'] }, 'may_ask.0'],
    [{ extension_methods: [method(), method({ param: 'other' })] }, 'extension_methods.1'],
    [{ extension_methods: [method({ resource_type: 'all' })] }, 'extension_methods.0.resource_type'],
    [{ extension_methods: [method({ param: '__proto__' })] }, 'extension_methods.0.param'],
    [{ extension_methods: [method({ param: '_meta' })] }, 'extension_methods.0.param'],
    [{ extension_methods: [method({ param: 'a.b' })] }, 'extension_methods.0.param'],
    [{ extension_methods: [method({ more: 1 })] }, 'extension_methods.0.more'],
    [{ extension_methods: Array.from({ length: 65 }, (_, i) => method({ method: `acme/m${i}` })) }, 'extension_methods'],
  ] as const) {
    t.is(paths(() => readTarget(target(over))).join(), wrong, JSON.stringify(over).slice(0, 100));
  }
  for (const name of ['acme/run', 'resources/directory/read', 'skills/get', 'a/B_9-x/y'])
    t.is(extensionMethodProblem(name), null, name);
  for (const name of [
    ...['initialize', 'ping', 'acme', 'Acme/run', 'acme/', '/run', 'acme//run', 'acme/r n', 'acme/run\n', '$/cancel', 'a1/b'],
    ...[
      'tools/list',
      'tools/call',
      'resources/templates/list',
      'server/discover',
      'completion/complete',
      'tasks/get',
      'tasks/list',
    ],
    ...['sampling/createMessage', 'elicitation/create', 'roots/list', 'notifications/cancelled', 'notifications/acme'],
  ]) {
    t.not(extensionMethodProblem(name), null, name);
  }
});

test('users cannot supply a variable that steers a process', (t) => {
  const supplied = (type: string, name?: string) =>
    readTarget(
      type === 'env'
        ? { name: 'a', transport: 'stdio', command: '/bin/x', user_credentials: [{ type, name }] }
        : target({ user_credentials: [{ type, name }] }),
    ).user_credentials;
  t.deepEqual(supplied('bearer'), [{ type: 'bearer', name: 'authorization' }]);
  t.deepEqual(supplied('bearer', 'authorization'), [{ type: 'bearer', name: 'authorization' }]);
  t.deepEqual(supplied('header', 'X-Key'), [{ type: 'header', name: 'x-key' }]);
  for (const name of [
    'GITHUB_TOKEN',
    'API_KEY',
    'constructor',
    'toString',
    'NPM_TOKEN',
    'GOOGLE_KEY',
    'ENVIRONMENT',
    'ANSIBLE_VAULT_PASSWORD',
  ]) {
    t.deepEqual(supplied('env', name), [{ type: 'env', name }]);
  }
  for (const name of [
    ...['LD_PRELOAD', 'LD_LIBRARY_PATH', 'DYLD_INSERT_LIBRARIES', 'NODE_OPTIONS', 'node_options', 'NODE_PATH', 'PATH', 'HOME'],
    ...['PYTHONSTARTUP', 'PYTHONPATH', 'PERL5OPT', 'RUBYOPT', 'JAVA_TOOL_OPTIONS', '_JAVA_OPTIONS', 'BASH_ENV', 'ENV', 'IFS'],
    ...['HTTPS_PROXY', 'all_proxy', 'SSL_CERT_FILE', 'GIT_SSH_COMMAND', 'npm_config_registry', 'GCONV_PATH', 'TMPDIR'],
    ...['HOSTALIASES', 'LOCALDOMAIN', 'RES_OPTIONS', 'AWS_CA_BUNDLE', 'GIT_SSL_CAINFO', 'PGSSLMODE', 'SSLKEYLOGFILE', 'WGETRC'],
    ...[
      'GH_PAGER',
      'AWS_PAGER',
      'MANPAGER',
      'GH_EDITOR',
      'RSYNC_RSH',
      'SVN_SSH',
      'SUDO_ASKPASS',
      'MYSQL_HOME',
      'GRADLE_USER_HOME',
    ],
    ...[
      'AWKLIBPATH',
      'TCLLIBPATH',
      'VIMINIT',
      'TF_CLI_ARGS',
      'TF_CLI_ARGS_plan',
      'MAVEN_ARGS',
      'GIO_EXTRA_MODULES',
      'HELM_PLUGINS',
    ],
    ...['ANSIBLE_LIBRARY', 'ANSIBLE_ROLES_PATH', 'ELECTRON_RUN_AS_NODE', 'LDAPRC', 'SASL_PATH', 'OCI_CLI_RC_FILE'],
    ...['RUSTC_WRAPPER', 'MAKEFLAGS', 'LESSOPEN', 'ERL_FLAGS', 'MAVEN_OPTS', 'TS_NODE_COMPILER', 'ODBCINI', 'PROXY'],
  ]) {
    t.true(isSteeringVariable(name), name);
    t.is(paths(() => supplied('env', name)).join(), 'user_credentials.0.name', name);
  }
  for (const [type, name] of [
    ['env', '__proto__'],
    ['env', 'A=B'],
    ['env', undefined],
    ['header', 'Host'],
    ['header', 'mcp-session-id'],
    ['header', undefined],
    ['bearer', 'x-key'],
  ] as const) {
    t.is(paths(() => supplied(type, name)).join(), 'user_credentials.0.name', `${type} ${name}`);
  }
  const both = [{ type: 'bearer' }, { type: 'header', name: 'Authorization' }];
  t.is(paths(() => readTarget(target({ user_credentials: both }))).join(), 'user_credentials.1');
});

test('a variable that names a host, a service or a settings file redirects the other credentials', (t) => {
  for (const name of [
    'GITHUB_HOST',
    'PGHOST',
    'PGSERVICEFILE',
    'ETCDCTL_ENDPOINTS',
    'ZENDESK_SUBDOMAIN',
    'DD_SITE',
    'TNS_ADMIN',
    'NETRC',
    ...[
      'KAFKA_BROKERS',
      'BOOTSTRAP_SERVERS',
      'ELASTICSEARCH_HOSTS',
      'BASEURL',
      'DBHOST',
      'URLS',
      'AZURE_TENANT_ID',
      'AWS_REGION',
    ],
    ...['ES_CLOUD_ID', 'AZURE_CLOUD', 'GITLAB_API', 'SHOPIFY_STORE', 'SUPABASE_PROJECT_REF', 'OKTA_ORG', 'PINECONE_ENVIRONMENT'],
    ...['AZURE_STORAGE_CONNECTION_STRING', 'SNOWFLAKE_ACCOUNT', 'API_ROOT', 'GOOGLE_APPLICATION_CREDENTIALS'],
  ])
    t.true(isRedirectingVariable(name), name);
  for (const name of ['PGPASSWORD', 'PGUSER', 'API_KEY', 'WEBSITE_TOKEN', 'MYSQL_ROOT_PASSWORD', 'AZURE_STORAGE_ACCOUNT_KEY'])
    t.false(isRedirectingVariable(name), name);
});

test('an update keeps omitted members, and changes the transport only together with its members', (t) => {
  const times = { created_at: 1, updated_at: 2 };
  const http: Target = { ...readTarget(target({ user_credentials: [{ type: 'bearer' }] })), id: 'x', ...times };
  const process = { name: 'local', transport: 'stdio', command: '/bin/a', args: ['x'], env: { A: 'b' }, cwd: '/srv' };
  const stdio: Target = { ...readTarget({ ...process, isolation: 'shared' }), id: 'y', ...times };
  const change = (before: Target, update: object) => changedDocument(before, readTargetUpdate(update));
  t.like(change(http, { enabled: false }), { enabled: false, url: 'https://mcp.example.com/mcp' });
  t.like(change(http, { transport: 'sse' }), { transport: 'sse', url: 'https://mcp.example.com/mcp' });
  const capturing = { ...http, capture_arguments: { mask: ['a'] } };
  t.like(change(capturing, { enabled: false }), { capture_arguments: { mask: ['a'] } });
  t.like(change(capturing, { capture_arguments: null }), { capture_arguments: null });
  t.like(change(stdio, { command: '/bin/b' }), { command: '/bin/b', args: ['x'], cwd: '/srv', isolation: 'shared' });
  t.deepEqual(change(stdio, { transport: 'sse', url: 'http://a.example/' }), {
    ...{ name: 'local', description: null, transport: 'sse', url: 'http://a.example/', enabled: true },
    ...{
      denials: 'shown',
      may_ask: ASKABLE,
      extension_methods: [],
      user_credentials: [],
      capture_arguments: null,
      own_accounts: null,
      timeout_ms: null,
    },
  });
  t.like(change(http, { transport: 'stdio', command: '/bin/b', user_credentials: [] }), {
    command: '/bin/b',
    args: [],
    cwd: null,
  });
  for (const [before, update, wrong] of [
    [http, { transport: 'stdio', user_credentials: [] }, 'command'],
    [http, { transport: 'stdio', command: '/bin/b' }, 'user_credentials.0.type'],
    [http, { command: '/bin/b', args: [] }, 'args,command'],
    [http, { transport: 'stdio', command: '/bin/b', url: 'http://a.example/' }, 'url'],
    [stdio, { transport: 'sse' }, 'url'],
    [stdio, { url: 'http://a.example/' }, 'url'],
    [stdio, { transport: 'sse', url: 'http://a.example/', env: {} }, 'env'],
  ] as const) {
    t.is(paths(() => change(before, update)).join(), wrong, JSON.stringify(update));
  }
});

test('a credential is a bearer, a header or a variable of the right transport', (t) => {
  t.deepEqual(readCredential({ type: 'bearer', value: 'abc' }), { type: 'bearer', name: 'authorization', value: 'abc' });
  t.deepEqual(readCredential({ type: 'header', name: 'X-API-Key', value: 'a b~' }), {
    type: 'header',
    name: 'x-api-key',
    value: 'a b~',
  });
  t.deepEqual(readCredential({ type: 'env', name: 'Key', value: ' ä\n' }), { type: 'env', name: 'Key', value: ' ä\n' });
  for (const name of ['1A', 'A-B', 'A=B', '__proto__', '', 'é', 'x'.repeat(257), undefined]) {
    t.is(paths(() => readCredential({ type: 'env', name, value: 'v' })).join(), 'name', name);
  }
  for (const value of ['', 'a\u0000', '\ud800', 'x'.repeat(8193), 5]) {
    t.is(paths(() => readCredential({ type: 'env', name: 'A', value })).join(), 'value', String(value).slice(0, 10));
  }
});

for (const name of [
  ...['Host', 'connection', 'Keep-Alive', 'Transfer-Encoding', 'TE', 'Upgrade', 'trailer', 'Proxy-Authorization', 'expect'],
  ...['Content-Type', 'content-length', 'Mcp-Session-Id', 'mcp-anything', 'Cookie', 'set-cookie', 'Origin', 'accept'],
  ...['X-Forwarded-For', 'Last-Event-ID', 'a b', 'a:b', 'é', '', 'a\r\nb', 'x'.repeat(257)],
]) {
  test(`no credential may be set for ${JSON.stringify(name).slice(0, 40)}`, (t) =>
    t.deepEqual(
      paths(() => readCredential({ type: 'header', name, value: 'v' })),
      ['name'],
    ));
}

test('an error names each wrong member of a credential, and never shows its value', (t) => {
  for (const value of ['', ' a', 'a ', 'a\r\nb: c', 'a\u0000', 'é', 'x'.repeat(8193), 5, null]) {
    t.deepEqual(
      paths(() => readCredential({ type: 'bearer', value })),
      ['value'],
      String(value).slice(0, 20),
    );
  }
  const error = t.throws<AppError>(() => readCredential({ type: 'bearer', value: 'secret\u00e9' }));
  t.false(JSON.stringify([error?.message, error?.errors]).includes('secret'));
  t.deepEqual(
    paths(() => readCredential({ type: 'bearer', name: 'x', value: 'v' })),
    ['name'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'header', value: 'v' })),
    ['name'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'basic', value: 'v' })),
    ['type'],
  );
  t.deepEqual(
    paths(() => readCredential({ type: 'bearer', value: 'v', more: 1 })),
    ['more'],
  );
  t.deepEqual(
    paths(() => readCredential(undefined)),
    [''],
  );
});
