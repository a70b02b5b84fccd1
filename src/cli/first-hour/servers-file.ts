/** Reads the servers in the configuration file of an MCP client, as targets and their credentials. Pure. */
import { isObject, type JsonObject, type JsonValue, readJsonText } from '../../base/json/json.ts';
import { isRedirectingVariable, variableProblem } from '../../targets/credential-document.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { CommandError } from '../command.ts';

/** A header or variable of the server. `value` may be secret: it is never printed. */
export interface Secret {
  readonly type: 'bearer' | 'header' | 'env';
  readonly name: string;
  readonly value: string;
}

export type Read =
  | {
      readonly transport: 'streamable-http' | 'sse';
      readonly url: string;
      readonly secrets: readonly Secret[];
    }
  | {
      readonly transport: 'stdio';
      readonly command: string;
      readonly args: readonly string[];
      readonly cwd: string | null;
      /** Variables whose values may be seen. */
      readonly env: Readonly<Record<string, string>>;
      readonly secrets: readonly Secret[];
    };

export interface FoundServer {
  /** The name in the file. */
  readonly title: string;
  /** The name of the target. */
  readonly name: string;
  readonly server: Read | null;
  /** Why the server cannot be a target; null: it can. */
  readonly problem: string | null;
  /** Names of values that the file does not contain, such as `${TOKEN}`. */
  readonly missing: readonly string[];
}

const MAX_SERVERS = 200;
const KEYS = ['mcpServers', 'servers'] as const;

/** Throws CommandError if the text is not such a file. */
export function readServers(text: string): FoundServer[] {
  const reading = readJsonText(withoutComments(text.replace(/^\ufeff/, '')));
  if (!reading.ok) throw new CommandError(`the file is not JSON: ${reading.reason}`, 'invalid_file');
  const root = reading.value;
  const servers = isObject(root) ? KEYS.map((key) => root[key]).find(isObject) : undefined;
  if (servers === undefined) throw new CommandError('the file has no object mcpServers or servers', 'invalid_file');
  const entries = Object.entries(servers);
  if (entries.length > MAX_SERVERS) throw new CommandError(`the file has more than ${MAX_SERVERS} servers`, 'invalid_file');
  const taken = new Set<string>();
  return entries.map(([title, value]) => {
    const name = freeName(slugOf(title), taken);
    taken.add(name);
    const found = readServer(value);
    const isRead = typeof found !== 'string';
    return {
      title,
      name,
      server: isRead ? found : null,
      problem: isRead ? null : found,
      missing: isRead ? placeholders(found) : [],
    };
  });
}

/** Whether a comment has no end. It stays, so that the file is refused. */
const isOpen = (part: string): boolean => part.startsWith('/*') && !part.endsWith('*/');

/**
 * Returns the JSON without comments and without commas in front of closing brackets, as VS Code allows them. Unterminated strings
 * and comments match, too: otherwise the search would begin again at each of their characters.
 */
function withoutComments(text: string): string {
  return text
    .replace(/"(?:[^"\\\n]|\\.)*"?|\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/g, (part) =>
      part.startsWith('"') || isOpen(part) ? part : ' ',
    )
    .replace(/"(?:[^"\\\n]|\\.)*"?|,(?=\s*[\]}])/g, (part) => (part.startsWith('"') ? part : ''));
}

const MAX_NAME = 63;

/** Returns a name for a target that resembles the title. */
export function slugOf(title: string): string {
  const slug = title
    .normalize('NFKD')
    .toLowerCase()
    .replace(/\p{M}/gu, '')
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+|-+$/g, '');
  const whole = /^[a-z]/.test(slug) ? slug : `server-${slug}`;
  return whole.slice(0, MAX_NAME).replace(/-+$/, '');
}

function freeName(slug: string, taken: ReadonlySet<string>): string {
  for (let count = 1; ; count++) {
    const ending = count === 1 ? '' : `-${count}`;
    const name = `${slug.slice(0, MAX_NAME - ending.length)}${ending}`;
    if (!taken.has(name) && TARGET_NAME.test(name)) return name;
  }
}

/** Returns the server, or why it cannot be a target. The reason repeats no value. */
function readServer(value: JsonValue): Read | string {
  if (!isObject(value)) return 'it is not an object';
  if (value.disabled === true || value.enabled === false) return 'it is disabled in the file';
  const { command, url = value.httpUrl ?? value.serverUrl } = value;
  if (command !== undefined && url !== undefined) return 'it has both a command and a URL';
  return command === undefined ? readRemote(value, url) : readLocal(value, command);
}

function readRemote(value: JsonObject, url: JsonValue | undefined): Read | string {
  if (typeof url !== 'string' || !/^https?:\/\//i.test(url)) return 'it has neither a command nor a URL with http or https';
  const { transport } = value;
  const given = value.type ?? value.transportType ?? (isObject(transport) ? transport.type : transport);
  const type = typeof given === 'string' ? given.toLowerCase() : undefined;
  if (type !== undefined && !REMOTE_TYPES.has(type)) return 'it has a URL, but its type is neither Streamable HTTP nor SSE';
  const unread = NOT_READ.find((member) => isGiven(value[member]));
  if (unread !== undefined) return `its ${unread} is not read: put what it gives into headers, or add the target yourself`;
  const bare = withoutPlaceholders(url);
  if (!URL.canParse(bare)) return 'its URL is not valid';
  // Everybody who may read targets sees their URLs.
  if (isSecretUrl(bare) || bare !== url)
    return 'its URL contains a secret or a variable, and the gateway shows URLs: put it into a header, or add the target yourself';
  const headers = strings(value.headers);
  if (headers === null) return 'its headers are not an object of strings';
  const isSse = type === 'sse' || (type === undefined && /\/sse\/?$/.test(new URL(url).pathname));
  return { transport: isSse ? 'sse' : 'streamable-http', url, secrets: headers.map(([name, text]) => headerOf(name, text)) };
}

/** `http` and its other names mean Streamable HTTP. */
const REMOTE_TYPES = new Set([
  ...['http', 'https', 'httpstream', 'http-stream', 'streamable', 'streamable-http', 'streamablehttp', 'streamable_http'],
  ...['sse', 'url', 'remote'],
]);
/** Members that give headers or variables that are not in the file. */
const NOT_READ = ['headersHelper', 'envFile'] as const;

const isGiven = (value: JsonValue | undefined): boolean => value !== undefined && value !== null && value !== '';

function headerOf(name: string, value: string): Secret {
  const [, token] = /^Bearer +(.*)$/is.exec(value) ?? [];
  if (name.toLowerCase() === 'authorization' && token !== undefined)
    return { type: 'bearer', name: 'authorization', value: token };
  return { type: 'header', name, value };
}

function readLocal(value: JsonObject, command: JsonValue): Read | string {
  const { args = [], cwd } = value;
  if (isGiven(value.envFile)) return 'its envFile is not read: put the variables into env, or add the target yourself';
  if (typeof command !== 'string' || command === '' || /[\0\n]/.test(command)) return 'its command is not a text';
  if (/\s/.test(command)) return 'its command contains spaces: give the program as command, and the rest as args';
  if (!Array.isArray(args) || !args.every((one) => typeof one === 'string')) return 'its args are not a list of texts';
  const words: string[] = args;
  if (command !== withoutPlaceholders(command)) return 'its command contains a variable';
  if (cwd !== undefined && (typeof cwd !== 'string' || !cwd.startsWith('/'))) return 'its cwd is not an absolute path';
  if (cwd !== undefined && cwd !== withoutPlaceholders(cwd)) return 'its cwd contains a variable';
  // Everybody who may read targets sees their arguments.
  const isContainer = /(^|\/)(docker|podman|nerdctl)$/.test(command);
  const at = words.findIndex((word, index) => {
    const [before = '', first = ''] = [words[index - 1], words[index - 2]];
    if (isContainer && /^(-u|--user)$/.test(before)) return false;
    return word !== withoutPlaceholders(word) || isSecretWord(before, word) || (HEADER.test(first) && isSecret(before, word));
  });
  if (at !== -1)
    return `its argument ${at + 1} contains a secret or a variable, and the gateway shows arguments: put it into env, or add the target yourself`;
  const variables = strings(value.env);
  if (variables === null) return 'its env is not an object of strings';
  const bad = variables.find(([name]) => variableProblem(name) !== null);
  if (bad !== undefined) return `its env has the variable ${bad[0]}: a name ${variableProblem(bad[0])}`;
  const secret = variables.filter(([name, text]) => isSecret(name, text));
  // First the variables that can send the other values elsewhere: if one of them is set later, the gateway disables the others.
  const order = secret.toSorted(([a], [b]) => Number(isRedirectingVariable(b)) - Number(isRedirectingVariable(a)));
  return {
    ...{ transport: 'stdio', command, args: words, cwd: cwd ?? null },
    env: Object.fromEntries(variables.filter((one) => !secret.includes(one))),
    secrets: order.map(([name, text]) => ({ type: 'env', name, value: text })),
  };
}

function strings(value: JsonValue | undefined): [string, string][] | null {
  if (value === undefined) return [];
  if (!isObject(value)) return null;
  const entries = Object.entries(value);
  return entries.every((entry): entry is [string, string] => typeof entry[1] === 'string') ? entries : null;
}

const SECRET_NAME =
  /key|token|secret|pass|pwd|cred|auth|cookie|session|dsn|private|signature|webhook|mnemonic|bearer|jwt|conn\w*str|(\b|_)(pat|pin|otp|mfa|totp|pw|psk)(\b|_)/i;
/** Names of secrets that can be short numbers. */
const SECRET_NUMBER = /pass|pwd|secret|(\b|_)(pin|otp|mfa|totp|pw)(\b|_)|(\b|_)(key|token)$/i;
/** A secret inside a value, such as a connection string, an address, JSON or a header. */
const SECRET_INSIDE =
  /(pass(word|wd|phrase|code)?|pwd|accountkey|sharedaccess\w*|secret|token|api[_-]?key|\bsig|\bauth|authorization)["']?\s*[=:]\s*["']?[^\s;&"']|"[\w-]*(key|token|secret|password)\\?"\s*:\s*\\?"[^"\\]|-----BEGIN [A-Z ]*PRIVATE KEY|(^|\s)--?[\w-]*(pass|pwd|token|secret|key)[\w-]*\s+[^\s-]/i;
/** Beginnings of keys and tokens of well-known services. */
const SECRET_START =
  /^(sk[-_]|pk_|rk_|gsk_|whsec_|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|ya29\.|eyJ|AKIA|ASIA|AIza|npm_|hf_|dop_v1_|lin_api_|ntn_|figd_|shp(at|ca|pa|ss)_|SG\.|pat\w{14}\.|AC[0-9a-f]{32}|\d{6,}:[\w-]{30,}$|[Bb]earer |[Bb]asic )/;

/** Whether a value may be secret. If in doubt, it is. */
function isSecret(name: string, value: string): boolean {
  if (value === '') return false;
  if (/^(true|false|on|off|yes|no)$/i.test(value)) return false;
  if (/^\d{1,6}$/.test(value)) return SECRET_NUMBER.test(name);
  return (
    SECRET_NAME.test(name) ||
    SECRET_START.test(value) ||
    SECRET_INSIDE.test(value) ||
    value !== withoutPlaceholders(value) ||
    /:\/\/[^/\s]*@/.test(value) ||
    isSecretUrl(value) ||
    // A long word with digits and letters that is neither a path nor the name of a host, nor made of words and versions.
    (/^(?=.*\d)(?=.*[a-z])[A-Za-z0-9+=_-]{20,}$/i.test(value) && !WORDS.test(value)) ||
    // Such keys of AWS can have slashes.
    /^(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+][A-Za-z0-9/+]{38}[A-Za-z0-9/+=]$/.test(value)
  );
}

/** Such as `observability-mcp-server-v2`. */
const WORDS = /^([a-z]{2,20}|v?\d{1,4})([-_]([a-z]{2,20}|v?\d{1,4}))*$/i;

/** Whether the text is a URL with a secret in it. Some services put the key of the account into the path. */
function isSecretUrl(text: string): boolean {
  if (!/^(?!file:)[a-z][a-z0-9+.-]*:\/\//i.test(text) || !URL.canParse(text)) return false;
  const { username, password, searchParams, pathname, hostname, hash } = new URL(text);
  if (username !== '' || password !== '' || WEBHOOK.test(hostname + pathname)) return true;
  const parts = [...searchParams, ...new URLSearchParams(hash.slice(1)), ...pathname.split('/').map((part) => ['', part])];
  return parts.some(([name = '', part = '']) => isSecret(name, part));
}

/** Addresses that are secrets: no other secret is needed to use them. */
const WEBHOOK = /^(hooks\.slack\.com\/services|discord(app)?\.com\/api\/webhooks|[^/]*\.webhook\.office\.com)\//;

/** Options that some programs follow with the name of a header and its value. */
const HEADER = /^(-H|--headers?)$/;

/** Whether an argument is a secret: because it looks like one, as `--name=value`, as a header, or as the value of the option in front of it. */
function isSecretWord(before: string, word: string): boolean {
  const [, name, value] = /^-{0,2}([\w.-]+)=(.*)$/s.exec(word) ?? /^([\w-]+): *(.*)$/s.exec(word) ?? [];
  if (name !== undefined && value !== undefined && isSecret(name, value)) return true;
  if (SECRET_INSIDE.test(word)) return true;
  if (word.startsWith('-')) return NEEDS_VALUE.test(before) && !word.startsWith('--');
  if (/^(-u|--user)$/.test(before) && word.includes(':')) return true;
  return isSecret(/^--?([\w.-]+)$/.exec(before)?.[1] ?? '', word);
}

/** Options whose value can begin with a hyphen. */
const NEEDS_VALUE = /^--?(?!-?no-)([\w-]*-)?(pass(word|wd|phrase)?|pwd|token|secret|key)$/i;

/** `${NAME}`, `${env:NAME}`, `${input:id}`, `${NAME:-default}`, and `{env:NAME}`. */
const PLACEHOLDER = /\$\{([^{}]*)\}|\{env:([^{}]*)\}/g;

const withoutPlaceholders = (text: string): string => text.replace(PLACEHOLDER, '');

const placeholders = ({ secrets }: Read): string[] => [
  ...new Set(secrets.flatMap(({ value }) => [...value.matchAll(PLACEHOLDER)].map(([whole]) => whole))),
];

/** Returns the value with the answers for its placeholders. */
export const filled = (value: string, answers: ReadonlyMap<string, string>): string =>
  value.replace(PLACEHOLDER, (whole) => answers.get(whole) ?? whole);
