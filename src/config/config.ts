/** The configuration, read once from the environment. Nothing else reads `process.env`. */
import { isIP } from 'node:net';
import { homedir, hostname } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import Joi from 'joi';
import type { LogLevel } from '../base/log.ts';
import { isNetwork } from '../base/network/network-address.ts';
import { readAtMost } from '../base/read-at-most.ts';

/** Retention never removes a younger record. The configuration cannot change that. */
export const MIN_RETENTION_DAYS = 30;

export type DatabaseConfig =
  | { readonly kind: 'sqlite'; readonly path: string }
  | { readonly kind: 'mysql'; readonly url: string; readonly allowWeakDurability: boolean; readonly poolSize: number };

export type Config = ReturnType<typeof readConfig>;

type Variables = Readonly<Record<string, string | undefined>>;

const LOOPBACK_HOSTS = ['localhost', '127.0.0.1', '[::1]'];

/** Lists every mistake of the configuration, one line each. */
export class ConfigError extends Error {
  readonly mistakes: readonly string[];

  constructor(mistakes: readonly string[]) {
    super(mistakes.join('\n'));
    this.name = 'ConfigError';
    this.mistakes = mistakes;
  }
}

const items = (value: string): string[] =>
  value
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');
const each = (isOne: (item: string) => boolean) => (value: string, helpers: Joi.CustomHelpers) =>
  items(value).every(isOne) ? items(value) : helpers.error('any.invalid');
const hostNames = each((item) => /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)$/i.test(item));
const origin = (value: string, helpers: Joi.CustomHelpers) => {
  if (!URL.canParse(value)) return helpers.error('any.invalid');
  const url = new URL(value);
  if (
    !/^https?:$/.test(url.protocol) ||
    (url.pathname !== '/' && url.pathname !== '') ||
    url.search !== '' ||
    url.hash !== '' ||
    url.username !== ''
  ) {
    return helpers.error('any.invalid');
  }
  return url.origin;
};
const origins = (value: string, helpers: Joi.CustomHelpers) => {
  const read = items(value).map((item) => origin(item, helpers));
  return read.every((item) => typeof item === 'string') ? read : helpers.error('any.invalid');
};
const masterKey = (value: string, helpers: Joi.CustomHelpers) => {
  const bytes = Buffer.from(value, 'base64');
  return bytes.length === 32 && bytes.toString('base64') === value ? bytes : helpers.error('any.invalid');
};
const masterKeys = (value: string, helpers: Joi.CustomHelpers) => {
  const keys = items(value).map((item) => masterKey(item, helpers));
  return keys.every((key) => Buffer.isBuffer(key)) ? keys : helpers.error('any.invalid');
};
const networks = each(isNetwork);
const absolutePaths = each((item) => isAbsolute(item) && !/\p{Cc}/u.test(item));
const databaseUrl = (value: string, helpers: Joi.CustomHelpers) => {
  // A person who writes `sqlite::memory:` wants no file. As a path, it is one.
  if (/^sqlite:.+/.test(value)) return value === 'sqlite::memory:' ? helpers.error('any.invalid') : value;
  if (!URL.canParse(value)) return helpers.error('any.invalid');
  const { hostname, pathname, search, hash } = new URL(value);
  // An `@` after the host is from a password that contains a slash: error messages would show the rest of it as the database.
  const isMysql = value.startsWith('mysql://') && hostname !== '' && /^\/[^/@]+$/.test(pathname) && hash === '';
  // The driver can only check a certificate for a host name.
  const isSecured = search === '?tls=true' && isIP(hostname.replace(/^\[|\]$/g, '')) === 0;
  return isMysql && (search === '' || isSecured) ? value : helpers.error('any.invalid');
};

/** Returns milliseconds; NaN: the value is invalid. */
const freshnessMs = (value: string): number =>
  value === 'strict' ? 0 : Number(/^bounded:([1-9][0-9]{0,4})$/.exec(value)?.[1] ?? Number.NaN);
const freshness = (value: string, helpers: Joi.CustomHelpers) =>
  freshnessMs(value) <= 60_000 ? value : helpers.error('any.invalid');

/** The longest time that a timer of Node can wait. A longer timer fires at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** Each answer is kept in memory while it is read and filtered. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
const MAX_DAYS = 36_500;

/** One variable, or undefined for a variable that has no default. */
type Setting<T> = (name: string) => { readonly schema: Joi.Schema; readonly type?: T };

/** `what` completes the sentence "<name> must ...". */
const must =
  <T>(schema: Joi.Schema, what: string): Setting<T> =>
  (name) => ({
    schema: schema.messages({ '*': `${name} must ${what}` }),
  });
const whole = (min: number, max: number, byDefault: number, unit = ''): Setting<number> =>
  must(Joi.number().integer().min(min).max(max).default(byDefault), `be a number ${unit}from ${min} to ${max}`);
const limit = (byDefault: number): Setting<number> =>
  must(Joi.number().integer().min(1).default(byDefault), 'be a positive number');
const retentionDays = must<number>(
  Joi.number().integer().min(MIN_RETENTION_DAYS).max(MAX_DAYS).allow(0).default(0),
  `be 0 (rows are kept for ever) or a number of days from ${MIN_RETENTION_DAYS} to ${MAX_DAYS}`,
);
const flag = must<boolean>(Joi.boolean().default(false), 'be true or false');
const list = (read: Joi.CustomValidator, what: string): Setting<string[]> =>
  must(Joi.string().custom(read).default([]), `be ${what}, separated by commas`);
const oneOf = <T extends string>(...values: readonly [byDefault: T, ...T[]]): Setting<T> =>
  must(Joi.valid(...values).default(values[0]), `be ${values.slice(0, -1).join(', ')} or ${values.at(-1)}`);

/** All variables of the gateway. */
export const SETTINGS = {
  HOST: must<string>(Joi.string().hostname().default('127.0.0.1'), 'be a host name or an IP address'),
  PORT: whole(1, 65535, 8080),
  PUBLIC_URL: must<string | undefined>(
    Joi.string().custom(origin),
    'be an http or https origin such as https://gateway.example.com',
  ),
  REPLICA_URL: must<string | undefined>(Joi.string().custom(origin), 'be an http or https origin such as http://10.0.0.5:8080'),
  DATA_DIR: must<string>(Joi.string().default('data'), 'be the path of a folder'),
  DATABASE_URL: must<string | undefined>(
    Joi.string().custom(databaseUrl),
    'be sqlite:<file> (not :memory:) or mysql://user:password@host:port/database. The only option is ?tls=true, which needs a host name instead of an IP address. Write special characters of the password as %2F, %40, ...',
  ),
  DATABASE_POOL: whole(3, 100, 10),
  ALLOW_WEAK_DURABILITY: flag,
  MASTER_KEY: must<Buffer | undefined>(Joi.string().custom(masterKey), 'be 32 bytes in base64 (openssl rand -base64 32)'),
  MASTER_KEY_PREVIOUS: must<Buffer[]>(
    Joi.string().custom(masterKeys).default([]),
    'be keys of 32 bytes in base64, separated by commas',
  ),
  ALLOWED_HOSTS: list(hostNames, 'host names without ports'),
  ALLOWED_ORIGINS: list(origins, 'origins such as https://app.example.com'),
  REGISTRATION: oneOf('open', 'closed'),
  LOCAL_SIGN_IN: must<string>(
    Joi.string()
      .lowercase()
      .pattern(/^(on|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/)
      .default('on'),
    'be on, or the id of the only user who may sign in with a password (GET /api/users shows ids)',
  ),
  FIRST_ADMIN: oneOf('code', 'open'),
  TRUST_PROXY: flag,
  LOG_LEVEL: oneOf<LogLevel>('info', 'trace', 'debug', 'warn', 'error', 'silent'),
  LOGIN_RATE_LIMIT: limit(60),
  MCP_RATE_LIMIT: limit(6000),
  API_RATE_LIMIT: limit(6000),
  CHANGE_RATE_LIMIT: limit(30),
  API_TOKEN_LIMIT: limit(100),
  CLIENT_REGISTRATION: oneOf('open', 'closed'),
  CLIENT_REGISTRATION_RATE_LIMIT: limit(20),
  OAUTH_RATE_LIMIT: limit(600),
  OAUTH_DOCUMENT_ADDRESSES: list(networks, 'addresses or networks such as 10.1.0.0/16'),
  DENIAL_RATE_LIMIT: limit(600),
  FRESHNESS: must<string>(
    Joi.string().custom(freshness).default('strict'),
    'be strict, or bounded:<milliseconds> with 1 to 60000',
  ),
  AUDIT_RETENTION_DAYS: retentionDays,
  CHANGES_RETENTION_DAYS: retentionDays,
  AUDIT_CHECKPOINTS: must<string | undefined>(Joi.string(), 'be the path of a file'),
  AUDIT_CHECKPOINT_MINUTES: whole(1, 1440, 10),
  UPSTREAM_TIMEOUT_MS: whole(100, MAX_TIMER_MS, 600_000),
  UPSTREAM_ANSWER_BYTES: whole(64 * 1024, MAX_ANSWER_BYTES, 16_777_216),
  UPSTREAM_ALLOWED_ADDRESSES: list(networks, 'addresses or networks such as 169.254.7.0/24'),
  STDIO_ALLOWED: list(absolutePaths, 'absolute paths of executables'),
  STDIO_MAX_PROCESSES: whole(1, 100_000, 100),
  STDIO_IDLE_MS: whole(1_000, MAX_TIMER_MS, 600_000),
  STDIO_LIFETIME_MS: whole(1_000, MAX_TIMER_MS, 86_400_000),
  METRICS_TOKEN: must<string | undefined>(
    Joi.string().pattern(/^[A-Za-z0-9._~+/-]{16,256}=*$/),
    'be 16 to 256 letters, digits and -._~+/ (openssl rand -hex 24)',
  ),
  DRAIN_DELAY_MS: whole(0, 600_000, 5_000, 'of milliseconds '),
  DRAIN_MS: whole(0, 86_400_000, 10_000, 'of milliseconds '),
};

type Values<S> = { readonly [K in keyof S]: S[K] extends Setting<infer T> ? T : never };

/** Throws ConfigError with all mistakes at once. Ignores unknown variables, because an environment has many. */
function readSettings<S extends Readonly<Record<string, Setting<unknown>>>>(
  settings: S,
  variables: Variables,
  mistakes: readonly string[] = [],
): Values<S> {
  const schema = Joi.object(Object.fromEntries(Object.entries(settings).map(([name, setting]) => [name, setting(name).schema])));
  const set = Object.fromEntries(Object.entries(variables).filter(([, value]) => value !== undefined && value !== ''));
  const { value, error } = schema.validate(set, { abortEarly: false, stripUnknown: true });
  const all = [...mistakes, ...(error?.details ?? []).map((detail) => detail.message)];
  if (all.length > 0) throw new ConfigError([...new Set(all)]);
  return value;
}

const isLoopback = (host: string): boolean =>
  host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));

const isAnyAddress = (host: string): boolean => host === '0.0.0.0' || host === '::';

const urlHost = (host: string): string => (isIP(host) === 6 ? `[${host}]` : host);

/** Variables with secrets. `<name>_FILE` can name a file with the value instead, as Docker and Kubernetes mount it. */
const FROM_FILES = ['MASTER_KEY', 'MASTER_KEY_PREVIOUS', 'DATABASE_URL', 'METRICS_TOKEN'] as const;

/** Larger than any secret. */
const MAX_SECRET_BYTES = 64 * 1024;

/** Returns the variables, with the values from the files. */
function readFiles(environment: Variables): { readonly variables: Variables; readonly mistakes: readonly string[] } {
  const variables: Record<string, string | undefined> = { ...environment };
  const mistakes: string[] = [];
  for (const name of FROM_FILES) {
    const file = environment[`${name}_FILE`];
    if (file === undefined || file === '') continue;
    if (environment[name] !== undefined && environment[name] !== '')
      mistakes.push(`${name} and ${name}_FILE must not both be set`);
    try {
      const value = readAtMost(file, MAX_SECRET_BYTES)?.replace(/[\r\n]+$/, '');
      if (value === undefined) mistakes.push(`${name}_FILE must name a file with at most ${MAX_SECRET_BYTES} bytes`);
      // An empty variable counts as unset, so the gateway would use a different key or database.
      if (value === '') mistakes.push(`${name}_FILE must name a file that is not empty`);
      variables[name] = value;
    } catch (error) {
      mistakes.push(`${name}_FILE must name a file that the gateway can read (${(error as NodeJS.ErrnoException).code})`);
    }
  }
  return { variables, mistakes };
}

/** Throws ConfigError with all mistakes at once. */
export function readConfig(environment: Variables) {
  const { variables, mistakes } = readFiles(environment);
  const env = readSettings(SETTINGS, variables, mistakes);

  const dataDir = resolve(env.DATA_DIR);
  const ownName = isLoopback(env.HOST) ? env.HOST : '127.0.0.1';
  const publicUrl = env.PUBLIC_URL ?? `http://${urlHost(ownName)}:${env.PORT}`;
  const publicName = new URL(publicUrl).hostname.replace(/^\[|\]$/g, '');
  const database: DatabaseConfig = env.DATABASE_URL?.startsWith('mysql:')
    ? { kind: 'mysql', url: env.DATABASE_URL, allowWeakDurability: env.ALLOW_WEAK_DURABILITY, poolSize: env.DATABASE_POOL }
    : { kind: 'sqlite', path: resolve(env.DATABASE_URL?.slice('sqlite:'.length) ?? `${dataDir}/portcullis.db`) };

  return Object.freeze({
    host: env.HOST,
    port: env.PORT,
    /** The origin at which clients reach the gateway, without a trailing slash. */
    publicUrl,
    /** The origin at which the other replicas reach this one. */
    replicaUrl: env.REPLICA_URL ?? `http://${urlHost(isAnyAddress(env.HOST) ? hostname() : env.HOST)}:${env.PORT}`,
    database,
    /** The folder for the SQLite file and, unless `masterKey` is given, for the master key file. */
    dataDir,
    /** 32 bytes; null: the gateway uses `<dataDir>/master.key`, and creates it if it is missing. */
    masterKey: env.MASTER_KEY ?? null,
    /** Keys under which values may still be sealed. The gateway re-encrypts them under `masterKey` when it starts. */
    previousMasterKeys: env.MASTER_KEY_PREVIOUS,
    /** Host names, without a port, that the Host header of a request may have. */
    allowedHosts: [...LOOPBACK_HOSTS, new URL(publicUrl).hostname, ...env.ALLOWED_HOSTS],
    /** Origins (scheme, host, port) from which browsers may call. */
    allowedOrigins: [new URL(publicUrl).origin, ...env.ALLOWED_ORIGINS],
    registration: env.REGISTRATION,
    /** `on`: every local account may sign in. Otherwise the id of the only user with a local account who may. */
    localSignIn: env.LOCAL_SIGN_IN,
    /** Whether the first registration needs the setup code. Through a proxy, outsiders can reach the loopback address, too. */
    setupCodeRequired: env.FIRST_ADMIN === 'code' && !(isLoopback(env.HOST) && isLoopback(publicName) && !env.TRUST_PROXY),
    trustProxy: env.TRUST_PROXY,
    logLevel: env.LOG_LEVEL,
    rateLimits: {
      /** Registrations and logins per minute and IP address. */
      login: env.LOGIN_RATE_LIMIT,
      /** Requests on `/mcp` per minute, principal and IP address. */
      mcp: env.MCP_RATE_LIMIT,
      /** Requests to the REST API per minute, principal and IP address. */
      api: env.API_RATE_LIMIT,
      /** API tokens that a user may make per minute, and own credentials that a user may set or delete per minute. */
      changes: env.CHANGE_RATE_LIMIT,
      /** API tokens that a user may have. */
      apiTokens: env.API_TOKEN_LIMIT,
      /** Requests to the authorization server per minute and IP address. */
      oauth: env.OAUTH_RATE_LIMIT,
      /** Registrations of OAuth clients and documents of clients per minute and IP address; codes for devices have the same, counted apart. */
      registration: env.CLIENT_REGISTRATION_RATE_LIMIT,
      /** Denials per minute and principal. Beyond this, requests of the principal are refused without a decision. */
      denials: env.DENIAL_RATE_LIMIT,
    },
    oauth: {
      /** Whether OAuth clients may register themselves. */
      registration: env.CLIENT_REGISTRATION === 'open',
      /** Networks that are not public, from which metadata documents of clients may be read. */
      documentAddresses: env.OAUTH_DOCUMENT_ADDRESSES,
    },
    /** How many days changes are kept, except changes of policies; 0: for ever. */
    changesRetentionDays: env.CHANGES_RETENTION_DAYS,
    audit: {
      /** How many days rows are kept; 0: for ever. */
      retentionDays: env.AUDIT_RETENTION_DAYS,
      /** The file to which signed checkpoints are appended. */
      checkpoints: resolve(env.AUDIT_CHECKPOINTS ?? `${dataDir}/checkpoints.jsonl`),
      checkpointMinutes: env.AUDIT_CHECKPOINT_MINUTES,
    },
    /** How old the state of a decision may be, in milliseconds; 0: at least as new as the request. */
    freshnessMs: freshnessMs(env.FRESHNESS),
    /** How long a target may be silent during a request, in milliseconds. A target may have its own value. */
    upstreamTimeoutMs: env.UPSTREAM_TIMEOUT_MS,
    /** Largest answer of a target, and largest single event or line, in bytes. */
    upstreamAnswerBytes: env.UPSTREAM_ANSWER_BYTES,
    /** Addresses and networks that targets may have although the gateway denies them by default. */
    allowedAddresses: env.UPSTREAM_ALLOWED_ADDRESSES,
    stdio: {
      /** The absolute paths of the executables that stdio targets may run, compared byte for byte. */
      allowed: env.STDIO_ALLOWED,
      /** How many processes of targets may run at a time. */
      maxProcesses: env.STDIO_MAX_PROCESSES,
      /** How long a process may be idle, and how long it may run, in milliseconds. */
      idleMs: env.STDIO_IDLE_MS,
      lifetimeMs: env.STDIO_LIFETIME_MS,
    },
    /** The bearer token of Prometheus, accepted from any host; null: no such token is accepted. */
    metricsToken: env.METRICS_TOKEN ?? null,
    /** How long the gateway still accepts requests after SIGTERM, while it reports that it is not ready, in milliseconds. */
    drainDelayMs: env.DRAIN_DELAY_MS,
    /** How long open requests may take after the gateway stops accepting new ones, in milliseconds. */
    drainMs: env.DRAIN_MS,
  });
}

/** The configuration of this process. */
export function configFromProcess(): Config {
  return readConfig(process.env);
}

const CLIENT_SETTINGS = {
  PORTCULLIS_URL: (): ReturnType<Setting<string>> =>
    must<string>(
      Joi.string().custom(origin).default('http://127.0.0.1:8080'),
      'be an http or https origin such as https://gateway.example.com',
    )('PORTCULLIS_URL (or --server)'),
  // The token goes only into the Authorization header, and never into a message.
  PORTCULLIS_TOKEN: (): ReturnType<Setting<string | undefined>> => ({
    schema: Joi.string()
      .pattern(/^[\w-]+\.[\w-]+\.[\w-]+$/)
      .messages({ '*': 'PORTCULLIS_TOKEN is not a token: set it to an API token from POST /api/auth/tokens' }),
  }),
};

/** The folder of a user that has no folder, for example in a container with the number of a user, as container runtimes name it. */
const NO_HOME = '/';

function homeFolder(): string {
  try {
    return homedir();
  } catch {
    return NO_HOME;
  }
}

/**
 * Returns the URL and the token with which the `portcullis` command calls a gateway, and the folder of its logins. `server` takes
 * precedence over `PORTCULLIS_URL`. Throws ConfigError with all mistakes at once.
 */
export function readClientConfig(environment: Variables, server: string | undefined) {
  const { PORTCULLIS_URL: url, PORTCULLIS_TOKEN: token, XDG_CONFIG_HOME = '' } = environment;
  const variables = { PORTCULLIS_URL: (server ?? url)?.trim(), PORTCULLIS_TOKEN: token?.trim() };
  const env = readSettings(CLIENT_SETTINGS, variables);
  // The specification of this variable says to ignore relative paths.
  const folder = isAbsolute(XDG_CONFIG_HOME) ? XDG_CONFIG_HOME : join(homeFolder(), '.config');
  return { url: env.PORTCULLIS_URL, token: env.PORTCULLIS_TOKEN ?? null, logins: join(folder, 'portcullis', 'logins') };
}

/** Where this machine has programs and settings. `appData`: on Windows. */
export function readMachine({ PATH = '', HOME, APPDATA, XDG_CONFIG_HOME = '' }: Variables) {
  const home = HOME !== undefined && isAbsolute(HOME) ? HOME : homeFolder();
  return {
    path: PATH,
    home,
    settings: isAbsolute(XDG_CONFIG_HOME) ? XDG_CONFIG_HOME : join(home, '.config'),
    appData: APPDATA ?? join(home, 'AppData', 'Roaming'),
  };
}

export const machineFromProcess = () => readMachine(process.env);

/** Lets stdio targets of this process run these executables, too, as if STDIO_ALLOWED had named them. */
export function allowCommands(paths: readonly string[]): void {
  process.env['STDIO_ALLOWED'] = [...items(process.env['STDIO_ALLOWED'] ?? ''), ...paths].join(',');
}

export function clientConfigFromProcess(server: string | undefined) {
  return readClientConfig(process.env, server);
}
