/** Finds the id of what a person names: a target by its name, a user by e-mail. */
import { UUID } from '../../base/validate.ts';
import type { Client } from '../client.ts';
import { CommandError, counted } from '../command.ts';

interface Kind {
  readonly list: string;
  /** The members by which people know it. */
  readonly by: readonly string[];
  /** The command that lists them. */
  readonly command: string;
}

const KINDS = {
  target: { list: '/api/targets', by: ['name'], command: 'portcullis target list' },
  user: { list: '/api/users', by: ['email'], command: 'portcullis user list' },
  policy: { list: '/api/policies', by: ['name'], command: 'portcullis policies export' },
  provider: { list: '/api/providers', by: ['name', 'title'], command: 'portcullis provider list' },
  client: { list: '/api/clients?limit=1000', by: ['name', 'client_id'], command: 'portcullis client list' },
  token: { list: '/api/auth/tokens', by: ['name'], command: 'portcullis token list' },
} as const satisfies Record<string, Kind>;

export type FoundKind = keyof typeof KINDS;
export const isFound = (kind: string): kind is FoundKind => Object.hasOwn(KINDS, kind);

/** Returns the id. A text that looks like an id is one. Throws CommandError if nothing, or more than one thing, has the name. */
export async function idOf(client: Client, kind: FoundKind, name: string): Promise<string> {
  if (UUID.test(name)) return name;
  const { list, by, command }: Kind = KINDS[kind];
  // E-mails are compared as the gateway compares them.
  const key = (text: unknown): unknown => (kind === 'user' && typeof text === 'string' ? text.toLowerCase() : text);
  const all = await client.list<Readonly<Record<string, unknown>>>(list);
  const found = all.filter((one) => by.some((member) => key(one[member]) === key(name)));
  const [first, second] = found.map(({ id }) => String(id));
  if (first === undefined) throw new CommandError(`no ${kind} is called ${name}: ${command} lists them`, 'not_found');
  if (second === undefined) return first;
  const ids = found.map(({ id, issuer }) => (issuer === undefined ? `${id}` : `${id} (${issuer})`)).join(', ');
  throw new CommandError(`${counted(found.length, kind)} are called ${name}: give the id of one, ${ids}`, 'ambiguous');
}
