/** `portcullis connect`: prints or writes what an MCP client must know of the gateway. */
import { CLIENTS, type McpClient, newText, type Scope } from '../../clients/client-files.ts';
import { machineFromProcess } from '../../config/config.ts';
import { type Say, serverOf } from '../client.ts';
import { type Command, CommandError, type Given, UsageError } from '../command.ts';
import { checkName } from '../first-hour/target.ts';
import { discover } from '../sign-in/oauth.ts';
import { withServer } from './client-text.ts';
import { readSettings, replaceSettings } from './settings-file.ts';

const VARIABLE = 'PORTCULLIS_TOKEN';
const DEFAULT_NAME = 'gateway';

function clientNamed(id: string): McpClient {
  const client = CLIENTS.find((one) => one.id === id);
  if (client !== undefined) return client;
  throw new UsageError(`${id} is not a client that this command knows: ${CLIENTS.map((one) => one.id).join(', ')}`);
}

/** The scope that the user asks for, or else the smaller one that the client has. */
function scopeOf(client: McpClient, given: Given): Scope {
  const has = (['project', 'user'] as const).filter((scope) => client.files[scope] !== undefined);
  const wanted = given.text('scope');
  const scope = wanted === undefined ? has[0] : has.find((one) => one === wanted);
  if (scope === undefined) throw new UsageError(`--scope must be ${has.join(' or ')} for ${client.title}`);
  return scope;
}

/** Clients sign in only at the address that the gateway gives itself. Throws CommandError if that is a different one. */
async function checkAddress(url: string, say: Say): Promise<void> {
  try {
    await discover(url);
  } catch (error) {
    if (!(error instanceof CommandError) || error.code === 'wrong_issuer') throw error;
    say(`the address of the gateway was not checked: ${error.message}`);
  }
}

const NAME = /^[A-Za-z0-9_-]{1,64}$/;

export const connectClient: Command = {
  name: 'connect',
  takes: '<client>',
  completes: CLIENTS.map(({ id }) => id).join('|'),
  summary: "prints a client's configuration for the gateway, or writes it",
  help: `The clients: ${CLIENTS.map(({ id }) => id).join(', ')}.

A client gets the address of the gateway and nothing else: it opens a browser, where its user signs in. With --token the client sends a token
from its environment variable ${VARIABLE} instead. The command never writes a token into a file.

Clients sign in only at the address that the gateway gives itself (PUBLIC_URL). If the gateway answers and gives itself a different address,
the command names that address and does nothing else.

--write keeps the rest of the file, and a copy of it as it was. It refuses files that it could damage, such as JSON with comments.`,
  options: {
    write: { help: "writes the client's file instead of printing what belongs in it" },
    scope: { value: 'SCOPE', help: 'project (the current folder) or user; default: project if the client has it' },
    target: { value: 'NAME', help: 'connects to this target alone (default: to all targets that the user may use)' },
    name: { value: 'NAME', help: `the name of the server in the client (default: the target, or ${DEFAULT_NAME})` },
    token: { help: `the client sends the token in its variable ${VARIABLE} and does not sign in` },
  },
  async run(given, say) {
    const client = clientNamed(given.args[0] ?? '');
    const { url } = serverOf(given);
    const target = given.text('target');
    if (target !== undefined) checkName(target);
    const name = given.text('name') ?? target ?? DEFAULT_NAME;
    if (!NAME.test(name)) throw new UsageError('--name must have 1 to 64 letters, digits, _ and -');
    const isToken = given.flag('token');
    if (isToken && client.noToken !== undefined) throw new UsageError(`${client.title} cannot use --token: ${client.noToken}`);
    if (!isToken && new URL(url).protocol === 'http:' && given.flag('allow-http'))
      say('over plain http, clients can sign in only on the machine of the gateway: elsewhere, use https or --token');
    const scope = scopeOf(client, given);
    if (!isToken) await checkAddress(url, say);
    const machine = machineFromProcess();
    const path = client.files[scope]?.(machine, process.platform) ?? '';
    const server = {
      name,
      url: target === undefined ? `${url}/mcp` : `${url}/mcp/${target}`,
      variable: isToken ? VARIABLE : null,
    };
    const content = client.content(server);
    const next = isToken
      ? `Make a token at ${url}/account, and set ${VARIABLE} to it where ${client.title} starts.`
      : client.next;
    const facts = { client: client.id, scope, path, name, url: server.url };
    if (!given.flag('write')) {
      const text = newText(content);
      return {
        text: `${text}\nThis belongs in ${path} (--write writes it). ${next}\n`,
        json: { ...facts, text, written: false, backup: null },
      };
    }
    try {
      const file = readSettings(path, scope === 'project' ? process.cwd() : null);
      const text = withServer(file.text, content);
      if (text === null)
        return { text: `${path} has this server already. ${next}\n`, json: { ...facts, text, written: false, backup: null } };
      const backup = replaceSettings(file, text);
      const kept = backup === null ? '' : ` The file as it was is in ${backup}.`;
      return { text: `wrote ${path}.${kept} ${next}\n`, json: { ...facts, text: newText(content), written: true, backup } };
    } catch (error) {
      if (!(error instanceof CommandError)) throw error;
      const paste = error.code === 'edit_by_hand' ? `\nAdd this to it yourself:\n${newText(content)}` : '';
      throw new CommandError(`${path} was not changed: ${error.message}${paste}`, error.code);
    }
  },
};
