/** The command groups of the nouns: those of the table, and the commands that need more than one operation. */
import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import type { UserDocument } from '../../users/document.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, type Client, connect } from '../client.ts';
import { type Command, CommandError, type CommandGroup, type Given, type Option, UsageError } from '../command.ts';
import { isInputTerminal, readText } from '../read-text.ts';
import { idOf } from './find.ts';
import { follow, untilInterrupted } from './follow.ts';
import { LOG_COLUMNS, NOUNS } from './nouns.ts';
import { commandOf, describe, mostOf, perform, queryOf, queryOptions, withQuery } from './operation.ts';
import { tableText } from './table.ts';

/** A command with the operations that it uses, for the test that every operation has a command. */
export interface Composed extends Command {
  readonly does: readonly string[];
}

const DECISIONS = describe('GET /api/logs');
const EXPORT = describe('GET /api/logs/export');
const EARLIER = 10;

const listLog: Composed = {
  does: ['GET /api/logs'],
  name: 'list',
  summary: 'lists decisions, newest first',
  help: 'With --follow, prints decisions as they are recorded, the oldest first, until Ctrl-C. With --json, each is a line.',
  options: {
    ...queryOptions(DECISIONS, 100),
    follow: { help: `prints the last ${EARLIER} (--limit), and then what is recorded` },
  },
  async run(given, say, write) {
    const client = connect(given);
    const query = await queryOf(client, DECISIONS, given);
    if (!given.flag('follow')) return perform(client, DECISIONS, { columns: LOG_COLUMNS, limit: 100 }, { query }, given, say);
    if ('to' in query || 'from' in query) throw new UsageError('--follow takes neither --from nor --to');
    const interrupted = untilInterrupted();
    try {
      const path = (more: object): string => withQuery(DECISIONS.path, { ...query, ...more });
      const following = { path, columns: LOG_COLUMNS, earlier: mostOf(given) ?? EARLIER };
      await follow(client, following, say, write, interrupted.signal);
    } finally {
      interrupted.end();
    }
    return null;
  },
};

const exportLog: Composed = {
  does: ['GET /api/logs/export'],
  name: 'export',
  summary: 'writes the log as a stream of lines, which portcullis audit verify checks if no filter is given',
  options: { ...queryOptions(EXPORT), out: { value: 'FILE', help: 'the file (default: standard output)' } },
  async run(given) {
    const client = connect(given);
    const query = { format: 'ndjson', ...(await queryOf(client, EXPORT, given)) };
    const from = await client.stream(withQuery(EXPORT.path, query));
    const file = given.text('out');
    await pipeline(from, file === undefined ? process.stdout : createWriteStream(file, { mode: 0o600 }), {
      end: file !== undefined,
    }).catch((error: NodeJS.ErrnoException) => {
      // The reader of the output may have read enough, as `head` does.
      if (file === undefined && error.code === 'EPIPE') return;
      throw new CommandError(`the export is not complete: ${error.message}`, 'incomplete');
    });
    return null;
  },
};

const SUBJECTS = {
  user: { value: 'USER', help: 'for a user, by e-mail or id' },
  group: { value: 'GROUP', help: 'for a group' },
  role: { value: 'ROLE', help: 'for a role' },
} as const satisfies Record<string, Option>;

/** The subject that the options name. null: none. */
async function subjectOf(client: Client, given: Given): Promise<{ readonly type: string; readonly value: string } | null> {
  const named = Object.keys(SUBJECTS).filter((option) => given.text(option) !== undefined);
  const [type] = named;
  if (named.length > 1)
    throw new UsageError(
      `pass only one of ${Object.keys(SUBJECTS)
        .map((name) => `--${name}`)
        .join(', ')}`,
    );
  if (type === undefined) return null;
  const value = given.text(type) ?? '';
  return { type, value: type === 'user' ? await idOf(client, 'user', value) : value };
}

const REASON = { reason: { value: 'TEXT', help: 'why; the gateway keeps it with the change' } };
const credentialPaths = (method: string): string[] =>
  ['default', 'role/{value}', 'group/{value}', 'user/{value}'].map((end) => `${method} /api/targets/{id}/credentials/${end}`);

async function credentialRequest(client: Client, method: string, given: Given) {
  const subject = await subjectOf(client, given);
  const id = await idOf(client, 'target', given.args[0] ?? '');
  const end = subject === null ? 'default' : `${subject.type}/{value}`;
  const values: Record<string, string> = { id, ...(subject === null ? {} : { value: subject.value }) };
  return { described: describe(`${method} /api/targets/{id}/credentials/${end}`), values };
}

const setCredential: Composed = {
  does: credentialPaths('PUT'),
  name: 'set',
  takes: '<target>',
  summary: 'sets a credential with which the gateway calls the target: for everybody, or for a user, group or role',
  help: `The value comes from a file or from standard input, and is never shown. Without --header and --env it is a bearer token.
printf %s "$KEY" | portcullis credential set github --header x-api-key --group developers`,
  options: {
    ...SUBJECTS,
    header: { value: 'NAME', help: 'sends the value as this header' },
    env: { value: 'NAME', help: 'gives the value to the process as this variable (stdio)' },
    'value-file': { value: 'FILE', help: 'the file with the value (default: standard input)' },
    ...REASON,
  },
  async run(given, say) {
    const client = connect(given);
    const { described, values } = await credentialRequest(client, 'PUT', given);
    const [header, env] = [given.text('header'), given.text('env')];
    if (header !== undefined && env !== undefined) throw new UsageError('pass either --header or --env, not both');
    const key =
      header !== undefined
        ? { type: 'header', name: header }
        : env !== undefined
          ? { type: 'env', name: env }
          : { type: 'bearer' };
    const file = given.text('value-file') ?? '-';
    if (file === '-' && isInputTerminal())
      throw new UsageError('the value is missing: pass --value-file FILE, or write it to standard input');
    return perform(client, described, {}, { values, body: { ...key, value: readText(file) } }, given, say);
  },
};

const deleteCredential: Composed = {
  does: credentialPaths('DELETE'),
  name: 'delete',
  takes: '<target>',
  summary: 'deletes the credentials for everybody, or for a user, group or role',
  options: { ...SUBJECTS, name: { value: 'NAME', help: 'deletes only the one for this header or variable' }, ...REASON },
  async run(given, say) {
    const client = connect(given);
    const { described, values } = await credentialRequest(client, 'DELETE', given);
    const name = given.text('name');
    return perform(client, described, {}, { values, query: name === undefined ? {} : { name } }, given, say);
  },
};

const giveRight: Composed = {
  does: ['POST /api/rights'],
  name: 'give',
  takes: '<right>',
  summary: 'gives a right to a user, a group or a role',
  options: { ...SUBJECTS, owner: { value: 'NAME', help: 'only for policies of this owner' }, ...REASON },
  async run(given, say) {
    const client = connect(given);
    const subject = await subjectOf(client, given);
    if (subject === null) throw new UsageError('pass --user, --group or --role');
    const owner = given.text('owner');
    const body = {
      subject_type: subject.type,
      subject_value: subject.value,
      right: given.args[0],
      ...(owner === undefined ? {} : { owner }),
    };
    return perform(client, describe('POST /api/rights'), {}, { body }, given, say);
  },
};

const users = (client: Client): Promise<UserDocument[]> => client.list<UserDocument>('/api/users');
const USERS = ['GET /api/users'];

const listGroups: Composed = {
  does: USERS,
  name: 'list',
  summary: 'lists the groups that users are in, with the number of users',
  async run(given) {
    const counts = new Map<string, number>();
    for (const group of (await users(connect(given))).flatMap(({ groups }) => groups))
      counts.set(group, (counts.get(group) ?? 0) + 1);
    const json = [...counts].map(([group, count]) => ({ group, users: count })).sort((a, b) => (a.group < b.group ? -1 : 1));
    return { text: (view) => tableText(json, ['group', 'users'], view), json };
  },
};

const showGroup: Composed = {
  does: USERS,
  name: 'show',
  takes: '<group>',
  summary: 'lists the users of a group',
  async run(given) {
    const json = (await users(connect(given))).filter(({ groups }) => groups.includes(given.args[0] ?? ''));
    return { text: (view) => tableText(json, NOUNS['user']?.verbs['list']?.columns ?? [], view), json };
  },
};

const TRIES = 10;

/** `next` returns the groups that the user has afterwards. */
const changeGroup = (name: string, summary: string, next: (groups: readonly string[], group: string) => string[]): Composed => ({
  does: ['GET /api/users/{id}', 'PUT /api/users/{id}'],
  name,
  takes: '<group> <user>',
  summary,
  help: 'Only groups that administrators gave can be changed here, not those of a provider.',
  options: REASON,
  async run(given, say) {
    const client = connect(given);
    const [group = '', user = ''] = given.args;
    const values = { id: await idOf(client, 'user', user) };
    for (let tried = 1; ; tried++) {
      const { answer, etag } = await client.read<UserDocument>(`/api/users/${values.id}`);
      const member = answer.issuer === 'portcullis' ? 'groups' : 'given_groups';
      const request = { values, body: { [member]: next(answer.given_groups, group) }, ifMatch: etag };
      try {
        return await perform(client, describe('PUT /api/users/{id}'), {}, request, given, say);
      } catch (error) {
        // A different change came between: it may have added a group.
        if (!(error instanceof CommandError && error.code === 'precondition_failed') || tried === TRIES) throw error;
      }
    }
  },
});

const COMPOSED: Readonly<Record<string, readonly Composed[]>> = {
  log: [listLog, exportLog],
  credential: [setCredential, deleteCredential],
  right: [giveRight],
  group: [
    listGroups,
    showGroup,
    changeGroup('add', 'puts a user into a group', (groups, group) => [...new Set([...groups, group])]),
    changeGroup('remove', 'takes a user out of a group', (groups, group) => groups.filter((one) => one !== group)),
  ],
};

const ABOUT: Readonly<Record<string, string>> = {
  group: 'The groups that users are in. A group exists as long as a user is in it.',
};

/** The group of a noun. `more`: further commands. */
export const groupOf = (noun: string, more: readonly Command[] = []): CommandGroup => ({
  path: `portcullis ${noun}`,
  about: NOUNS[noun]?.about ?? ABOUT[noun] ?? '',
  notes: CLIENT_NOTES,
  commands: [
    ...(COMPOSED[noun] ?? []),
    ...Object.entries(NOUNS[noun]?.verbs ?? {}).map(([name, verb]) => commandOf(name, verb)),
    ...more,
  ],
  options: CLIENT_OPTIONS,
});

/** The operations that commands of nouns send. */
export const COVERED: ReadonlySet<string> = new Set([
  ...Object.values(NOUNS).flatMap(({ verbs }) => Object.values(verbs).map(({ does }) => does)),
  ...Object.values(COMPOSED).flatMap((commands) => commands.flatMap(({ does }) => does)),
]);
