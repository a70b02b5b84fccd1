/** The targets: how administrators change them, which addresses are allowed, and which of them fail. */
import { createAddressRule } from '../base/network-address.ts';
import { createHealth } from '../mcp/upstream/health.ts';
import { policyStore } from '../policies/policy-store.ts';
import { createTargetEdits } from '../targets/edit.ts';
import type { Accounts } from './accounts.ts';
import type { Base } from './base.ts';

export type Targets = ReturnType<typeof createTargets>;

export function createTargets({ config, vault, newId, now }: Base, { administer }: Accounts) {
  const addresses = createAddressRule(config.allowedAddresses);
  const edits = createTargetEdits({
    ...{ administer, vault, addresses, newId, now },
    allowedCommands: config.stdio.allowed,
    isNamed: (trx, targetId) => policyStore(trx).namesTarget(targetId),
  });
  return { addresses, edits, health: createHealth(now) };
}
