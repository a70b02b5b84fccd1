/** Makes a target at the gateway and tries it. */
import type { CheckedTool, TargetCheck } from '../../mcp/check.ts';
import type { TargetJson } from '../../targets/document.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import type { Client, Say } from '../client.ts';
import { CommandError, counted, shellWord, UsageError } from '../command.ts';

/** Where a target is. */
export type Address =
  | { readonly transport: 'streamable-http' | 'sse'; readonly url: string }
  | {
      readonly transport: 'stdio';
      readonly command: string;
      readonly args: readonly string[];
      readonly env: Readonly<Record<string, string>>;
      readonly cwd?: string;
    };

export type FoundTarget = TargetJson;

export function checkName(name: string): void {
  if (TARGET_NAME.test(name)) return;
  throw new UsageError(
    `${name} cannot be the name of a target: use a-z, 0-9 and -, begin with a letter, and use at most 63 characters`,
  );
}

/** The address as a person would write it, in one line: arguments with line breaks could look like lines of a command. */
export const written = (address: Address | FoundTarget): string =>
  (address.transport === 'stdio' ? [address.command, ...address.args] : [address.url]).map(inOneLine).join(' ');
/** The text, or its JSON if it has characters that could mislead. */
export const inOneLine = (text: string): string => (/^[^\s"']+$/.test(text) ? text : JSON.stringify(text));

const isSame = (one: Address | FoundTarget, other: Address | FoundTarget): boolean => identity(one) === identity(other);
const identity = (address: Address | FoundTarget): string =>
  address.transport === 'stdio'
    ? JSON.stringify([address.command, address.args])
    : JSON.stringify([address.transport, new URL(address.url).href]);

export async function findTarget(client: Client, name: string): Promise<FoundTarget | null> {
  return (await client.list<FoundTarget>('/api/targets')).find((target) => target.name === name) ?? null;
}

/**
 * Makes the target, or continues with the one that has this name and address. `replace`: the target gets the address if it has a different
 * one. Throws CommandError `target_name_taken` if it may not.
 */
export async function makeTarget(
  client: Client,
  name: string,
  address: Address,
  replace: boolean,
): Promise<{ readonly target: FoundTarget; readonly made: 'created' | 'changed' | 'there' }> {
  const found = await findTarget(client, name);
  if (found !== null && isSame(found, address)) return { target: found, made: 'there' };
  if (found !== null && !replace)
    throw new CommandError(
      `the target ${name} exists with a different address, ${written(found)}: choose a different name, or give the target this address with --replace`,
      'target_name_taken',
    );
  try {
    return found === null
      ? { target: await client.call<FoundTarget>('POST', '/api/targets', { name, ...address }), made: 'created' }
      : { target: await client.call<FoundTarget>('PUT', `/api/targets/${found.id}`, address), made: 'changed' };
  } catch (error) {
    if (address.transport === 'stdio' && error instanceof CommandError && error.errors.some(({ path }) => path === 'command'))
      throw notAllowed(address.command);
    throw error;
  }
}

/** The allow-list is the operator's, so REST cannot change it. */
const notAllowed = (command: string): CommandError =>
  new CommandError(
    `the gateway may not start ${command}: only its operator says which executables it may start.
On its host, stop the gateway, and start it again in one of these ways. Then run this command again.
  portcullis start --allow-command ${shellWord(command)}
  STDIO_ALLOWED=${shellWord(command)} npm start
If you allow an interpreter, a shell or npx, everybody who can change targets can run any program as the user of the gateway.`,
    'command_not_allowed',
  );

const SLOW_MS = 1_000;

/** Tries the target. Throws CommandError with the reason and what to do if it does not work. */
export async function tryTarget(client: Client, target: FoundTarget, say: Say): Promise<TargetCheck> {
  const timer = setTimeout(
    () => say(`trying the target ${target.name}: a process may first have to install its program`),
    SLOW_MS,
  );
  const check = await client.call<TargetCheck>('POST', `/api/targets/${target.id}/check`, {}).finally(() => clearTimeout(timer));
  if (check.fault === null) return check;
  const { kind, message, stderr } = check.fault;
  const printed = stderr === null ? '' : `\nIts process printed:\n${lastLines(stderr)}`;
  throw new CommandError(
    `the target ${target.name} is made, but does not work: ${oneLine(message)}.${printed}\n${advice(kind, message, target)}\nThis command has made no policy for it.`,
    `target_${kind}`,
  );
}

const LINES = 10;
const lastLines = (text: string): string =>
  text
    .trimEnd()
    .split('\n')
    .slice(-LINES)
    .map((line) => `  ${line}`)
    .join('\n');

type FaultKind = NonNullable<TargetCheck['fault']>['kind'];

/** What a person can do about the fault. The message begins with words of the gateway. Words of the target follow, and choose no advice. */
function advice(kind: FaultKind, message: string, { name, ...target }: FoundTarget): string {
  const again = `run portcullis add ${name} again`;
  const said = message.replace(/^The target `[^`]*` /, '');
  const moved = /^redirects, .*?: it redirects to (\S+)/.exec(said)?.[1];
  if (moved !== undefined && target.transport !== 'stdio') {
    const hides = moved.includes('[redacted]') || !URL.canParse(moved, target.url);
    const address = hides ? '<address>' : shellWord(new URL(moved, target.url).href);
    return `If you trust ${hides ? 'the address that it redirects to' : 'that address'}, run portcullis add ${name} ${address} --replace.`;
  }
  if (target.transport === 'streamable-http' && said.startsWith('speaks HTTP with SSE'))
    return `Run portcullis add ${name} ${shellWord(target.url)} --transport sse --replace.`;
  switch (kind) {
    case 'denied_address':
      return `The gateway connects to such an address only if UPSTREAM_ALLOWED_ADDRESSES names it when the gateway starts. Then ${again}.`;
    case 'unreachable':
      return target.transport === 'stdio'
        ? `Check that the command works on the host of the gateway. Then ${again}.`
        : `Start the server, or check its address from the host of the gateway. Then ${again}.`;
    case 'crashed':
      return `Check the arguments, and the variables that the process needs. Then ${again}.`;
    case 'http':
      if (said.startsWith("refuses the gateway's credential"))
        return `Set a credential: portcullis credential set ${name} reads it from standard input. Then ${again}.`;
      // Other statuses and JSON-RPC errors come from a server at the right address.
      return /^failed \(HTTP 4|^answered with something other than JSON/.test(said)
        ? `Check the path of the address: many servers are at /mcp. Then ${again}.`
        : `When that is solved, ${again}.`;
    case 'account':
      return `Each user connects an account of their own at this target. When you have connected yours, ${again}.`;
    default:
      return `When that is solved, ${again}.`;
  }
}

const SHOWN_TOOLS = 40;
const SUMMARY = 80;

/** The tools for people. All words are the target's own. */
export function describeTools({ server, protocol_version, tools, more, has_resources, has_prompts }: TargetCheck): string {
  const width = Math.min(32, Math.max(0, ...tools.map(({ name }) => name.length)));
  const rows = tools.slice(0, SHOWN_TOOLS).map((tool) => `  ${oneLine(tool.name).padEnd(width)}  ${about(tool)}`.trimEnd());
  const rest = tools.length > SHOWN_TOOLS ? [`  and ${tools.length - SHOWN_TOOLS} more`] : [];
  const also = [...(has_resources ? ['resources'] : []), ...(has_prompts ? ['prompts'] : [])];
  return [
    `The server says it is ${oneLine(server?.name ?? '')} ${oneLine(server?.version ?? '')}, and speaks ${protocol_version}.`,
    `It has ${more ? 'more than ' : ''}${counted(tools.length, 'tool')}. (reads only) is the server's own claim.`,
    ...rows,
    ...rest,
    ...(also.length === 0 ? [] : [`It also has ${also.join(' and ')}, which stay closed until a policy names them.`]),
  ]
    .map((line) => `${line}\n`)
    .join('');
}

// The texts of a target must not look like lines of this command.
const oneLine = (text: string): string => text.replace(/\s+/g, ' ').trim();

function about({ title, description, read_only }: CheckedTool): string {
  const text = oneLine(title ?? description ?? '');
  return `${read_only ? '(reads only) ' : ''}${text.length > SUMMARY ? `${text.slice(0, SUMMARY)}…` : text}`;
}
