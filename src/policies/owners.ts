/** Which policies a caller may plan, change and read, by their owners, and the mark of a change outside of files. */
import { type Held, hasFor, type OWNED_RIGHTS, type Owners } from '../auth/rights.ts';
import { AppError } from '../base/errors.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import type { StoredChange } from './policy-store.ts';

type OwnedRight = (typeof OWNED_RIGHTS)[number];

/** The owner of a policy; null: the policy was created over the API, and belongs to no file. */
export const ownerOf = ({ managed_as }: Pick<StoredPolicy, 'managed_as'>): string | null =>
  managed_as === null ? null : managed_as.slice(0, managed_as.indexOf('/'));

/** Returns the policy with the mark that it was changed outside of its file. `revision`: that of the change. */
export const drifted = (after: StoredPolicy, before: StoredPolicy | null, revision: number): StoredPolicy => ({
  ...after,
  drift_since: after.managed_as === null ? null : (before?.drift_since ?? revision),
});

function forbidden(right: OwnedRight, owner: string | null): AppError {
  const policies = owner === null ? 'policies of all owners and of none' : `policies of the owner ${owner}`;
  return new AppError('forbidden', `This needs the right \`${right}\` for ${policies}. Ask an administrator.`);
}

/** `owner` null: the request concerns all owners, or policies without an owner. Throws AppError `forbidden`. */
export function requireOwner(held: Held, right: OwnedRight, owner: string | null): void {
  if (!hasFor(held, right, owner)) throw forbidden(right, owner);
}

/** Like `requireOwner` for the right to plan, for a thread that knows only the owners. */
export function requireAmong(owners: Owners, owner: string | null): void {
  if (owners !== null && (owner === null || !owners.has(owner))) throw forbidden('policies:plan', owner);
}

/** An adoption changes policies that have no owner. Throws AppError `forbidden`. */
export function requirePlannable(owners: Owners, { owner, adopt }: { readonly owner: string; readonly adopt: boolean }): void {
  requireAmong(owners, adopt ? null : owner);
}

/** The owners whose policies the caller may plan, and therefore read. */
export function plannableOwners({ rights }: Held): Owners {
  const owners = rights.get('policies:plan');
  return owners === undefined ? new Set() : owners;
}

export const isReadable = (owners: Owners, owner: string | null): boolean =>
  owners === null || (owner !== null && owners.has(owner));

/**
 * Throws AppError `forbidden` unless the caller may change each policy, as it is before and as it is afterwards. So a policy can neither
 * be taken from an owner nor given to one. `recorded`: the owners that have a record.
 */
export function requireChanges(held: Held, changes: readonly StoredChange[], recorded: { has(owner: string): boolean }): void {
  for (const { before, after } of changes) {
    for (const policy of [before, after]) {
      if (policy === null) continue;
      const owner = ownerOf(policy);
      requireOwner(held, 'policies:manage', owner);
      if (held.admin || owner === null || recorded.has(owner)) continue;
      throw new AppError(
        'forbidden',
        `The owner ${owner} has no record, so only an administrator may change its policies. Ask an administrator to make a record for owner ${owner} (PUT /api/owners/${owner}).`,
      );
    }
  }
}
