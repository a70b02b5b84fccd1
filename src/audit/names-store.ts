/** Names that callers have requested. They stand in for a catalogue of the targets' objects, which does not exist. */
import type { Connection } from '../db/database.ts';
import type { ResourceType } from '../engine/compile/policy.ts';

export interface SeenObject {
  readonly target_id: string;
  readonly resource_type: ResourceType;
  readonly resource_name: string;
}

/** How many of the newest decisions are searched for names. */
export const LOOKED_AT = 20_000;

/** Returns each requested object once, ordered by target, type and name. The target may not have it. */
export async function seenObjects(db: Connection): Promise<SeenObject[]> {
  const newest = db('audit_decisions')
    .select('target_id', 'resource_type', 'resource_name')
    .orderBy('id', 'desc')
    .limit(LOOKED_AT)
    .as('newest');
  const rows: SeenObject[] = await db.from(newest).distinct('*').whereNotNull('resource_name').whereNotNull('target_id');
  const key = ({ target_id, resource_type, resource_name }: SeenObject): string =>
    `${target_id} ${resource_type} ${resource_name}`;
  return rows.sort((a, b) => (key(a) < key(b) ? -1 : 1));
}
