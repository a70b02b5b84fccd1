/** Which parts of the state must be loaded again after administrative changes. Pure. */
import type { Changed, ObjectType } from '../db/changes.ts';

export interface Touched {
  readonly policies: boolean;
  readonly sessions: boolean;
  readonly rights: boolean;
  readonly providers: boolean;
  /** Sets of ids. */
  readonly targets: ReadonlySet<string>;
  readonly users: ReadonlySet<string>;
  readonly tokens: ReadonlySet<string>;
}

/**
 * The part of the state that a change affects, by the type of the changed object. The id of that object must identify everything
 * that is affected: a credential or connection has the id of its
 * target. Tokens that end with a change of their user have the id of the user.
 */
const PARTS: Readonly<Record<ObjectType, keyof Touched | null>> = {
  policy: 'policies',
  target: 'targets',
  credential: 'targets',
  connection: 'targets',
  session: 'sessions',
  user: 'users',
  token: 'tokens',
  right: 'rights',
  // A change of a provider also has a change for each user whose role or groups it changes.
  provider: 'providers',
  // A grant is the record of its access tokens.
  grant: 'tokens',
  // A change of a directory's group also has a change for each user whose role or groups it changes.
  directory_group: null,
  // The verifier loads keys itself, browser sessions are read on each request, drafts and the limits of owners decide nothing, and a client
  // ends by its grants.
  key: null,
  draft: null,
  browser_session: null,
  client: null,
  owner: null,
  // An invariant decides nothing.
  invariant: null,
};

const isKnown = (type: string): type is ObjectType => Object.hasOwn(PARTS, type);

/**
 * Returns null if everything must be loaded again, because a newer version of the gateway changed an object that this version
 * does not know.
 */
export function touchedBy(changed: readonly Changed[]): Touched | null {
  const ids: Record<keyof Touched, Set<string>> = {
    policies: new Set(),
    sessions: new Set(),
    rights: new Set(),
    providers: new Set(),
    targets: new Set(),
    users: new Set(),
    tokens: new Set(),
  };
  for (const { object_type, object_id } of changed) {
    if (!isKnown(object_type)) return null;
    const part = PARTS[object_type];
    if (part !== null) ids[part].add(object_id);
  }
  return {
    ...ids,
    policies: ids.policies.size > 0,
    sessions: ids.sessions.size > 0,
    rights: ids.rights.size > 0,
    providers: ids.providers.size > 0,
  };
}

/** Whether the database must be read to follow the changes. Users and tokens are only forgotten. */
export const isRead = ({ policies, sessions, rights, providers, targets }: Touched): boolean =>
  policies || sessions || rights || providers || targets.size > 0;
