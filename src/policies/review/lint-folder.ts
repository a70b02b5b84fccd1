/** Lint of a folder of policy files: findings with their places in the files, without those that its authors have accepted. Pure. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { inSlices } from '../../base/turns/slices.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { type AnalysisFinding, analyseInSteps, type Report } from '../analysis/analyse.ts';
import type { PolicyFile, PolicyFileError } from '../files/yaml.ts';
import { subjectKey } from '../schema.ts';
import { type LintReport, lintedPolicy, lintJson } from '../sets/lint-report.ts';
import type { OfflineSet } from '../sets/offline.ts';
import { type Ignore, type LintCode, mayBeHidden, readIgnores } from './ignores.ts';
import { type InvariantPlace, type InvariantsBeside, lintInvariants } from './lint-invariants.ts';

type Linted = LintReport['findings'][number];

/** The place is that in the file; null: the policy belongs to a different owner, so its file is elsewhere. */
export interface FolderPolicy extends ReturnType<typeof lintedPolicy> {
  readonly line: number | null;
  readonly column: number | null;
}

export interface FolderFinding extends Omit<Linted, 'code' | 'policies'> {
  readonly code: LintCode | 'expired_ignore';
  /** The policy that the finding is about comes first. */
  readonly policies: readonly FolderPolicy[];
  /** The invariant that the finding is about, and the place in its file; null: the finding is about none. */
  readonly invariant: InvariantPlace | null;
  /** The same as long as the policy means the same and has the same file. */
  readonly fingerprint: string;
}

export interface HiddenFinding extends FolderFinding {
  readonly hidden_by: 'comment' | 'baseline';
  /** For a comment. */
  readonly reason: string | null;
  readonly until: string | null;
}

export interface FolderLint {
  /** The number of enabled policies. */
  readonly analysed: number;
  readonly findings: readonly FolderFinding[];
  readonly hidden: readonly HiddenFinding[];
}

/** For a finding about one member of the policy; for other findings, the place is the name. */
const MEMBER_OF: Partial<Record<LintCode, keyof PolicyFile>> = {
  unanchored_allow: 'resource_pattern',
  broad_allow: 'resource_pattern',
  matches_no_uri: 'resource_pattern',
  unknown_target: 'target',
  unknown_user: 'subjects',
  unknown_role: 'subjects',
  unknown_group: 'subjects',
  no_subjects: 'subjects',
  tie: 'priority',
};

export interface LintOptions {
  /** The texts of the files by name. */
  readonly texts: ReadonlyMap<string, string>;
  /** The current day in UTC. */
  readonly today: string;
  readonly invariants: InvariantsBeside;
}

/** Analyses the set, and hides what comments in the files hide. */
export async function lintFolder(
  set: OfflineSet,
  { texts, today, invariants }: LintOptions,
): Promise<FolderLint | { readonly errors: readonly PolicyFileError[] }> {
  const errors: PolicyFileError[] = [];
  const ignoresOf = new Map<string, readonly Ignore[]>();
  for (const [id, { file }] of set.files) {
    const read = readIgnores(texts.get(file) ?? '', file);
    if ('errors' in read) errors.push(...read.errors);
    else ignoresOf.set(id, read.ignores);
  }
  if (errors.length > 0) return { errors };

  const report = await reportOn(set);
  const names = new Map(set.targets.map(({ id, name }) => [id, name]));
  const targetName = (id: string): string | undefined => names.get(id);
  const fingerprints = fingerprintsOf(report.findings, set, targetName);
  const found = lintJson(report, set.policies, targetName).findings.map((linted, i) => ({
    ...{ ...linted, policies: linted.policies.map((policy) => placed(policy, set, linted.code)) },
    ...{ invariant: null, fingerprint: fingerprints[i] ?? '' },
  }));
  const findings: FolderFinding[] = [];
  const hidden: HiddenFinding[] = [];
  for (const finding of [...(await aboutInvariants(set, invariants, targetName)), ...found]) {
    const [about] = finding.policies;
    const ignore = ignoresOf.get(about?.id ?? '')?.find(({ code }) => code === finding.code);
    if (ignore === undefined || ignore.until < today) findings.push(finding);
    else hidden.push({ ...finding, hidden_by: 'comment', reason: ignore.reason, until: ignore.until });
  }
  const expired = [...ignoresOf].flatMap(([id, ignores]) =>
    ignores.filter(({ until }) => until < today).map((ignore) => expiredFinding(ignore, id, set)),
  );
  return { analysed: report.analysed, findings: [...findings, ...expired], hidden };
}

async function aboutInvariants(
  set: OfflineSet,
  invariants: InvariantsBeside,
  targetName: (id: string) => string | undefined,
): Promise<FolderFinding[]> {
  const byId = new Map(set.policies.map((policy) => [policy.id, policy]));
  return (await lintInvariants(set, invariants)).map(({ code, severity, message, invariant, policy: id }) => {
    const policy = byId.get(id ?? '');
    const meaning = [set.files.get(id ?? '')?.file ?? id, meaningOf(policy, targetName)];
    return {
      ...{ code, severity, message, witness: null, invariant },
      policies: policy === undefined ? [] : [placed(lintedPolicy(policy), set, code)],
      fingerprint: sha256(JSON.stringify([code, invariant.name, ...meaning])),
    };
  });
}

/** Returns the places in files, the most important one first. `dir`: the folder of the policy files. */
export function placesOf({ code, policies, invariant }: FolderFinding, dir: string) {
  const places = policies.flatMap(({ name, file, line, column }) =>
    file === null || line === null || column === null ? [] : [{ name, path: join(dir, file), line, column }],
  );
  if (invariant === null) return places;
  const { file: path, ...rest } = invariant;
  return code === 'invariant_broken' ? [...places, { ...rest, path }] : [{ ...rest, path }, ...places];
}

/** Hides the findings that the baseline has. `gone`: the number of entries of the baseline without a finding. */
export function hideKnown(
  { findings, hidden, ...rest }: FolderLint,
  baseline: ReadonlySet<string>,
): FolderLint & { readonly gone: number } {
  const isKnown = ({ code, fingerprint }: FolderFinding): boolean => mayBeHidden(code) && baseline.has(fingerprint);
  const known = findings.filter(isKnown);
  const found = new Set([...known, ...hidden].map(({ fingerprint }) => fingerprint));
  return {
    ...rest,
    findings: findings.filter((finding) => !isKnown(finding)),
    hidden: [...hidden, ...known.map((finding) => ({ ...finding, hidden_by: 'baseline', reason: null, until: null }) as const)],
    gone: [...baseline].filter((fingerprint) => !found.has(fingerprint)).length,
  };
}

/** Leaves out the findings about other owners' policies, except those that the files cause. */
async function reportOn({ policies, files, others }: OfflineSet): Promise<Report> {
  const report = await inSlices(analyseInSteps(policies));
  if (others.size === 0) return report;
  const keyOf = ({ code, policy_ids: [about] }: AnalysisFinding): string => `${code} ${about}`;
  const without = new Set((await inSlices(analyseInSteps([...others.values()]))).findings.map(keyOf));
  const isOurs = (finding: AnalysisFinding): boolean => {
    const [about, ...causes] = finding.policy_ids;
    return files.has(about) || (causes.some((id) => files.has(id)) && !without.has(keyOf(finding)));
  };
  return { analysed: report.analysed - others.size, findings: report.findings.filter(isOurs) };
}

function placed(policy: Linted['policies'][number], { files, others }: OfflineSet, code: LintCode): FolderPolicy {
  const file = files.get(policy.id);
  if (file !== undefined) return { ...policy, ...file.locations[MEMBER_OF[code] ?? 'name'] };
  return { ...policy, owner: others.get(policy.id)?.owner ?? null, line: null, column: null };
}

/**
 * Two findings of one kind about one policy differ by their number. Names, priorities, comments, and the order of policies and
 * subjects do not count. A change of what the policy covers makes a different finding, which its reviewers have not accepted yet.
 */
function fingerprintsOf(
  findings: readonly AnalysisFinding[],
  { policies, files }: OfflineSet,
  targetName: (id: string) => string | undefined,
): string[] {
  const byId = new Map(policies.map((policy) => [policy.id, policy]));
  const numbers = new Map<string, number>();
  return findings.map(({ code, policy_ids: [id] }) => {
    const key = JSON.stringify([code, files.get(id)?.file ?? id, meaningOf(byId.get(id), targetName)]);
    const number = numbers.get(key) ?? 0;
    numbers.set(key, number + 1);
    return sha256(`${key} ${number}`);
  });
}

function meaningOf(policy: StoredPolicy | undefined, targetName: (id: string) => string | undefined): unknown {
  if (policy === undefined) return null;
  const { effect, target_id, resource_type, resource_pattern, subjects } = policy;
  return [effect, targetName(target_id ?? '') ?? null, resource_type, resource_pattern, subjects.map(subjectKey).sort()];
}

function expiredFinding(ignore: Ignore, id: string, { policies, files }: OfflineSet): FolderFinding {
  const { code, until, reason, line, column } = ignore;
  const about = policies.filter((policy) => policy.id === id).map((policy) => ({ ...lintedPolicy(policy), line, column }));
  return {
    ...{ code: 'expired_ignore', severity: 'warning', witness: null, policies: about, invariant: null },
    message: `The comment that hid ${code} expired on ${until}: correct the policy, delete the comment, or set a later day. Its reason was: ${reason}`,
    fingerprint: sha256(JSON.stringify(['expired_ignore', files.get(id)?.file, code, until])),
  };
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
