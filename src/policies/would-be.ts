/** The policy set as it is, and as files or a draft would make it: what questions, tests and replays are about. */
import Joi from 'joi';
import { type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import { AppError } from '../errors.ts';
import type { StoredPolicy } from './document.ts';
import { DRAFT_NAME, type Draft } from './drafts/draft.ts';
import { type PolicyChange, setBefore } from './plan.ts';
import { type PlanBody, planMembers, requestOf } from './set-routes.ts';
import type { PolicySets, TargetName } from './sets.ts';
import { policyStore } from './store.ts';

/** The set of one moment, and what else questions are asked about. */
export interface Moment {
  readonly position: Position;
  readonly policies: readonly StoredPolicy[];
  /** The same, but where `policies` are those that files would make. */
  readonly stored: readonly StoredPolicy[];
  readonly targets: readonly (TargetName & { readonly enabled: boolean })[];
  /** From `stored` to `policies`. */
  readonly changes: readonly PolicyChange[];
}

/** Files as `apply` takes them, or the name of a draft, which has the same; or neither: the set as it is. */
export interface SetSource extends Partial<PlanBody> {
  draft?: string;
}

export const sourceMembers = {
  ...planMembers,
  files: planMembers.files.optional(),
  draft: Joi.string().pattern(DRAFT_NAME).messages({ 'string.pattern.base': 'must be the name of a draft' }),
};

/** What goes with files goes with files alone. `needed`: there must be files or a draft. */
export const withSource = <T>(schema: Joi.ObjectSchema<T>, needed: boolean): Joi.ObjectSchema<T> =>
  (needed ? schema.xor('files', 'draft') : schema.oxor('files', 'draft'))
    .with('owner', 'files')
    .with('prune', 'files')
    .with('adopt', 'files')
    .messages({
      'object.with': 'is for `files`, which are not there',
      'object.missing': 'must have `files`, or `draft`',
      'object.xor': 'must have `files`, or `draft`, and not both',
      'object.oxor': 'must have `files`, or `draft`, and not both',
    });

export interface MomentParts {
  readonly database: Database;
  readonly sets: PolicySets;
  readonly targets: (db: Connection) => Promise<readonly (TargetName & { readonly enabled: boolean })[]>;
  readonly findDraft: (db: Connection, name: string) => Promise<Draft | null>;
}

export interface Moments {
  now(db: Connection): Promise<Moment>;
  /** Throws AppError `not_found` where there is no such draft, and whatever `PolicySets.plan` throws: what could not be applied is refused. */
  of(source: SetSource): Promise<Moment>;
}

export function createMoments({ database, sets, targets, findDraft }: MomentParts): Moments {
  const now = async (db: Connection): Promise<Moment> => {
    const policies = await policyStore(db).all();
    return { position: await readPosition(db), policies, stored: policies, targets: await targets(db), changes: [] };
  };

  async function planOf({ draft, files, ...rest }: SetSource): Promise<PlanBody | null> {
    if (draft === undefined) return files === undefined ? null : { ...rest, files };
    const found = await findDraft(database.knex, draft);
    if (found === null) throw new AppError('not_found', `There is no draft ${draft}.`);
    return { ...rest, files: found.files, owner: found.owner, prune: found.prune, adopt: found.adopt };
  }

  return {
    now,
    async of(source) {
      const body = await planOf(source);
      if (body === null) return database.snapshot(now);
      const { plan, position } = await sets.plan(requestOf(body));
      return {
        position,
        policies: plan.wouldBe,
        stored: setBefore(plan.wouldBe, plan.changes),
        targets: await database.snapshot(targets),
        changes: plan.changes,
      };
    },
  };
}
