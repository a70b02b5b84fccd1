/** Pages that create, edit and delete a policy. Before anything is saved, they show what it changes. */
import { randomUUID } from 'node:crypto';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import { NO_OWNER } from '../../engine/compile/shares.ts';
import { DEFAULT_OWNER, ownerIn, possibleNames } from '../../policies/files/file.ts';
import type { PolicyJson } from '../../policies/schema.ts';
import type { TargetJson } from '../../targets/document.ts';
import { act, box, type Field, type Form, field, REASON, refusal } from '../form.ts';
import { heading } from '../marks.ts';
import { userIdOf } from '../people/names.ts';
import { EDITOR_SCRIPTS } from '../style.ts';
import { type Act, type Changing, type Download, requireMay, type Shown, unlessRefused, type View } from '../view.ts';
import { type Candidate, consequencesOf, isLooser, type Plan, planOf, proofNote, replayOf } from './consequences.ts';
import { draftNameFor, saveAsDraft } from './drafts.ts';
import { isLate, lateSection } from './late.ts';
import { patchOf } from './patch.ts';
import { patternSection } from './pattern.ts';
import { TESTS, testSection } from './tests.ts';
import { aboutIn, documentIn, fieldsFor, formOf, NEW, type Wanted, yamlFor, yamlOf } from './wanted.ts';

const POLICIES = '/console/policies';
/** The address of `patternBeside`. */
export const PATTERN = '/console/policy-pattern';
const pathOf = (id: string): string => `${POLICIES}/${id}`;

type Targets = readonly TargetJson[];

async function targetsOf({ get }: View): Promise<Targets> {
  return (await unlessRefused(get<TargetJson[]>('/targets')))?.body ?? [];
}

/** The change in the form of `planPolicies`. A policy that belongs to no file is planned under a name that means this policy alone. */
function candidateOf(before: PolicyJson | null, text: string, noOwner = NO_OWNER): Candidate {
  if (before === null) return { files: { [`new-${randomUUID()}.yaml`]: text }, owner: NO_OWNER, adopt: false };
  const { managed_as } = before;
  const owner = ownerIn(managed_as);
  if (managed_as === null || owner === null)
    return { files: { [possibleNames(before)[2] ?? '']: text }, owner: noOwner, adopt: true };
  return { files: { [fileOf(managed_as, owner)]: text }, owner, adopt: false };
}

const fileOf = (managed: string, owner: string): string => `${managed.slice(owner.length + 1)}.yaml`;

/** The plan for a policy without a file would give it one. The user has not asked for that, and must not see it. */
async function planFor(view: View, candidate: Candidate): Promise<Plan> {
  const plan = await planOf(view, candidate);
  if (candidate.owner !== NO_OWNER) return plan;
  const changes = plan.changes.map((change) => ({
    ...change,
    members: change.members.filter((member) => member !== 'managed_as'),
  }));
  return { ...plan, changes: changes.filter(({ action, members }) => action === 'create' || members.length > 0) };
}

async function consequences(view: View, candidate: Candidate): Promise<Markup> {
  const [plan, replayed] = await Promise.all([planFor(view, candidate), replayOf(view, candidate)]);
  return consequencesOf(view, plan, replayed);
}

/** A plan names an owner, and places in the file, which the user has not seen. Rejects with the error that names the field instead. */
async function planned<T>(form: Form, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (error.code === 'forbidden') {
      throw new AppError('forbidden', error.message.replace(`the owner ${NO_OWNER}`, 'all owners and of none'));
    }
    if (error.errors === undefined) throw error;
    const errors = error.errors.map(({ file, path, message }) => {
      const [, member = '', rest] = /^(\w+) (.*)$/s.exec(message) ?? [];
      if (file === undefined || rest === undefined) return { path, message };
      return form['yaml'] === undefined
        ? { path: member === 'target' ? 'target_id' : member, message: rest }
        : { path: 'yaml', message };
    });
    throw new AppError(error.code, 'The policy cannot be saved.', { errors });
  }
}

/**
 * Asks users to sign in again, unless they have signed in recently or the change allows nothing new. Returns the revision for which the
 * answer holds: two changes that each allow nothing new can do so together.
 */
async function proveIfLooser(view: Changing, candidate: Candidate): Promise<{ readonly atRevision?: number }> {
  if (view.isRecent) return {};
  const plan = await planned(view.form, planOf(view, candidate));
  if (isLooser(plan)) view.prove(view.form);
  return { atRevision: plan.revision };
}

const overrideBox = (policy: PolicyJson | null, form: Form): Content =>
  policy?.managed_as != null &&
  html`${note('warn', html`This policy belongs to the file <code>${policy.managed_as}.yaml</code>. Change the file: download the change as a patch for <code>git apply</code>, or copy the new text from the preview. A change here is reported as drift until the file is applied.`)}
<p>${act('patch', 'Download the patch')}</p>
${box('override', 'Change it here anyway', form['override'] === 'yes')}`;

interface Editor {
  readonly title: string;
  readonly path: string;
  readonly policy: PolicyJson | null;
  readonly etag: string;
  readonly targets: Targets;
  readonly form: Form;
  readonly preview: Content;
  /** What somebody else changed meanwhile. */
  readonly late: Content;
}

function editor(view: View, { title, path, policy, etag, targets, form, preview, late }: Editor): Shown {
  const { refused } = view;
  const isYaml = form['yaml'] !== undefined || refused?.form['yaml'] !== undefined;
  const fields: readonly Field[] = [...(isYaml ? [yamlFor(targets)] : fieldsFor(targets)), TESTS, REASON];
  const given = refused?.form ?? form;
  return {
    title,
    scripts: isYaml ? EDITOR_SCRIPTS : [],
    body: html`${heading(title, isYaml ? html`As YAML. <a href="${path}">Edit it as a form</a>` : html`As a form. <a href="${`${path}?as=yaml`}">Edit it as YAML</a>`)}
${proofNote(view)}${isLate(refused) ? late : refusal(refused, fields)}
<div class="beside"><form class="stack form" method="post" action="${path}"><input type="hidden" name="etag" value="${isLate(refused) ? etag : (given['etag'] ?? etag)}">
${fields.map((each) => field(each, refused, form[each.name] ?? ''))}
${!isYaml && box('enabled', 'Enabled', given['enabled'] === 'yes')}${overrideBox(policy, given)}
<p class="row">${previewButton(path, preview === null)}${view.may('getTargetCatalogue') && tryButton(path)}${act('save', 'Save', preview === null ? '' : 'cta')}${view.may('saveDraft') && act('draft', 'Save as a draft')}<a class="btn plain" href="${policy === null ? POLICIES : pathOf(policy.id)}">Cancel</a></p></form>
<div class="stack" id="preview">${!isYaml && view.may('getTargetCatalogue') && WHILE_TYPING}${preview}</div></div>`,
  };
}

/** What the form holds at first. */
const initial = ({ query }: View, form: Form, yaml: () => string): Form => (query['as'] === 'yaml' ? { yaml: yaml() } : form);

const EXAMPLE: Parameters<typeof yamlOf>[0] = {
  ...{ name: 'New policy', description: null, target_id: null, resource_type: 'tool', resource_pattern: '^name$' },
  ...{ effect: 'allow', priority: 100, enabled: true, subjects: [{ subject_type: 'role', subject_value: 'user' }] },
};

const newEditor = (view: View, targets: Targets, form: Form, preview: Content): Shown =>
  editor(view, { title: 'New policy', path: `${POLICIES}/new`, policy: null, etag: '', targets, form, preview, late: null });

export async function newPolicyPage(view: View): Promise<Shown> {
  requireMay(view, 'createPolicy');
  const targets = await targetsOf(view);
  return newEditor(
    view,
    targets,
    initial(view, NEW, () => yamlOf(EXAMPLE, targets)),
    null,
  );
}

export const makePolicy: Act = async (given) => {
  // First, because YAML is read on this thread.
  requireMay(given, 'createPolicy');
  const view = { ...given, form: await withUserIds(given) };
  const { form, send } = view;
  const targets = await targetsOf(view);
  if (form['do'] === 'try') return { ...newEditor(view, targets, form, await tried(view, targets)), status: 200 };
  const wanted = documentIn(form, targets);
  const text = yamlOf(wanted, targets);
  if (form['do'] === 'draft') return savedDraft(view, null, wanted, text);
  const candidate = candidateOf(null, text);
  if (isPreview(form)) return { ...newEditor(view, targets, form, await previewOf(view, candidate)), status: 200 };
  const proven = await proveIfLooser(view, candidate);
  const { body } = await send<PolicyJson>('POST', '/policies', wanted, { ...proven, reason: form['reason'] });
  return `${pathOf(body.id)}?done=made`;
};

/** People know users by their e-mail, and policies name them by their id. */
async function withUserIds(view: Changing): Promise<Form> {
  const { form } = view;
  const lines = await Promise.all(
    (form['subjects'] ?? '').split('\n').map(async (line) => {
      const [, named] = /^user: ?(.*@.*)$/.exec(line.trimEnd()) ?? [];
      const id = named === undefined ? null : await userIdOf(view, named, 'subjects');
      return id === null ? line : `user: ${id}`;
    }),
  );
  return form['subjects'] === undefined ? form : { ...form, subjects: lines.join('\n') };
}

/** The other fields need no value for it. */
const tryButton = (path: string): Markup =>
  html`<button class="btn" name="do" value="try" formnovalidate formaction="${shownAt(path)}">Try the pattern</button>`;

/** Both lead to what they show, which may be below the form. The address of a page to which a change leads must not get that. */
const shownAt = (path: string): string => `${path}#preview`;

/** Before they save, people look at what the change does. */
const previewButton = (path: string, isFirst: boolean): Markup =>
  html`<button class="btn ${isFirst ? 'cta' : ''}" name="do" value="preview" formaction="${shownAt(path)}">Show what this changes</button>`;

/** Shows the same while the user types, if scripts run. */
const WHILE_TYPING = html`<pattern-try data-tried="${PATTERN}"><p class="hidden" role="status"></p><div></div></pattern-try>`;

/** What the pattern of the form matches now. The other members need not be complete. */
function tried(view: Changing, targets: Targets): Promise<Markup> {
  const { form } = view;
  return patternSection(view, form['yaml'] === undefined ? aboutIn(form) : documentIn(form, targets), targets);
}

/** Saves the change as a draft. Nothing is decided by it before it becomes effective, so it needs no proof. */
function savedDraft(view: Changing, before: PolicyJson | null, { name }: Wanted, text: string): Promise<string> {
  const draft = draftNameFor(name);
  const candidate =
    before === null
      ? { files: { [`${draft}.yaml`]: text }, owner: DEFAULT_OWNER, adopt: false }
      : candidateOf(before, text, DEFAULT_OWNER);
  return planned(view.form, saveAsDraft(view, draft, candidate));
}

/** Throws AppError `invalid_request`. */
function isPreview(form: Form): boolean {
  if (form['do'] === 'preview') return true;
  if (form['do'] === 'save') return false;
  throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
}

type Edited = Pick<Editor, 'etag' | 'targets' | 'form' | 'preview' | 'late'> & { readonly policy: PolicyJson };

const changeEditor = (view: View, edited: Edited): Shown =>
  editor(view, { ...edited, title: `Edit ${edited.policy.name}`, path: `${pathOf(edited.policy.id)}/edit` });

export async function editPolicyPage(view: View): Promise<Shown> {
  requireMay(view, 'updatePolicy');
  const [targets, { body: policy, etag = '' }] = await Promise.all([
    targetsOf(view),
    view.get<PolicyJson>(`/policies/${view.id}`),
  ]);
  const form = initial(view, formOf(policy), () => yamlOf(policy, targets));
  return changeEditor(view, { policy, etag, targets, form, preview: null, late: await lateSection(view, policy, targets) });
}

export const savePolicy: Act = async (given) => {
  requireMay(given, 'updatePolicy');
  const view = { ...given, form: await withUserIds(given) };
  const { form, id, send } = view;
  const [targets, { body: policy, etag = '' }] = await Promise.all([targetsOf(view), view.get<PolicyJson>(`/policies/${id}`)]);
  if (form['do'] === 'try')
    return {
      ...changeEditor(view, { policy, etag, targets, form, preview: await tried(view, targets), late: null }),
      status: 200,
    };
  const wanted = documentIn(form, targets);
  const text = yamlOf(wanted, targets);
  if (form['do'] === 'patch') return patchFor(policy, yamlOf(policy, targets), text);
  if (form['do'] === 'draft') return savedDraft(view, policy, wanted, text);
  const candidate = candidateOf(policy, text);
  if (isPreview(form)) {
    const preview = html`${await previewOf(view, candidate)}${fileSection(policy, wanted, text)}`;
    return { ...changeEditor(view, { policy, etag, targets, form, preview, late: null }), status: 200 };
  }
  const proven = await proveIfLooser(view, candidate);
  const conditions = { ...proven, ifMatch: form['etag'], reason: form['reason'] };
  await send('PUT', `/policies/${id}${overriding(form)}`, wanted, conditions);
  return `${pathOf(id)}?done=saved`;
};

async function previewOf(view: Changing, candidate: Candidate): Promise<Content> {
  const done = await planned(view.form, consequences(view, candidate));
  return [await testSection(view, view.form, candidate), done];
}

/** The change of the file of a policy, for the folder that has the folder `policies`. Throws AppError `invalid_request`. */
function patchFor({ managed_as }: PolicyJson, before: string, after: string | null): Download {
  const name = managed_as === null ? null : fileOf(managed_as, ownerIn(managed_as) ?? '');
  const text = name === null ? null : patchOf(`policies/${name}`, before, after);
  if (text === null) throw invalidRequest([{ path: 'do', message: 'needs a policy of a file, and a change' }]);
  return { fileName: `${name}.patch`, text };
}

const overriding = (form: Form): string => (form['override'] === 'yes' ? '?override=true' : '');

/** For a policy of a file: the text to commit. */
const fileSection = ({ managed_as }: PolicyJson, { name }: Wanted, text: string): Content =>
  managed_as !== null &&
  html`<section class="stack tight" aria-labelledby="file"><h2 id="file">The file ${managed_as}.yaml with this change</h2>
<div class="field"><label for="f-file">New text of the file of ${name}</label><textarea class="in" id="f-file" rows="12" readonly>${text}</textarea></div></section>`;

export async function deletePolicyPage(view: View): Promise<Shown> {
  requireMay(view, 'deletePolicy');
  const { get, id, refused } = view;
  const [targets, { body: policy, etag = '' }] = await Promise.all([targetsOf(view), get<PolicyJson>(`/policies/${id}`)]);
  const preview = await planned({}, consequences(view, withoutIt(policy, targets)));
  return {
    title: `Delete ${policy.name}`,
    body: html`${heading(html`Delete the policy ${policy.name}?`, 'The history keeps it, so that a rollback can restore it. The preview shows the policy as disabled, which has the same effect.')}
${proofNote(view)}${refusal(refused, [REASON])}
<form class="stack form" method="post" action="${`${pathOf(id)}/delete`}"><input type="hidden" name="etag" value="${etag}">
${overrideBox(policy, refused?.form ?? {})}${field(REASON, refused)}
<p class="row"><button class="btn danger">Delete policy ${policy.name}</button><a class="btn plain" href="${pathOf(id)}">Keep it</a></p></form>
${preview}`,
  };
}

/** A policy that is disabled decides nothing, like one that does not exist. */
const withoutIt = (policy: PolicyJson, targets: Targets): Candidate =>
  candidateOf(policy, yamlOf({ ...policy, enabled: false }, targets));

export const deletePolicy: Act = async (view) => {
  const { form, id, send } = view;
  const [targets, { body: policy }] = await Promise.all([targetsOf(view), view.get<PolicyJson>(`/policies/${id}`)]);
  if (form['do'] === 'patch') return patchFor(policy, yamlOf(policy, targets), null);
  const proven = await proveIfLooser(view, withoutIt(policy, targets));
  const conditions = { ...proven, ifMatch: form['etag'], reason: form['reason'] };
  await send('DELETE', `/policies/${id}${overriding(form)}`, undefined, conditions);
  return `${POLICIES}?done=deleted`;
};

/** The links of the page of a policy. */
export const changeLinks = ({ may }: View, { id }: PolicyJson): Markup =>
  html`${may('updatePolicy') && html`<a class="btn" href="${`${pathOf(id)}/edit`}">Edit</a>`}${may('deletePolicy') && html`<a class="btn" href="${`${pathOf(id)}/delete`}">Delete</a>`}`;
