/** What of the state must be read again after administrative changes. Pure. */
import type { Changed, ObjectType } from '../db/changes.ts';

export interface Touched {
  readonly policies: boolean;
  readonly sessions: boolean;
  /** Ids. */
  readonly targets: ReadonlySet<string>;
  readonly users: ReadonlySet<string>;
  readonly tokens: ReadonlySet<string>;
}

/**
 * The part that a change touches, by the type of its object. The object's id must name all that is touched in it: a credential
 * has the id of its target, and tokens that end with a change of their user have that of the user.
 */
const PARTS: Readonly<Record<ObjectType, keyof Touched | null>> = {
  policy: 'policies',
  target: 'targets',
  credential: 'targets',
  session: 'sessions',
  user: 'users',
  token: 'tokens',
  // Keys are resolved by the verifier, and drafts decide nothing.
  key: null,
  draft: null,
};

const isKnown = (type: string): type is ObjectType => Object.hasOwn(PARTS, type);

/** null: everything, because a newer version of the gateway has changed something that this one does not know. */
export function touchedBy(changed: readonly Changed[]): Touched | null {
  const ids: Record<keyof Touched, Set<string>> = {
    policies: new Set(),
    sessions: new Set(),
    targets: new Set(),
    users: new Set(),
    tokens: new Set(),
  };
  for (const { object_type, object_id } of changed) {
    if (!isKnown(object_type)) return null;
    const part = PARTS[object_type];
    if (part !== null) ids[part].add(object_id);
  }
  return { ...ids, policies: ids.policies.size > 0, sessions: ids.sessions.size > 0 };
}
