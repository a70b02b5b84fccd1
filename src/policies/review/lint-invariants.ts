/** Lint of a folder of policies with the invariants that the security team keeps as files. Pure. */
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Engine } from '../../engine/decision.ts';
import { isOf } from '../files/file.ts';
import { type InvariantFinding, invariantFindings } from '../invariants/findings.ts';
import { errorAt, offlineInvariant, type ParsedInvariantFile } from '../invariants/invariant-files.ts';
import { judge } from '../invariants/judge.ts';
import { type OfflineSet, targetId } from '../sets/offline.ts';

export interface InvariantsBeside {
  readonly files: readonly ParsedInvariantFile[];
  readonly build: (policies: readonly StoredPolicy[]) => Promise<Engine>;
  /** Milliseconds since the epoch. */
  readonly now: number;
}

export interface InvariantPlace {
  readonly name: string;
  readonly file: string;
  readonly line: number;
  readonly column: number;
}

/** Returns the findings about the policies of the folder, and about exceptions that name policies of its owner. */
export async function lintInvariants(set: OfflineSet, { files, build, now }: InvariantsBeside) {
  const { owner, policies, targets, others } = set;
  const invariants = files.map((file) => offlineInvariant(file, policies, targetId));
  // Without a gateway, it is unknown which policies of other owners have exceptions.
  const excepted = [...others.keys()].map((policy) => ({ policy, reason: '', expires_at: Number.POSITIVE_INFINITY }));
  const guarded = invariants.map((invariant) => ({ ...invariant, exceptions: [...invariant.exceptions, ...excepted] }));
  const broken = await judge({ before: [], after: policies, invariants: guarded, targets, now, isStored: () => true }, build);
  const isLost = (policy: string): boolean => isOf(policy, owner);
  const isOurs = ({ policy }: InvariantFinding): boolean => policy === null || set.files.has(policy) || isLost(policy);
  const fileOf = new Map(files.map((file) => [file.file, file]));
  const placeOf = ({ invariant: file, exception }: InvariantFinding): InvariantPlace => {
    const parsed = fileOf.get(file);
    const at = parsed === undefined ? null : errorAt(parsed, exception === null ? 'name' : `exceptions.${exception}`, '');
    return { name: parsed?.invariant.name ?? '', file, line: at?.line ?? 1, column: at?.column ?? 1 };
  };
  return invariantFindings(broken, invariants, policies, { now, isLost })
    .filter(isOurs)
    .map((finding) => ({ ...finding, invariant: placeOf(finding) }));
}
