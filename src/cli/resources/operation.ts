/** Commands from operations of the REST contract: their options, their help, and how their answers are shown. */
import { printable } from '../../base/printable.ts';
import { OPERATIONS } from '../../rest/contract.ts';
import { schemaOf } from '../../rest/openapi/from-joi.ts';
import type { Operation } from '../../rest/openapi/operation.ts';
import type { Schema } from '../../rest/openapi/schema.ts';
import { type Client, connect, type Say } from '../client.ts';
import { type Command, CommandError, type Given, type Option, type Outcome, UsageError } from '../command.ts';
import { isInputTerminal, readText } from '../read-text.ts';
import { idOf, isFound } from './find.ts';
import { isSecret, type Members, membersOf, optionName, optionOf, readValue } from './members.ts';
import { cardText, tableText } from './table.ts';

/** A command of a noun, which sends one operation. */
export interface Verb {
  /** The operation: `GET /api/targets/{id}`. */
  readonly does: string;
  /** Each argument, and the path parameter or member of the body that it gives. A target or a user is found by its name. */
  readonly takes?: Readonly<Record<string, string>>;
  /** Members of the body that are always the same. */
  readonly body?: Readonly<Record<string, unknown>>;
  /** The members of the body that are options. Absent: all others. */
  readonly only?: readonly string[];
  /** The columns of a list. */
  readonly columns?: readonly string[];
  /** The member of the answer that is the list. */
  readonly rows?: string;
  /** How many rows of a list are shown unless --limit says more. Absent: all. */
  readonly limit?: number;
  /** Absent: the summary of the operation. */
  readonly summary?: string;
  readonly help?: string;
  /** The member of the answer that says what went wrong. If it is not null, the exit code is 1. */
  readonly fault?: string;
}

/** The operation as the contract describes it. */
interface Described {
  readonly operation: Operation;
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  readonly query: Readonly<Record<string, Schema>>;
  readonly body: Members;
}

const NO_MEMBERS: Members = { properties: {}, required: [] };
/** The gateway sets these members, and accepts them in a body only if they are unchanged. */
const READ_ONLY = new Set(['id', 'created_at', 'updated_at', 'client_secret_set']);
const PAGE_MAX = 1_000;
const SAY_AFTER_MS = 1_000;
const SAY_EVERY_MS = 5_000;

export function describe(does: string): Described {
  const operation = OPERATIONS[does as keyof typeof OPERATIONS];
  if (operation === undefined) throw new Error(`The contract has no operation ${does}`);
  const [method, path] = does.split(' ') as [Described['method'], string];
  const query = Object.fromEntries(
    (operation.query ?? []).map(({ name, schema, description }) => [name, { ...(schema as Schema), description }]),
  );
  return { operation, method, path, query, body: operation.takes ? membersOf(schemaOf(operation.takes)) : NO_MEMBERS };
}

const isAdministrative = ({ operation: { access }, method }: Described): boolean =>
  method !== 'GET' && (access === 'admin' || typeof access !== 'string');

/** The members of the body that the person gives as options. */
const optional = ({ body }: Described, { takes = {}, body: fixed = {}, only }: Verb): string[] =>
  (only ?? Object.keys(body.properties)).filter(
    (member) => !READ_ONLY.has(member) && !(member in fixed) && !Object.values(takes).includes(member),
  );

const optionsFor = (schemas: Readonly<Record<string, Schema>>): Record<string, Option> =>
  Object.fromEntries(
    Object.entries(schemas).flatMap(([member, schema]) => {
      const option = optionOf(member, schema);
      return option === null ? [] : [[optionName(member), option]];
    }),
  );

/** The options that are query parameters. */
export function queryOptions({ query: { limit, cursor: _, ...filters } }: Described, rows?: number): Record<string, Option> {
  const paging = { limit: { value: 'N', help: `the first N at most (default: ${rows ?? 'all'})` } };
  return { ...optionsFor(filters), ...(limit === undefined ? {} : paging) };
}

function optionsOf(described: Described, verb: Verb): Record<string, Option> {
  const members = optional(described, verb);
  return {
    ...queryOptions(described, verb.limit),
    ...optionsFor(Object.fromEntries(members.map((member) => [member, described.body.properties[member] ?? {}]))),
    ...(members.length < 2
      ? {}
      : { file: { value: 'FILE', help: 'more members as JSON; - reads standard input. Options replace them' } }),
    ...(isAdministrative(described) ? { reason: { value: 'TEXT', help: 'why; the gateway keeps it with the change' } } : {}),
  };
}

/** `Get a target. It has…` -> `shows a target`, and the sentences that follow. */
function summaryOf(summary: string): readonly [first: string, more: string] {
  const [first = '', ...more] = summary.replaceAll('`', '').split(/(?<=\.) /);
  return [
    first.replace(/\.$/, '').replace(/^\w+/, (verb) => (verb === 'Get' ? 'shows' : `${verb.toLowerCase()}s`)),
    more.join(' '),
  ];
}

export function commandOf(name: string, verb: Verb): Command {
  const described = describe(verb.does);
  const [first, more] = summaryOf(described.operation.summary);
  const help = verb.help ?? more;
  const takes = Object.keys(verb.takes ?? {}).map((argument) => `<${argument}>`);
  return {
    name,
    ...(takes.length === 0 ? {} : { takes: takes.join(' ') }),
    summary: verb.summary ?? first,
    ...(help === '' ? {} : { help }),
    options: optionsOf(described, verb),
    run: (given, say) => run(described, verb, given, say),
  };
}

async function run(described: Described, verb: Verb, given: Given, say: Say): Promise<Outcome> {
  const client = connect(given);
  const values = await argumentsOf(client, verb, given);
  const query = await queryOf(client, described, given);
  const body = await bodyOf(client, described, verb, given, values);
  return perform(client, described, verb, { values, query, body }, given, say);
}

/** Returns the arguments by the name of the path parameter or member that they give. */
async function argumentsOf(client: Client, { takes = {} }: Verb, given: Given): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  for (const [at, [argument, member]] of Object.entries(takes).entries()) {
    const text = given.args[at] ?? '';
    found[member] = isFound(argument) ? await idOf(client, argument, text) : text;
  }
  return found;
}

export const queryOf = (client: Client, { query }: Described, given: Given): Promise<Record<string, unknown>> =>
  optionsGiven(client, Object.keys(query), query, given, 'ago');

/** Returns the members that options give. */
async function optionsGiven(
  client: Client,
  members: readonly string[],
  schemas: Readonly<Record<string, Schema>>,
  given: Given,
  spans: 'ago' | 'ahead',
): Promise<Record<string, unknown>> {
  const values: Record<string, unknown> = {};
  for (const member of members) {
    const [option, schema] = [optionName(member), schemas[member]];
    if (schema === undefined || member === 'limit' || member === 'cursor') continue;
    if (given.flag(option)) values[member] = schema['const'];
    const text = given.text(option);
    if (text === undefined) continue;
    if (isSecret(member)) values[member] = readText(text);
    else
      values[member] =
        isFound(option) && option !== member ? await idOf(client, option, text) : readValue(member, schema, text, spans);
  }
  return values;
}

async function bodyOf(
  client: Client,
  described: Described,
  verb: Verb,
  given: Given,
  values: Readonly<Record<string, string>>,
): Promise<unknown> {
  const { operation, body, path } = described;
  if (operation.takes === undefined) return undefined;
  const { properties, required } = body;
  const fromFile: unknown = given.text('file') === undefined ? {} : parsed(readText(given.text('file') ?? ''));
  if (typeof fromFile !== 'object' || Array.isArray(fromFile)) throw new UsageError('--file must contain one JSON object');
  const positional = Object.entries(values).filter(([member]) => !path.includes(`{${member}}`));
  const made = {
    ...fromFile,
    ...Object.fromEntries(
      positional.map(([member, text]) => [member, readValue(member, properties[member] ?? {}, text, 'ahead')]),
    ),
    ...(await optionsGiven(client, optional(described, verb), properties, given, 'ahead')),
    ...verb.body,
  };
  const missing = required.find((member) => isSecret(member) && !(member in made));
  return missing === undefined ? made : { ...made, [missing]: secretFromInput(missing) };
}

/** A secret that no option names comes from standard input, unless that is a terminal, which would show it. */
function secretFromInput(member: string): string {
  if (isInputTerminal())
    throw new UsageError(`the ${member} is missing: pass --${optionName(member)} FILE, or write it to standard input`);
  return readText('-');
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new UsageError('--file must contain one JSON object');
  }
}

/** What a request has. `values` has the path parameters. */
export interface Request {
  readonly values?: Readonly<Record<string, string>>;
  readonly query?: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
  /** The ETag that the resource must still have. */
  readonly ifMatch?: string;
}

/** Sends the operation, and shows its answer. */
export async function perform(
  client: Client,
  described: Described,
  verb: Pick<Verb, 'columns' | 'rows' | 'limit' | 'fault'>,
  { values = {}, query = {}, body, ifMatch }: Request,
  given: Given,
  say: Say,
): Promise<Outcome> {
  const { operation, method, path } = described;
  const at = pathOf(path, values);
  return explained(client, operation, () =>
    patiently(say, async (count) => {
      if (isList(operation)) return list(client, described, verb, at, query, given, say, count);
      const reason = given.text('reason');
      // Headers are bytes, and the gateway reads this one as UTF-8.
      const headers: Record<string, string> = {
        ...(reason === undefined ? {} : { 'portcullis-reason': Buffer.from(reason).toString('latin1') }),
        ...(ifMatch === undefined ? {} : { 'if-match': ifMatch }),
      };
      const json = await client.call<unknown>(method, withQuery(at, query), body, headers);
      if (json === null) return { text: 'done\n', json };
      const rows = verb.rows === undefined ? undefined : (json as Record<string, readonly unknown[]>)[verb.rows];
      const isFault = verb.fault !== undefined && (json as Record<string, unknown>)[verb.fault] !== null;
      const text: Outcome['text'] = (view) =>
        rows === undefined ? cardText(json) : tableText(rows, verb.columns ?? [], view) + leftOutText(json, rows.length);
      return { code: isFault ? 1 : 0, text, json };
    }),
  );
}

/** Returns a line about what the rows leave out, or nothing. */
function leftOutText(answer: unknown, rows: number): string {
  const { more, names_count, read_to } = answer as { more?: boolean; names_count?: number; read_to?: string | null };
  const said = [
    ...(more === true || (names_count ?? 0) > rows ? [`These are the first ${rows}, and there are more.`] : []),
    ...(typeof read_to === 'string' ? [`Denials before ${printable(read_to)} are not counted.`] : []),
  ];
  return said.length === 0 ? '' : `${said.join(' ')}\n`;
}

const isList = ({ gives }: Operation): boolean => gives[200]?.schema?.['type'] === 'array';

function pathOf(path: string, values: Readonly<Record<string, string>>): string {
  return path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name] ?? '';
    // These would lead to a different path, even percent-encoded.
    if (['', '.', '..'].includes(value)) throw new UsageError(`"${value}" cannot be the ${name} in an address`);
    return encodeURIComponent(value);
  });
}

export function withQuery(path: string, query: Readonly<Record<string, unknown>>): string {
  const text = new URLSearchParams(
    Object.entries(query).flatMap(([name, value]) => [value].flat().map((each): [string, string] => [name, String(each)])),
  ).toString();
  return text === '' ? path : `${path}?${text}`;
}

async function list(
  client: Client,
  { query: known }: Described,
  { columns, limit }: Pick<Verb, 'columns' | 'limit'>,
  path: string,
  query: Readonly<Record<string, unknown>>,
  given: Given,
  say: Say,
  count: (rows: number) => void,
): Promise<Outcome> {
  const most = mostOf(given) ?? limit ?? Number.POSITIVE_INFINITY;
  const paged = 'limit' in known ? { limit: Math.min(PAGE_MAX, most) } : {};
  const rows: unknown[] = [];
  let isCut = false;
  for await (const { items, hasNext } of client.pages<unknown>(withQuery(path, { ...query, ...paged }))) {
    rows.push(...items.slice(0, most - rows.length));
    count(rows.length);
    isCut = hasNext;
    if (rows.length >= most) break;
  }
  if (isCut) say(`these are the first ${rows.length}: pass a larger --limit for more`);
  const [first] = rows;
  const shown = columns ?? Object.keys((first ?? {}) as object);
  return { text: (view) => tableText(rows, shown, view), json: rows };
}

/** The option --limit. Throws UsageError. */
export function mostOf(given: Given): number | undefined {
  const text = given.text('limit');
  if (text !== undefined && !/^[1-9]\d{0,8}$/.test(text)) throw new UsageError(`--limit must be a number from 1 on, not ${text}`);
  return text === undefined ? undefined : Number(text);
}

/** Says that the command is still running, if it takes longer than a second. */
async function patiently<T>(say: Say, work: (count: (rows: number) => void) => Promise<T>): Promise<T> {
  let rows = 0;
  const tell = (): void => say(rows === 0 ? 'waiting for the gateway' : `${rows} rows read`);
  let timer = setTimeout(() => {
    tell();
    timer = setInterval(tell, SAY_EVERY_MS);
  }, SAY_AFTER_MS);
  try {
    return await work((count) => {
      rows = count;
    });
  } finally {
    clearTimeout(timer);
  }
}

/** Some operations need a login token, which the command line does not have: says where they can be done. */
async function explained<T>(client: Client, { access }: Operation, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (access !== 'login token' || !(error instanceof CommandError) || error.code !== 'forbidden') throw error;
    throw new CommandError(
      `neither portcullis login nor an API token may do this: do it on the account page, ${client.url}/account, or set PORTCULLIS_TOKEN to the token of POST /api/auth/login, if its user may do it`,
      error.code,
      error.errors,
    );
  }
}
