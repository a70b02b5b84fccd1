/** `portcullis add`: makes a target, tries it, and makes a first policy from the list of its tools. */
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { printable } from '../../base/printable.ts';
import {
  type Choice,
  chosen,
  type FirstPolicy,
  isNameable,
  policiesFor,
  type Subject,
} from '../../console/targets/first-policy.ts';
import type { TargetCheck } from '../../mcp/check.ts';
import { formatPolicyFile } from '../../policies/files/yaml.ts';
import { type Client, connect, type Say, serverOf } from '../client.ts';
import { type Command, CommandError, counted, type Given, UsageError } from '../command.ts';
import { changing } from '../policies/policy-folder.ts';
import { type Person, personAtTerminal } from './ask.ts';
import { executableOf, pathFor } from './executable.ts';
import { readChoice, readSubject } from './first-policy.ts';
import { type Address, checkName, describeTools, type FoundTarget, findTarget, makeTarget, tryTarget } from './target.ts';

const TRANSPORTS = ['streamable-http', 'sse'] as const;

/** Reads what follows the name: a URL, or a command with its arguments. null: nothing. */
function readAddress(words: readonly string[], wanted: string | undefined): Address | null {
  const [first, ...rest] = words;
  if (first === undefined) return null;
  const transport = TRANSPORTS.find((one) => one === (wanted ?? 'streamable-http'));
  if (transport === undefined) throw new UsageError(`--transport must be ${TRANSPORTS.join(' or ')}`);
  if (/^https?:\/\//i.test(first)) {
    if (!URL.canParse(first)) throw new UsageError('the address is not a URL');
    if (rest.length > 0) throw new UsageError('a URL is followed by nothing: put -- in front of a command');
    return { transport, url: first };
  }
  if (wanted !== undefined) throw new UsageError('--transport is for URLs: a command always uses stdio');
  const command = executableOf(first);
  return { transport: 'stdio', command, args: rest, env: { PATH: pathFor(command) } };
}

/** What the options say about the first policy. null: they say nothing. */
interface Wanted {
  readonly choice: Choice | null;
  readonly subject: Subject | null;
}

function readWanted(given: Given, person: Person | null): Wanted {
  const [allow, whom] = [given.text('allow'), given.text('for')];
  const choice = allow === undefined ? null : readChoice(allow);
  const subject = whom === undefined ? null : readSubject(whom);
  if (person !== null || choice === 'none') return { choice, subject };
  // Nothing is made if the rest of the command would have to ask.
  if (choice === null)
    throw new UsageError('--allow is missing, and there is no terminal on which to ask: read-only, all or none');
  if (subject === null)
    throw new UsageError('--for is missing, and there is no terminal on which to ask: everyone, role:NAME or group:NAME');
  return { choice, subject };
}

/** Asks again until the answer can be read. */
async function readAnswer<T>(ask: () => Promise<string>, read: (answer: string) => T, say: Say): Promise<T> {
  for (;;) {
    try {
      return read(await ask());
    } catch (error) {
      if (!(error instanceof UsageError)) throw error;
      say(error.message);
    }
  }
}

function askChoice(person: Person, { tools }: TargetCheck, say: Say): Promise<Choice> {
  const count = chosen(tools, 'read-only').length;
  const question = `Allow which tools? read-only (${count}, as the target claims), all (${tools.length}) or none`;
  return readAnswer(() => person.ask(question, count > 0 ? 'read-only' : 'none'), readChoice, say);
}

const askSubject = (person: Person, say: Say): Promise<Subject> =>
  readAnswer(() => person.ask('Allow whom? everyone, role:NAME or group:NAME', 'role:admin'), readSubject, say);

/** Whether a policy names the target already. */
async function isNamed(client: Client, { id }: FoundTarget): Promise<boolean> {
  return (await client.list<{ target_id: string | null }>('/api/policies')).some(({ target_id }) => target_id === id);
}

/** Throws CommandError if no new file can be written there. */
function checkNewFile(path: string): void {
  if (existsSync(path)) throw new CommandError(`${path} exists already: choose a different file`, 'file_exists');
  // Only a try tells: the name may be too long, or that of a folder.
  changing(path, () => {
    writeFileSync(path, '', { flag: 'wx' });
    rmSync(path);
  });
}

function writeFile(path: string, target: string, policies: readonly FirstPolicy[]): void {
  const [policy] = policies;
  if (policy === undefined) throw new CommandError('no tool was chosen, so there is no policy to write');
  if (policies.length > 1)
    throw new CommandError('the tools need several policies, and a file holds one: leave out --policy-file', 'too_many_tools');
  checkNewFile(path);
  const subjects = policy.subjects.map(({ subject_type, subject_value = null }) => ({ subject_type, subject_value }));
  changing(path, () => writeFileSync(path, formatPolicyFile({ ...policy, target, subjects }), { flag: 'wx' }));
}

export const add: Command = {
  name: 'add',
  takes: '<name> [<url|command>...]',
  summary: 'puts an MCP server behind the gateway: makes a target, tries it, and makes a first policy',
  help: `portcullis add <name> <url>              a server with an address
portcullis add <name> -- <command> ...   a server that the gateway starts; its operator must allow the command
portcullis add <name>                    continues with a target that exists

No user can use the target until a policy allows something. The command shows the tools of the target, and asks which of them you allow, and
for whom. The policy names exactly these tools, so tools that the server gets later stay closed.`,
  options: {
    allow: { value: 'TOOLS', help: 'read-only (what the server claims only reads), all or none' },
    for: { value: 'WHOM', help: 'everyone, role:NAME or group:NAME' },
    'policy-file': { value: 'FILE', help: 'writes the policy into a new file for portcullis policies apply, not to the gateway' },
    transport: { value: 'TRANSPORT', help: 'for a URL: streamable-http (default) or sse' },
    replace: { help: 'gives a target with this name the new address' },
  },
  async run(given, say) {
    const [name = '', ...words] = given.args;
    checkName(name);
    const address = readAddress(words, given.text('transport'));
    const person = personAtTerminal();
    const wanted = readWanted(given, person);
    const path = given.text('policy-file');
    if (path !== undefined) checkNewFile(path);
    const { url } = serverOf(given);
    const client = connect(given);
    const { target, made } =
      address === null
        ? { target: await existing(client, name), made: 'there' }
        : await makeTarget(client, name, address, given.flag('replace'));
    if (!target.enabled)
      throw new CommandError(`the target ${name} is disabled: run portcullis target enable ${name} first`, 'target_disabled');
    const check = await tryTarget(client, target, say);
    const shown = describeTools(check);

    let choice = wanted.choice;
    let subject = wanted.subject;
    let policies: FirstPolicy[] = [];
    let kept = false;
    if (choice === null && (await isNamed(client, target))) kept = true;
    else if (check.tools.length > 0) {
      if (person !== null && choice === null) process.stderr.write(printable(shown));
      choice ??= person === null ? 'none' : await askChoice(person, check, say);
      if (choice !== 'none') {
        subject ??= person === null ? null : await askSubject(person, say);
        policies = subject === null ? [] : policiesFor(name, check.tools, choice, subject, 'portcullis add');
      }
    }
    if (path !== undefined) writeFile(path, name, policies);
    else
      policies = await makePolicies(client, target, policies).catch((error: unknown) => {
        if (!(error instanceof CommandError)) throw error;
        throw new CommandError(
          `the target ${name} works, but its policy could not be made: ${error.message}\nRun portcullis add ${name} to continue.`,
          error.code,
          error.errors,
        );
      });
    const unnamed = check.tools.filter((tool) => !isNameable(tool)).length;
    const lines = [
      made === 'created'
        ? `made the target ${name}`
        : `the target ${name} ${made === 'changed' ? 'has the new address' : 'was there already'}`,
      ...(kept ? ['policies name this target already: they stay as they are'] : []),
      ...policies.map(({ name: title }) =>
        path === undefined
          ? `made the policy "${title}"`
          : `wrote the policy "${title}" to ${path}: apply it with portcullis policies apply`,
      ),
      ...(choice === 'none' ? [`made no policy: run portcullis add ${name} again, or write one`] : []),
      ...(choice !== null && choice !== 'none' && policies.length === 0
        ? ['the policy was there already, or there is no such tool']
        : []),
      ...(unnamed > 0 ? [`${counted(unnamed, 'tool')} cannot be named in a policy, and stay closed`] : []),
      `It is at ${url}/mcp/${name}, and with all other targets at ${url}/mcp.`,
      'Next: portcullis connect <client> --write (portcullis connect --help lists the clients)',
    ];
    // On a terminal, the tools were shown in front of the question.
    const isShown = person !== null && wanted.choice === null && !kept && check.tools.length > 0;
    return {
      text: `${isShown ? '' : shown}${lines.join('\n')}\n`,
      json: { target, made, check, policies, policy_file: path ?? null, url: `${url}/mcp/${name}` },
    };
  },
};

async function existing(client: Client, name: string): Promise<FoundTarget> {
  const target = await findTarget(client, name);
  if (target === null) throw new UsageError(`there is no target ${name}: give its URL, or -- and its command`);
  return target;
}

type Found = Pick<FirstPolicy, 'name' | 'resource_pattern'> & { readonly target_id: string | null };

/** Makes those policies that the gateway does not have yet, and returns them. */
async function makePolicies(client: Client, { id }: FoundTarget, policies: readonly FirstPolicy[]): Promise<FirstPolicy[]> {
  if (policies.length === 0) return [];
  const there = (await client.list<Found>('/api/policies')).filter(({ target_id }) => target_id === id);
  const missing = policies.filter(
    ({ name, resource_pattern }) => !there.some((one) => one.name === name && one.resource_pattern === resource_pattern),
  );
  for (const policy of missing) await client.call('POST', '/api/policies', { ...policy, target_id: id });
  return missing;
}
