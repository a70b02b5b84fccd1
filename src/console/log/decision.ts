/** A decision: why it came out as it did, and how to make it again. */
import type { LogJson } from '../../audit/search/log-json.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import type { Misfit } from '../../engine/explain.ts';
import type { Difference, NotAsked } from '../../policies/reproduction.ts';
import { refusal } from '../form.ts';
import { column, DEFAULT_DENY, decisionMark, effectMark, heading, subjectMark, table } from '../marks.ts';
import { weekAgo } from '../policy-changes/consequences.ts';
import { draftFor, suggestForm } from '../policy-changes/drafts.ts';
import { type Act, type Shown, unlessRefused, type View, withQuery } from '../view.ts';
import { demandFor } from './demand.ts';
import { asked, decider, ended, instant, isDraftable, LOG, quoted } from './log.ts';

export interface Explanation {
  readonly revision: number;
  readonly effect: LogJson['effect'];
  readonly reason: 'matched' | 'default' | 'error' | 'not_canonical';
  readonly policy: { readonly id: string; readonly name: string; readonly priority: number } | null;
  readonly passed_over: readonly {
    readonly id?: string;
    readonly name?: string;
    readonly priority?: number;
    readonly effect: LogJson['effect'];
    readonly misfit: Misfit;
    readonly wants: string | null;
  }[];
  readonly passed_over_count: number;
}

/** Makes the draft of a policy that would allow a denied decision. */
export const draftDecision: Act = (view) => draftFor(view, weekAgo());

export async function decisionPage(view: View): Promise<Shown> {
  const { get, post, id, may, query, refused } = view;
  const { body: entry } = await get<LogJson>(`/logs/${id}`);
  const { user_id, user_email, user_role, user_groups, resource_type, resource_name, target_name } = entry;
  const object = resource_type === null ? {} : { resource_type, resource_name };
  const principal = { role: user_role, groups: user_groups, sub: user_id };
  const isDecidable = entry.reason === 'matched' || entry.reason === 'default';
  const now = isDecidable
    ? await unlessRefused(
        post<Explanation>('/policies/explain', { principal, target: target_name, ...object }),
        // The target may be gone.
        'invalid_request',
      )
    : null;
  return {
    title: 'Decision',
    body: html`${heading(html`Why was this ${entry.effect === 'allow' ? 'allowed' : 'denied'}?`, html`${decisionMark(entry.effect, entry.policy_id)} ${decider(entry)}`)}
${refusal(refused, [])}
<dl class="dl"><dt>Who</dt><dd><a href="/console/users/${user_id}">${user_email === '' ? user_id : user_email}</a>
<span class="tags">${subjectMark({ subject_type: 'role', subject_value: user_role })}${user_groups.map((group) => subjectMark({ subject_type: 'group', subject_value: group }))}</span></dd>
<dt>Asked for</dt><dd>${resource_type} ${asked(entry)} of ${
      entry.target_id === null ? target_name : html`<a href="/console/targets/${entry.target_id}">${target_name}</a>`
    }</dd><dt>Method</dt><dd><code>${entry.method}</code></dd>
<dt>Decided</dt><dd>${instant(entry.created_at)}, at revision ${entry.revision}</dd><dt>Outcome</dt><dd>${ended(entry)}</dd>
<dt>Decision</dt><dd><code>${entry.id}</code></dd></dl>
${now !== null && walk(now.body, `The same request with the policies of revision ${now.body.revision}`, repeated(now.body, entry))}
${isDraftable(entry) && [await demandFor(view, entry), suggestForm(view, entry.policy_id !== null)]}
${
  isDecidable &&
  html`<section class="stack tight" id="again" aria-labelledby="again-title"><h2 id="again-title">Decide it again</h2>
${query['again'] === 'yes' ? await madeAgain(view, entry) : may('reproduceDecision') && html`<p>The gateway makes the decision again with its engine and the policies of revision ${entry.revision}, as their bundle has them.</p><p><a class="btn" href="?again=yes#again">Decide it again here</a></p>`}
${reproduce(entry)}</section>`
}
<p class="row"><a class="btn" href="${withQuery(LOG, { user_id })}">Decisions for this user</a><a class="btn plain" href="${LOG}">Audit log</a></p>`,
  };
}

interface Reproduction {
  readonly result: 'same' | 'differs' | NotAsked;
  readonly differences: readonly Difference[];
}

const DIFFERS: Readonly<Record<Difference['member'], string>> = {
  effect: 'Effect',
  policy_id: 'Policy',
  reason: 'Reason',
  data_hash: 'Hash of the policies',
  engine_hash: 'Hash of the engine',
};

/** What the gateway's own engine decides now, with the policies of that time. */
async function madeAgain({ get }: View, { id, revision }: LogJson): Promise<Content> {
  const { result, differences } = (await get<Reproduction>(`/logs/${id}/reproduction`)).body;
  if (result === 'same')
    return note(
      'done',
      `Same: with the policies of revision ${revision}, the engine made the same decision. Effect, policy, reason, and the hashes of policies and engine are as recorded.`,
    );
  if (result === 'damaged')
    return note(
      'bad',
      'The record of this decision is not what the gateway wrote, or parts of it are missing, so the decision cannot be made again. Verify the log to find out what was changed.',
    );
  if (result === 'unproven')
    return note(
      'warn',
      'The gateway cannot tell whether the record of this decision is what it wrote, because it lacks the master key of that time, or because the record is older than the first chain. Set MASTER_KEY_PREVIOUS to that key.',
    );
  if (result !== 'differs') return note('warn', 'The groups of the user have been erased, so the decision cannot be made again.');
  const isVersion = differences.every(({ member }) => member === 'engine_hash');
  const row = ({ member, recorded, reproduced }: Difference): Markup =>
    html`<tr><th scope="row">${DIFFERS[member]}</th><td data-label="Recorded"><code>${recorded ?? 'none'}</code></td><td data-label="Now"><code>${reproduced ?? 'none'}</code></td></tr>`;
  return html`${isVersion ? note('warn', 'The decision is the same, but a different version of the engine made it then.') : note('bad', `Differs: with the policies of revision ${revision}, the engine makes a different decision than the record has.`)}
${table('What differs', [column('Member'), column('Recorded'), column('Now')], differences.map(row))}`;
}

/** How to make the same decision again, with the policies of that time. */
function reproduce({ id, revision, user_id, user_role, user_groups, target_id, resource_type, resource_name }: LogJson): Markup {
  const caller = { sub: user_id, role: user_role, groups: user_groups, target: target_id };
  const [rule, input] =
    resource_type === null || resource_name === null
      ? ['target', caller]
      : ['decision', { ...caller, type: resource_type, name: resource_name }];
  // A terminal must show what it runs, so characters outside of ASCII are escaped.
  const json = JSON.stringify(input).replaceAll(
    /[^ -~]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
  return html`<details><summary>Decide it again on your machine</summary>
<p class="sm">This command uses the policies of revision ${revision} and the gateway's own engine, and compares the result with the record.</p>
<code class="secret">portcullis audit reproduce ${id}</code>
<p class="sm">Stock OPA needs nothing from the gateway except the bundle. After an erasure, the groups are missing.</p>
<code class="secret">printf '%s\\n' ${quoted(json)} > input.json<br>portcullis bundle --revision ${revision}<br>opa eval -b portcullis.tar.gz -i input.json data.portcullis.reference.${rule}</code></details>`;
}

const repeated = ({ effect, policy }: Explanation, entry: LogJson): string =>
  effect === entry.effect && (policy?.id ?? null) === entry.policy_id
    ? 'The policies decide it as they did then.'
    : 'The policies decide it differently now.';

/** What the policies of today do with a request. Policies that differ in more than the name are only counted. */
export function walk({ effect, policy, passed_over, passed_over_count }: Explanation, title: string, said: string): Markup {
  const near = passed_over.filter(({ misfit }) => misfit === 'pattern');
  const counted = Object.entries(OTHERS).flatMap(([misfit, [one, many]]) => {
    const count = passed_over.filter((other) => other.misfit === misfit).length;
    return count === 0 ? [] : [html`<li class="muted">${count} ${count === 1 ? one : many}</li>`];
  });
  const passed = near.slice(0, NEAR_SHOWN).map(
    ({
      id,
      name,
      priority,
      effect: its,
      wants,
    }) => html`<li>${effectMark(its)} ${policyLink({ id, name })} <span class="muted">priority ${priority}</span>
<span class="sub">Its pattern <code>${wants}</code> does not match the name.</span></li>`,
  );
  const more = passed_over_count - passed_over.length + Math.max(0, near.length - NEAR_SHOWN);
  return html`<section class="stack tight" aria-labelledby="walk"><h2 id="walk">${title}</h2>
<p class="muted">${said} They are evaluated from the top. ${passed_over_count === 0 ? 'The first one decides:' : 'These come before the one that decides, and do not match:'}</p>
<ol class="walk">${counted}${passed}${more > 0 && html`<li class="muted">${more} more</li>`}
<li class="stop">${
    policy === null
      ? html`${DEFAULT_DENY} No policy matches. What no policy allows is denied.`
      : html`${effectMark(effect)} ${policyLink(policy)} <span class="muted">priority ${policy.priority}</span><span class="sub">It matches, so it decides.</span>`
  }</li></ol></section>`;
}

const policyLink = ({ id, name }: { readonly id?: string | null; readonly name?: string }): Content =>
  id === undefined || id === null ? name : html`<a href="/console/policies/${id}">${name}</a>`;

const NEAR_SHOWN = 50;
/** Policies that do not match in anything but the name: one of them, and several. */
const OTHERS = {
  enabled: ['policy that is disabled', 'policies that are disabled'],
  unreadable: ['policy that the gateway cannot read', 'policies that the gateway cannot read'],
  target: ['policy for a different target', 'policies for different targets'],
  resource_type: ['policy for a different type', 'policies for different types'],
  subject: ['policy for different users', 'policies for different users'],
} as const satisfies Record<Exclude<Misfit, 'pattern'>, readonly [string, string]>;
