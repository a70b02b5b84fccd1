/** The known findings of a folder, as a file in git: lint hides them and reports only others. Pure. */
import { readJsonText } from '../../base/json/json.ts';
import { mayBeHidden } from './ignores.ts';
import type { FolderFinding } from './lint-folder.ts';

const VERSION = 1;
const FINGERPRINT = /^[0-9a-f]{64}$/;
const MEMBERS = 'code,file,fingerprint';

/** Returns the text of the file. It depends only on the findings, not on their order. */
export function formatBaseline(findings: readonly FolderFinding[]): string {
  const known = findings
    .filter(({ code }) => mayBeHidden(code))
    .map(({ code, policies: [about], fingerprint }) => ({ code, file: about?.file ?? null, fingerprint }))
    .sort((a, b) => (a.fingerprint < b.fingerprint ? -1 : 1));
  return `${JSON.stringify({ portcullis_baseline: VERSION, findings: known }, null, 2)}\n`;
}

/** Returns the fingerprints, or the reason why the text is refused. */
export function readBaseline(text: string): ReadonlySet<string> | string {
  const read = readJsonText(text);
  if (!read.ok) return read.reason;
  const { portcullis_baseline: version, findings, ...rest } = Object(read.value) as Record<string, unknown>;
  if (version !== VERSION) return `it must be a baseline of version ${VERSION}`;
  if (!Array.isArray(findings) || Object.keys(rest).length > 0) return 'it must have the list findings, and no other members';
  const known = new Set<string>();
  for (const [i, finding] of findings.entries()) {
    const { code, fingerprint } = Object(finding) as Record<string, unknown>;
    const isWhole = Object.keys(Object(finding)).sort().join() === MEMBERS;
    if (!isWhole || typeof fingerprint !== 'string' || !FINGERPRINT.test(fingerprint)) {
      return `findings.${i} must have exactly the members code, file and fingerprint (64 hexadecimal digits)`;
    }
    if (typeof code !== 'string' || !mayBeHidden(code)) return `findings.${i}.code is not a finding that can be hidden`;
    known.add(fingerprint);
  }
  return known;
}
