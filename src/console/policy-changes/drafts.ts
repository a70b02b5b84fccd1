/** Drafts: changes of policies that are saved but decide nothing yet. Their pages show what they would change. */
import { randomUUID } from 'node:crypto';
import type { LogJson } from '../../audit/search/log-json.ts';
import { AppError } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note, timeOf } from '../../browser/page.ts';
import { possibleNames } from '../../policies/files/file.ts';
import type { DraftJson, DraftSummaryJson } from '../../rest/policy-drafts/routes.ts';
import { act, box, confirmation, type Field, field, noteDone, REASON, refusal } from '../form.ts';
import { inSlices, partOf } from '../lists.ts';
import { column, empty, heading, number, table } from '../marks.ts';
import { type Act, type Changing, type Shown, unlessRefused, type View } from '../view.ts';
import {
  type Candidate,
  consequencesOf,
  hiddenText,
  isLooser,
  type Plan,
  planOf,
  proofNote,
  type Replayed,
  replayOf,
  replaySection,
} from './consequences.ts';
import { aboutTests, testResults, testsIn } from './tests.ts';

export const DRAFTS = '/console/drafts';
const pathOf = (name: string): string => `${DRAFTS}/${name}`;

const LIST_DONE: Readonly<Record<string, string>> = {
  deleted: 'The draft is deleted.',
  effective: 'The draft is effective. Its policies decide from now on.',
};

export async function draftsPage(view: View): Promise<Shown> {
  const { get, done } = view;
  const { body: all } = await get<DraftSummaryJson[]>('/policies/drafts');
  const { items: drafts, others } = partOf(all, view, DRAFTS, 'drafts');
  const row = ({ name, owner, shadow, author, updated_at }: DraftSummaryJson): Markup =>
    html`<tr><th scope="row"><a href="${pathOf(name)}">${name}</a>${shadow && html` <span class="tag">shadow</span>`}</th>
<td data-label="Owner">${owner}</td><td data-label="Saved by">${author.email === '' ? author.id : author.email}</td><td data-label="Saved">${timeOf(Date.parse(updated_at))}</td></tr>`;
  return {
    title: 'Drafts',
    body: html`${heading('Drafts', 'Changes of policies that are saved, but decide nothing yet. A shadow evaluates a draft beside the policies, without effect.')}
${noteDone(LIST_DONE, done)}
${
  drafts.length === 0
    ? empty(
        html`There is no draft. The editor of a policy can save one, a denied decision in the audit log can become one, and <code>portcullis drafts save</code> makes one from files.`,
      )
    : table('Drafts', [column('Draft'), column('Owner'), column('Saved by'), column('Saved')], await inSlices(view, drafts, row))
}${others}`,
  };
}

const DONE: Readonly<Record<string, string>> = {
  saved: 'The draft is saved. It decides nothing until you make it effective.',
  begun: 'The shadow has begun. It evaluates the decisions from now on.',
  ended: 'The shadow has ended.',
};

/** The files of the draft, as the operations that plan take them. */
const candidateOf = ({ files, owner, prune, adopt }: DraftJson) => ({ files, owner, prune, adopt });

export async function draftPage(view: View): Promise<Shown> {
  const { get, id: name, done, refused, may } = view;
  const { body: draft, etag = '' } = await get<DraftJson>(`/policies/drafts/${name}`);
  const plan = await planOrProblem(view, draft);
  const { author, files, owner, prune, shadow, tests, updated_at } = draft;
  const mayManage = may('activateDraft');
  return {
    title: `Draft ${name}`,
    body: html`${heading(html`Draft ${name}`, html`Saved ${timeOf(Date.parse(updated_at))} by ${author.email === '' ? author.id : author.email}, for the owner ${owner}.${prune && ' Policies of the owner without a file in the draft will be deleted.'}`)}
${noteDone(DONE, done)}
${mayManage && proofNote(view)}${refusal(refused, [REASON])}
${
  mayManage &&
  html`<form class="stack form" method="post" action="${pathOf(name)}"><input type="hidden" name="etag" value="${etag}">${'problem' in plan ? null : html`<input type="hidden" name="expected" value="${plan.owner_revision}"><input type="hidden" name="targets" value="${plan.targets_hash}">`}
${field(REASON, refused)}<p class="row">${!('problem' in plan) && act('activate', 'Make it effective', 'cta')}${may('startShadow') && !shadow && act('begin', 'Start a shadow')}${shadow && act('end', 'End the shadow')}${act('delete', 'Delete', 'danger')}</p></form>`
}
${'problem' in plan ? note('bad', html`<p>The draft cannot be applied to the current policies.</p><p>${plan.problem}</p>`) : [await storedTests(view, draft), await consequencesOf(view, plan, await replayOf(view, candidateOf(draft)))]}
${shadow && (await shadowSection(view))}
${await texts(view, 'Files', files)}${Object.keys(tests).length > 0 && (await texts(view, 'Tests, which must pass before it becomes effective', tests))}
<p class="row"><a class="btn plain" href="${DRAFTS}">All drafts</a></p>`,
  };
}

type DraftPlan = Plan & { readonly owner_revision: number; readonly targets_hash: string };

async function planOrProblem(view: View, draft: DraftJson): Promise<DraftPlan | { readonly problem: string }> {
  try {
    return (await planOf(view, candidateOf(draft))) as DraftPlan;
  } catch (error) {
    if (!isRefused(error)) throw error;
    return { problem: error.message };
  }
}

/** A refusal for too many requests says nothing about the draft. */
const isRefused = (error: unknown): error is AppError =>
  error instanceof AppError && error.status < 500 && error.retryAfter === undefined;

/** Runs the tests of the draft. It can become effective only if they pass. */
async function storedTests(view: View, { name, tests }: DraftJson): Promise<Content> {
  if (Object.keys(tests).length === 0) return null;
  try {
    return await testResults(view, { draft: name }, tests);
  } catch (error) {
    if (!isRefused(error)) throw error;
    return note('bad', html`<p>The tests of the draft cannot run on the current policies.</p><p>${error.message}</p>`);
  }
}

interface Shadow extends Replayed {
  readonly problem: string | null;
  readonly from: string;
  readonly to: string;
}

async function shadowSection({ get, id }: View): Promise<Content> {
  const shadow = (await unlessRefused(get<Shadow>(`/policies/drafts/${id}/shadow`)))?.body;
  if (shadow === undefined) return null;
  const { decisions, replayed, grants, refuses, lists, from, to, problem } = shadow;
  return html`${replaySection('shadow', 'Shadow', html`From ${timeOf(Date.parse(from))} to ${timeOf(Date.parse(to))}, ${replayed} of ${decisions} decisions were also made with the draft: it would allow ${grants} that were denied, and deny ${refuses} that were allowed. ${hiddenText(lists.hides)}`, shadow)}
${problem !== null && note('warn', problem)}`;
}

/** A draft can have megabytes of files. The page shows so many characters of one, and of all together. */
const TEXT_SHOWN = 50_000;
const TEXTS_SHOWN = 500_000;

async function texts(view: View, title: string, of: DraftJson['files']): Promise<Markup> {
  let left = TEXTS_SHOWN;
  const one = ([name, text]: readonly [string, string]): Markup => {
    const shown = text.slice(0, Math.min(left, TEXT_SHOWN)).toWellFormed();
    left -= shown.length;
    return html`<details><summary>${name}</summary><pre class="secret" tabindex="0" aria-label="${name}">${shown}</pre>${shown.length < text.length && html`<p class="muted">${number(shown.length)} of ${number(text.length)} characters are shown. <code>GET /api/policies/drafts/${view.id}</code> has the rest.</p>`}</details>`;
  };
  return html`<section class="stack tight" aria-label="${title}"><h2>${title}</h2>${await inSlices(view, Object.entries(of), one)}</section>`;
}

export const changeDraft: Act = async (view) => {
  const { form, id: name, send, get, isRecent, prove } = view;
  const { etag: ifMatch, reason } = form;
  const path = `/policies/drafts/${name}`;
  switch (form['do']) {
    case 'activate': {
      const { body: draft, etag } = await get<DraftJson>(path);
      const expected = { expected_revision: Number(form['expected'] ?? 'none'), expected_targets: form['targets'] ?? '' };
      const plan = isRecent ? null : await planOf(view, { ...candidateOf(draft), ...expected });
      if (plan !== null && isLooser(plan)) prove(form);
      // The form could name all drafts, and a different one could take the place of the draft that the plan is about.
      if (ifMatch !== etag) throw new AppError('precondition_failed', 'The draft has changed since this page showed it.');
      const conditions = { ifMatch, atRevision: plan?.revision };
      await send('POST', `${path}/activate`, { ...expected, ...(reason ? { reason } : {}) }, conditions);
      return `${DRAFTS}?done=effective`;
    }
    case 'begin':
      await send('PUT', `${path}/shadow`, undefined, { reason });
      return `${pathOf(name)}?done=begun`;
    case 'end':
      await send('DELETE', `${path}/shadow`, undefined, { reason });
      return `${pathOf(name)}?done=ended`;
    case 'delete':
      if (form['sure'] !== 'yes')
        return confirmation({
          ...{ title: `Delete the draft ${name}`, losses: ['The draft and its shadow are gone.', 'No decision changes.'] },
          ...{ action: pathOf(name), fields: { do: 'delete', etag: ifMatch ?? '' }, button: `Delete draft ${name}` },
          back: pathOf(name),
        });
      await send('DELETE', path, undefined, { ifMatch, reason });
      return `${DRAFTS}?done=deleted`;
    default:
      throw new AppError('invalid_request', 'This page has no such button.');
  }
};

/** Saves a change as a draft, with the tests of the form, and never in the place of a different draft. Returns the path of its page. */
export async function saveAsDraft({ form, send }: Changing, draft: string, candidate: Candidate): Promise<string> {
  const content = { ...candidate, tests: testsIn(form) };
  await aboutTests(send('PUT', `/policies/drafts/${draft}`, content, { reason: form['reason'] }));
  return `${pathOf(draft)}?done=saved`;
}

/** Returns a name for the draft of a policy with this name. */
export function draftNameFor(policy: string): string {
  const [, file = ''] = possibleNames({ id: randomUUID(), name: policy });
  return file
    .replace(/\.yaml$/, '')
    .slice(-63)
    .replace(/^-+/, '');
}

interface Suggested {
  readonly files: DraftJson['files'];
  readonly prune: boolean;
  readonly adopt: boolean;
  readonly owner: string;
  readonly left_out: readonly { readonly reason: string; readonly policy: { readonly name: string } | null }[];
  readonly skipped: Readonly<Record<string, number>>;
}

const WHOM: Field = {
  ...{ name: 'for', label: 'For' },
  options: [
    ['user', 'this user only'],
    ['role', 'everybody with the role'],
  ],
};

const maySuggest = ({ may }: View): boolean => may('suggestPolicies') && may('saveDraft');

/** What the row of a denied decision has. */
export const draftButton = (view: View, { id, user_email }: Pick<LogJson, 'id' | 'user_email'>): Content =>
  maySuggest(view) &&
  html`<form method="post" action="${`/console/log/${id}`}"><button class="btn plain" name="do" value="draft">Draft a policy<span class="hidden"> that allows this to ${user_email}</span></button></form>`;

/** The form of a denied decision. `isDenied`: a policy denies it, instead of no policy allowing it. */
export const suggestForm = (view: View, isDenied: boolean): Content =>
  maySuggest(view) &&
  html`<section class="stack tight" aria-labelledby="allow"><h2 id="allow">Allow it</h2><p>The gateway makes a draft with the narrowest policy that would allow this request, and shows what it would change. Nothing is allowed until somebody makes the draft effective.</p>
<form class="stack form" method="post" action="${`/console/log/${view.id}`}">${field(WHOM, null)}${isDenied && box('over', 'Also place it before the policy that denies', false)}
<p class="row">${act('draft', 'Draft a policy that allows it')}</p></form></section>`;

/** Makes the draft of the narrowest policies that would allow a denied decision. */
export async function draftFor({ send, id, form }: Changing, from: string): Promise<string> {
  const { body } = await send<Suggested>('POST', '/policies/suggest', {
    ...{ decision_id: id, from, for: form['for'] ?? 'user' },
    ...(form['over'] === 'yes' ? { over_denies: true } : {}),
  });
  const { files, prune, adopt, owner, left_out, skipped } = body;
  if (Object.keys(files).length === 0) throw new AppError('invalid_request', whyNone(left_out[0], skipped));
  const name = `decision-${id}`;
  await send('PUT', `/policies/drafts/${name}`, { files, prune, adopt, owner });
  return `${pathOf(name)}?done=saved`;
}

const WHY: Readonly<Record<string, string>> = {
  denied: 'A policy denies it. Check the box to place the new policy before that one.',
  highest: 'A policy with the highest priority denies it. Change that policy.',
  inexpressible: 'No pattern matches exactly this name.',
  allowed: 'The request was allowed.',
  allowed_now: 'The current policies allow the request already.',
  target_gone: 'The target was deleted.',
  no_target: 'The target does not exist or is disabled.',
  erased: 'The data of the user is erased.',
};

function whyNone(left: Suggested['left_out'][number] | undefined, skipped: Suggested['skipped']): string {
  const reason = left?.reason ?? Object.entries(skipped).find(([, count]) => count > 0)?.[0] ?? '';
  const policy = left?.policy == null ? '' : ` The policy is ${left.policy.name}.`;
  return `No draft was made. ${WHY[reason] ?? 'The request cannot be allowed by a policy.'}${policy}`;
}
