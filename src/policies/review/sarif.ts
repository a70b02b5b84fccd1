/**
 * Findings of lint as SARIF 2.1.0, which code scanning displays. Pure.
 * https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
 */
import type { Severity } from '../analysis/analyse.ts';
import { LINT_SEVERITIES } from './ignores.ts';
import { type FolderFinding, type FolderLint, type HiddenFinding, placesOf } from './lint-folder.ts';

const RULES: Readonly<Record<FolderFinding['code'], string>> = {
  contradiction: 'Policies that are evaluated earlier give the opposite effect to every object that this policy matches.',
  unreachable: 'The policy decides nothing.',
  shadowed: 'The policy decides about no object, but it still decides whether its callers may use the target.',
  unanchored_allow: 'The pattern of the allow does not constrain the start of the name.',
  broad_allow: 'The allow lets everyone use every name of a type, or its pattern restricts nothing.',
  unknown_target: 'The policy names a target that does not exist.',
  unknown_user: 'The policy names a user that does not exist.',
  unknown_role: 'The policy names a role that no user has.',
  unknown_group: 'The policy names a group that no user has.',
  matches_no_uri: 'The policy is for resources, but its pattern matches no canonical URI.',
  no_subjects: 'The policy applies to no caller.',
  tie: 'The allow loses requests to a deny of the same priority.',
  redundant: 'Without the policy, every request would have the same effect.',
  equal_name: 'Other policies have the same name.',
  undecided: 'The analysis reached its limits, so a question about the policy is open.',
  invariant_broken: 'The policies allow a request that an invariant forbids.',
  expired_exception: 'An exception of an invariant has expired, so it no longer counts.',
  lost_exception: 'An exception of an invariant names a policy that does not exist.',
  expiring_exception: 'An exception of an invariant expires soon.',
  expired_ignore: 'A comment that hid a finding has expired.',
};

const LEVELS = { error: 'error', warning: 'warning', info: 'note' } as const satisfies Record<Severity, string>;
const severityOf = (code: FolderFinding['code']): Severity => (code === 'expired_ignore' ? 'warning' : LINT_SEVERITIES[code]);

export interface SarifOptions {
  readonly version: string;
  /** The folder of the policy files. */
  readonly dir: string;
  /** Returns a path from the root of the repository, as a relative URI. */
  readonly uriOf: (path: string) => string;
}

export function sarifOf({ findings, hidden }: FolderLint, { version, dir, uriOf }: SarifOptions): object {
  const codes = Object.keys(RULES) as FolderFinding['code'][];
  const result = (finding: FolderFinding, suppressions: readonly object[]) => {
    const [place, ...related] = placesOf(finding, dir).map((at) => locationOf(at, uriOf));
    return {
      ruleId: finding.code,
      ruleIndex: codes.indexOf(finding.code),
      level: LEVELS[finding.severity],
      message: { text: messageText(finding.message) },
      ...(place === undefined ? {} : { locations: [place] }),
      ...(related.length === 0 ? {} : { relatedLocations: related }),
      // Code scanning reads this fingerprint only.
      partialFingerprints: { primaryLocationLineHash: finding.fingerprint },
      suppressions,
      properties: { owner: finding.policies[0]?.owner ?? null },
    };
  };
  return {
    $schema: 'https://json.schemastore.org/sarif-2.1.0.json',
    version: '2.1.0',
    runs: [
      {
        tool: { driver: { name: 'Portcullis', version, rules: codes.map(ruleOf) } },
        columnKind: 'utf16CodeUnits',
        results: [
          ...findings.map((finding) => result(finding, [])),
          ...hidden.map((finding) => result(finding, [suppressionOf(finding)])),
        ],
      },
    ],
  };
}

const ruleOf = (code: FolderFinding['code']) => ({
  id: code,
  shortDescription: { text: RULES[code] },
  fullDescription: { text: RULES[code] },
  help: { text: `${RULES[code]} docs/policies.md, "Lint and analysis", says more.` },
  defaultConfiguration: { level: LEVELS[severityOf(code)] },
  properties: { tags: ['policy'], precision: 'very-high' },
});

const suppressionOf = ({ hidden_by, reason, until }: HiddenFinding) =>
  hidden_by === 'comment'
    ? { kind: 'inSource', status: 'accepted', justification: messageText(`${reason} (until ${until})`) }
    : { kind: 'external', status: 'accepted', justification: 'The baseline has this finding.' };

const locationOf = ({ name, path, line, column }: ReturnType<typeof placesOf>[number], uriOf: SarifOptions['uriOf']) => ({
  physicalLocation: { artifactLocation: { uri: uriOf(path) }, region: { startLine: line, startColumn: column } },
  message: { text: messageText(name) },
});

/**
 * Names come from strangers, and viewers interpret messages: `[text](address)` is a link, and `{0}` is replaced. Control characters and
 * characters that reverse text are escaped where the document is written.
 */
const messageText = (text: string): string => text.replaceAll('](', '] (').replace(/[{}]/g, (brace) => brace + brace);
