/** What administrators change: policies (edits, whole sets, drafts, and questions about them) and targets. */
import { createAddressRule } from '../base/network/network-address.ts';
import type { Connection } from '../db/database.ts';
import { createEngineCache } from '../engine/engines.ts';
import { createCatalogue } from '../mcp/upstream/catalogue.ts';
import { createHealth } from '../mcp/upstream/health.ts';
import { draftStore } from '../policies/drafts/draft-store.ts';
import { createDrafts } from '../policies/drafts/drafts.ts';
import { createPolicyEdits } from '../policies/edit.ts';
import { createHeavyWork } from '../policies/heavy/heavy.ts';
import { createMoments } from '../policies/heavy/moments.ts';
import { createGuard, createInvariantEdits } from '../policies/invariants/invariant-edits.ts';
import { invariantStore } from '../policies/invariants/invariant-store.ts';
import { createOwnerEdits } from '../policies/owner-edits.ts';
import { policyStore } from '../policies/policy-store.ts';
import { createPolicySets } from '../policies/sets/sets.ts';
import { createApplyTested } from '../policies/sets/test-set.ts';
import { createFoundUsers } from '../state/found-users.ts';
import { createTargetEdits } from '../targets/edit.ts';
import { targetStore } from '../targets/target-store.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';
import type { Decisions } from './decisions.ts';

export type Policies = ReturnType<typeof createPolicies>;

export function createPolicies(
  { config, database, newId, now }: Base,
  { module, current, readStoredSet, prepare }: Decisions,
  { administer }: Accounts,
) {
  const targets = (db: Connection) => targetStore(db).page(null, null, null);
  const findDraft = (db: Connection, name: string) => draftStore(db).find(name);
  const foundUsers = createFoundUsers(config.localSignIn, now);
  const heavy = createHeavyWork({ database, targets, findDraft, foundUsers, readStoredSet, now });
  const check = heavy.checkInvariants;
  const parts = {
    ...{ database, administer, readStoredSet, prepare, newId, now },
    guard: createGuard({ database, check, compiled: () => current.fresh(), now }),
    checkPattern: module.checkPattern,
    findNames: heavy.findNames,
  };
  const targetExists = async (db: Connection, id: string) => (await targetStore(db).find(id)) !== null;
  const edits = createPolicyEdits({ ...parts, targetExists });
  const ownerEdits = createOwnerEdits({ ...parts, targetExists, settle: parts.guard.settle });
  const invariants = createInvariantEdits({ ...parts, check, targets, readFiles: heavy.readInvariantFiles });
  const { readFiles, checkSet } = heavy;
  const sets = createPolicySets({ ...parts, targets, readFiles, checkSet });
  const moments = createMoments({ database, targets, readStoredSet, heavy });
  const applyTested = createApplyTested({ sets, test: heavy.test });
  const drafts = createDrafts({ database, administer, sets, applyTested, checkTests: heavy.checkTests, now });
  return {
    ...{ module, edits, ownerEdits, invariants, targets, heavy, sets, readStoredSet, moments, applyTested, drafts, foundUsers },
    engineOf: createEngineCache(module),
    engineBefore: createEngineCache(module),
  };
}

export type Targets = ReturnType<typeof createTargets>;

export function createTargets({ config, vault, newId, now }: Base, { administer }: Accounts) {
  const addresses = createAddressRule(config.allowedAddresses);
  const edits = createTargetEdits({
    ...{ administer, vault, addresses, newId, now },
    allowedCommands: config.stdio.allowed,
    isNamed: async (trx, targetId) =>
      (await policyStore(trx).namesTarget(targetId)) || (await invariantStore(trx).namesTarget(targetId)),
  });
  return { addresses, edits, health: createHealth(now, () => performance.now()), catalogue: createCatalogue(now) };
}
