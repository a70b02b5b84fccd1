/**
 * Stands in for `src/audit/writer.ts` in a copy of the gateway that was built for the benchmark, so that what the audit log costs can be
 * seen beside it. Nothing is recorded. The product cannot be told to do this.
 */
import type { GroupCommitWriter } from '../../src/audit/writer.ts';

export function createAuditWriter(): GroupCommitWriter {
  const nothing = async (): Promise<void> => undefined;
  return {
    start: nothing,
    head: () => null,
    decision: nothing,
    shown: nothing,
    outcome: () => undefined,
    forget: () => {},
    works: () => true,
    unsettled: () => ({ decisions: 0, outcomes: 0 }),
    flush: nothing,
    close: nothing,
  };
}
