/** Which parts of the state must be loaded again after administrative changes. Pure. */
import type { Changed, ObjectType } from '../db/changes.ts';

export interface Touched {
  readonly policies: boolean;
  readonly sessions: boolean;
  /** Sets of ids. */
  readonly targets: ReadonlySet<string>;
  readonly users: ReadonlySet<string>;
  readonly tokens: ReadonlySet<string>;
}

/**
 * The part of the state that a change affects, by the type of the changed object. The id of that object must identify everything
 * that is affected: a credential has the id of its target. Tokens that end with a change of their user have the id of the user.
 */
const PARTS: Readonly<Record<ObjectType, keyof Touched | null>> = {
  policy: 'policies',
  target: 'targets',
  credential: 'targets',
  session: 'sessions',
  user: 'users',
  token: 'tokens',
  // The verifier loads keys itself, and drafts decide nothing.
  key: null,
  draft: null,
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
