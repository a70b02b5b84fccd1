/** Names that callers have asked for: there is no catalogue of what targets have. */
import type { Connection } from '../../db/database.ts';
import type { ResourceType } from '../../policies/document.ts';

export interface SeenObject {
  readonly target_id: string;
  readonly resource_type: ResourceType;
  readonly resource_name: string;
}

/** Decisions that are looked at, the newest. */
export const LOOKED_AT = 20_000;

/** Each once, by target, type and name. Whether a target has them is not known: they were asked for. */
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
