/** Whether somebody has verified the chain of the audit log, up to which decision and when. */
import { type Content, html, type Markup } from '../../browser/html.ts';
import { timeOf } from '../../browser/page.ts';
import type { VerifiedJson } from '../../rest/audit/contract.ts';
import { unlessRefused, type View } from '../view.ts';

const OLD_DAYS = 31;
const COMMAND = html`<code>portcullis audit verify --report</code>`;
/** Without checkpoints, a verification does not see that the newest records are missing, and its report would take the warning back. */
const WITH_CHECKPOINTS = html`<code>portcullis audit verify --checkpoints checkpoints.jsonl --report</code>`;

/** Returns null if the user may not know. */
export const verificationOf = async ({ get }: View): Promise<VerifiedJson | null> =>
  (await unlessRefused(get<VerifiedJson>('/logs/verification')))?.body ?? null;

/** Returns what is wrong, or null if nothing is. */
export function chainConcern({ verification, full }: VerifiedJson): Content {
  if (verification === null) return html`No verification of the chain was reported. ${COMMAND} verifies it.`;
  const { intact, problems, verified_at } = verification;
  const time = Date.parse(verified_at);
  if (!intact)
    return html`The log is not intact: the verification of ${timeOf(time)} found ${problems} ${problems === 1 ? 'problem' : 'problems'}. ${WITH_CHECKPOINTS} names them.`;
  if (full === null) return html`No verification of the whole chain was reported. ${COMMAND} verifies it.`;
  const fullTime = Date.parse(full.verified_at);
  if (Date.now() - fullTime > OLD_DAYS * 24 * 60 * 60_000)
    return html`The newest verification of the whole chain, of ${timeOf(fullTime)}, is older than ${OLD_DAYS} days. ${COMMAND} verifies it again.`;
  return null;
}

export function chainState(verified: VerifiedJson): Markup {
  const { verification } = verified;
  const concern = chainConcern(verified);
  if (verification === null || !verification.intact) return html`<p><span class="tag find">Chain</span> ${concern}</p>`;
  const { verified_at, decision_id, since, records } = verification;
  return html`<p>${concern === null ? html`<span class="tag">Chain</span> Verified and intact` : html`<span class="tag find">Chain</span> ${concern} It was intact`} at ${timeOf(Date.parse(verified_at))}: ${records.toLocaleString('en')} records${decision_id !== null && html`, up to <a href="/console/log/${decision_id}">the decision <code>${decision_id}</code></a>`}. ${since !== null && html`Only records after the checkpoint of ${timeOf(Date.parse(since))} were read. `}Nobody has verified what was recorded since.</p>`;
}
