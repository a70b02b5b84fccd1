/** `portcullis import`: makes targets of the servers in the configuration file of an MCP client. */
import { readFileSync, statSync } from 'node:fs';
import { printable } from '../../base/printable.ts';
import { type Client, connect, type Say } from '../client.ts';
import { type Command, CommandError, counted, EXIT, UsageError } from '../command.ts';
import { type Person, personAtTerminal } from './ask.ts';
import { executableOf, pathFor } from './executable.ts';
import { type FoundServer, filled, type Read, readServers } from './servers-file.ts';
import { type Address, inOneLine, makeTarget, tryTarget, written } from './target.ts';

const MAX_BYTES = 4 * 1024 * 1024;

function readText(path: string): string {
  try {
    if (!statSync(path).isFile()) throw new CommandError(`${path} is not a file`, 'invalid_file');
    if (statSync(path).size > MAX_BYTES) throw new CommandError(`${path} is larger than 4 MiB`, 'invalid_file');
    return new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(path));
  } catch (error) {
    if (error instanceof CommandError) throw error;
    throw new CommandError(
      `${path} cannot be read as text (${(error as NodeJS.ErrnoException).code ?? 'not UTF-8'})`,
      'invalid_file',
    );
  }
}

function addressOf(server: Read): Address {
  if (server.transport !== 'stdio') return { transport: server.transport, url: server.url };
  const command = executableOf(server.command);
  const { args, cwd, env } = server;
  return { transport: 'stdio', command, args, env: { PATH: pathFor(command), ...env }, ...(cwd === null ? {} : { cwd }) };
}

type State = 'made' | 'there' | 'failed' | 'skipped' | 'would make';

/** What became of a server. It has no values of credentials. */
interface Result {
  readonly title: string;
  readonly name: string;
  readonly address: string | null;
  /** Variables of the process that are not secret. They can make it run other code, so the reader of the plan sees them. */
  readonly variables: readonly string[];
  readonly credentials: readonly string[];
  readonly state: State;
  readonly tools: number | null;
  readonly problem: string | null;
}

interface Ready {
  readonly found: FoundServer;
  readonly server: Read;
  readonly address: Address;
}

/** Returns the server as a target, or why it is skipped. */
function prepare(found: FoundServer): Ready | Result {
  const skipped = (problem: string): Result => ({
    ...{ title: found.title, name: found.name, address: null, variables: [], credentials: [] },
    ...{ state: 'skipped', tools: null, problem },
  });
  const { server, problem } = found;
  if (server === null) return skipped(problem ?? 'it cannot be read');
  try {
    return { found, server, address: addressOf(server) };
  } catch (error) {
    if (error instanceof UsageError) return skipped(error.message);
    throw error;
  }
}

const factsOf = ({ found: { title, name }, server, address }: Ready) => ({
  ...{ title, name, address: written(address) },
  variables: server.transport === 'stdio' ? Object.entries(server.env).map(([variable, value]) => `${variable}=${value}`) : [],
  credentials: server.secrets.map((secret) => secret.name),
});

const isReady = (one: Ready | Result): one is Ready => 'server' in one;

/** Asks for the values that the file names and does not contain. The environment of this command is not used: the file may be a stranger's. */
async function answersFor(ready: readonly Ready[], person: Person | null): Promise<Map<string, string>> {
  const answers = new Map<string, string>();
  const missing = [...new Set(ready.flatMap(({ found }) => found.missing))];
  if (missing.length > 0 && person === null)
    throw new UsageError(
      `the file names values that it does not contain, and there is no terminal on which to ask: replace ${missing.join(', ')} in the file`,
    );
  for (const name of missing) {
    const users = ready.filter(({ found }) => found.missing.includes(name)).map(({ found }) => JSON.stringify(found.title));
    answers.set(name, (await person?.askHidden(`Value of ${inOneLine(name)}, which goes to ${users.join(', ')}`)) ?? '');
  }
  return answers;
}

async function make(client: Client, one: Ready, answers: ReadonlyMap<string, string>, say: Say): Promise<Result> {
  const facts = factsOf(one);
  let state: State = 'failed';
  try {
    const { target, made } = await makeTarget(client, one.found.name, one.address, false);
    state = made === 'there' ? 'there' : 'made';
    const { secrets } = one.server;
    // The file may be a stranger's, whose account all users of the target would then use.
    if (made === 'there' && secrets.length > 0)
      say(`the target ${target.name} was there already: its credentials stay as they are`);
    for (const { type, name, value } of made === 'there' ? [] : secrets) {
      const credential = { type, ...(type === 'bearer' ? {} : { name }), value: filled(value, answers) };
      await client.call('PUT', `/api/targets/${target.id}/credentials/default`, credential);
    }
    const { tools } = await tryTarget(client, target, say);
    return { ...facts, state, tools: tools.length, problem: null };
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    return { ...facts, state, tools: null, problem: error.message };
  }
}

function line({ title, name, address, variables, credentials, state, tools, problem }: Result): string {
  const where = address === null ? '' : ` at ${address}`;
  const shown = variables.length === 0 ? '' : `, with the variables ${variables.map(inOneLine).join(', ')}`;
  const sealed = credentials.length === 0 ? '' : `, with the credentials ${credentials.map(inOneLine).join(', ')}`;
  const has = tools === null ? '' : `, ${counted(tools, 'tool')}`;
  const why = problem === null ? '' : `\n    ${problem.replaceAll('\n', '\n    ')}`;
  return `  ${state.padEnd(10)} ${JSON.stringify(title)} as ${name}${where}${shown}${sealed}${has}${why}\n`;
}

export const importServers: Command = {
  name: 'import',
  takes: '<mcp.json>',
  completes: 'FILE',
  summary: "makes targets of the servers in a client's configuration file",
  help: `Reads the files of Claude Desktop, Claude Code, VS Code, Cursor and Gemini CLI (mcpServers or servers). Headers, and variables that
look like secrets, become credentials of the target, which the gateway stores encrypted and never shows. A value such as \${TOKEN} is asked for.
No policy is made: portcullis add <name> continues with a target.`,
  options: {
    'dry-run': { help: 'shows what would be made, and makes nothing' },
    yes: { help: 'makes the targets without asking' },
  },
  async run(given, say) {
    const path = given.args[0] ?? '';
    const all = readServers(readText(path)).map(prepare);
    const ready = all.filter(isReady);
    const plan = all.map(
      (one): Result => (isReady(one) ? { ...factsOf(one), state: 'would make', tools: null, problem: null } : one),
    );
    if (given.flag('dry-run')) {
      const code = ready.length < all.length ? EXIT.failed : EXIT.ok;
      return { code, text: plan.map(line).join(''), json: { servers: plan } };
    }
    const person = personAtTerminal();
    const client = connect(given);
    if (ready.length > 0 && !given.flag('yes')) {
      if (person === null)
        throw new UsageError('--yes is missing, and there is no terminal on which to ask: see the plan with --dry-run');
      process.stderr.write(printable(plan.map(line).join('')));
      const answer = await person.ask(
        `Make ${counted(ready.length, 'target')}, and start or call each of them once? yes or no`,
        'no',
      );
      if (answer !== 'yes') throw new CommandError('nothing was made', 'refused');
    }
    const answers = await answersFor(ready, person);
    const results: Result[] = [];
    for (const one of all) {
      if (isReady(one)) say(`${one.found.name}: ${written(one.address)}`);
      results.push(isReady(one) ? await make(client, one, answers, say) : one);
    }
    const bad = results.filter(({ problem }) => problem !== null).length;
    const summary = `${counted(results.length - bad, 'target')} ready, ${bad} not. No policy was made: portcullis add <name> makes a first one.\n`;
    return {
      code: bad > 0 ? EXIT.failed : EXIT.ok,
      text: `${results.map(line).join('')}${summary}`,
      json: { servers: results },
    };
  },
};
