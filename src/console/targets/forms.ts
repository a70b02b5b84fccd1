/** Pages that make and change targets, and the first policy of one. */
import { createHash } from 'node:crypto';
import { AppError, invalidRequest } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import type { TargetCheck } from '../../mcp/check.ts';
import type { CredentialJson } from '../../targets/credentials.ts';
import type { TargetJson } from '../../targets/document.ts';
import { act, confirmation, type Field, field, isAsShown, noteDone, proofFirst, REASON, refusal } from '../form.ts';
import { inSlices, partOf } from '../lists.ts';
import { column, empty, heading, table } from '../marks.ts';
import { emailsOf, userIdOf, usersIn } from '../people/names.ts';
import { type Act, type Changing, requireMay, type Shown, type View } from '../view.ts';
import { CHOICES, type Choice, chosen, isNameable, policiesFor, type Subject } from './first-policy.ts';
import { checkNote, targetPage } from './targets.ts';

const pathOf = (id: string): string => `/console/targets/${id}`;

const ADDRESS: readonly Field[] = [
  {
    name: 'transport',
    label: 'Transport',
    options: [
      ['streamable-http', 'Streamable HTTP'],
      ['sse', 'HTTP with SSE'],
      ['stdio', 'A command that the gateway runs'],
    ],
  },
  { name: 'url', label: 'URL', type: 'url', hint: 'For HTTP, for example https://mcp.example.com/mcp.' },
  { name: 'command', label: 'Command', hint: 'For a command: its absolute path. The operator must allow it (STDIO_ALLOWED).' },
  { name: 'args', label: 'Arguments', hint: 'For a command, one argument per line.', isLong: true },
];
const NAME: Field = {
  name: 'name',
  label: 'Name',
  required: true,
  hint: 'Lower-case letters, digits and hyphens. It is a part of the address for clients.',
};
const DESCRIPTION: Field = {
  ...{ name: 'description', label: 'Description', hint: 'For administrators. You can leave it out.', isLong: true, rows: 2 },
};
const FIELDS = [NAME, ...ADDRESS, DESCRIPTION];

/** Whether the address of the form sends the calls of users to a different server. */
function isElsewhere(target: TargetJson, address: object): boolean {
  const { transport } = target;
  const own = transport === 'stdio' ? { transport, command: target.command, args: target.args } : { transport, url: target.url };
  return JSON.stringify(own) !== JSON.stringify(address);
}

/** The members of the address that the form has. `args`: the arguments that the form showed. */
function addressIn({ form }: Changing, args: readonly string[] = []): object {
  const { transport = '', url = '', command = '' } = form;
  return transport === 'stdio' ? { transport, command, args: argumentsIn(form['args'] ?? '', args) } : { transport, url };
}

/** Throws AppError `invalid_request` if the text changes arguments of which one is empty: the form drops empty lines. */
function argumentsIn(text: string, shown: readonly string[]): readonly string[] {
  if (isAsShown(text, textOf(shown))) return shown;
  if (shown.includes(''))
    throw invalidRequest([
      { path: 'args', message: 'cannot be changed here, because one of them is empty: use portcullis target update' },
    ]);
  return text.split(/\r?\n/).filter((line) => line !== '');
}
const textOf = (args: readonly string[]): string => args.join('\n');

const descriptionIn = ({ form: { description = '' } }: Changing): string | null =>
  description === '' ? null : description.replaceAll('\r\n', '\n');

export async function newTargetPage(view: View): Promise<Shown> {
  requireMay(view, 'createTarget');
  const { refused } = view;
  return {
    title: 'Add a target',
    body: html`${heading('Add a target', 'A target is an MCP server behind the gateway. Nobody can use it until a policy allows something.')}
${refusal(refused, FIELDS)}
<form class="stack form" method="post" action="/console/targets/new">${FIELDS.map((each) => field(each, refused))}
<p class="row"><button class="btn cta">Add the target</button><a class="btn plain" href="/console/targets">Cancel</a></p></form>`,
  };
}

export const makeTarget: Act = async (view) => {
  view.prove(view.form);
  const { name = '' } = view.form;
  const body = { name, ...addressIn(view), description: descriptionIn(view) };
  const { id } = (await view.send<TargetJson>('POST', '/targets', body)).body;
  return `${pathOf(id)}/allow?done=added`;
};

export async function editTargetPage(view: View): Promise<Shown> {
  requireMay(view, 'createTarget');
  const { get, id, refused } = view;
  const { body: target, etag = '' } = await get<TargetJson>(`/targets/${id}`);
  const values: Record<string, string> =
    target.transport === 'stdio'
      ? { transport: 'stdio', command: target.command, args: textOf(target.args) }
      : { transport: target.transport, url: target.url };
  const fields = [...ADDRESS, DESCRIPTION, REASON];
  return {
    title: `Edit ${target.name}`,
    body: html`${heading(html`Edit ${target.name}`, 'A different address disables the credentials of the target until they are set again.')}
${refusal(refused, fields)}
${refused?.error.code === 'precondition_failed' && note('warn', html`The target was changed meanwhile. <a href="${`${pathOf(id)}/edit`}">Load it again</a> to see how.`)}
<form class="stack form" method="post" action="${`${pathOf(id)}/edit`}"><input type="hidden" name="etag" value="${refused?.form['etag'] ?? etag}">
${fields.map((each) => field(each, refused, each === DESCRIPTION ? (target.description ?? '') : values[each.name]))}
<p class="row"><button class="btn cta">Save</button><a class="btn plain" href="${pathOf(id)}">Cancel</a></p></form>`,
  };
}

export const editTarget: Act = async (view) => {
  const { description = '', etag, reason } = view.form;
  const { body: target } = await view.get<TargetJson>(`/targets/${view.id}`);
  const address = addressIn(view, target.transport === 'stdio' ? target.args : []);
  if (isElsewhere(target, address)) view.prove(view.form);
  const isDescribed = isAsShown(description, target.description ?? '');
  const body = { ...address, description: isDescribed ? target.description : descriptionIn(view) };
  await view.send('PUT', `/targets/${view.id}`, body, { ifMatch: etag, reason });
  return `${pathOf(view.id)}?done=saved`;
};

/** What the buttons of the page of a target do. */
export const operateTarget: Act = async (view) => {
  const { form, id, send, prove } = view;
  switch (form['do']) {
    case 'check': {
      const { body } = await send<TargetCheck>('POST', `/targets/${id}/check`);
      return targetPage(view, checkNote(body));
    }
    case 'enable':
    case 'disable':
      if (form['do'] === 'enable') prove(form);
      await send('PUT', `/targets/${id}`, { enabled: form['do'] === 'enable' });
      return `${pathOf(id)}?done=${form['do']}d`;
    case 'recycle':
      await send('POST', '/sessions/recycle', { target_id: id });
      return `${pathOf(id)}?done=recycled`;
    default:
      throw invalidRequest([{ path: 'do', message: 'is not a button of this page' }]);
  }
};

export async function deleteTargetPage(view: View): Promise<Shown> {
  requireMay(view, 'deleteTarget');
  const { get, id, refused } = view;
  const { body: target } = await get<TargetJson>(`/targets/${id}`);
  return {
    title: `Delete ${target.name}`,
    body: html`${heading(html`Delete the target ${target.name}?`, 'This cannot be undone.')}
${refusal(refused, [TYPED])}
<ul class="bullets"><li>Clients can no longer use <code>/mcp/${target.name}</code>. Their sessions there end.</li>
<li>Its credentials are deleted, and users' own accounts there are disconnected.</li>
<li>Its rows in the audit log stay.</li><li>A target that a policy names cannot be deleted.</li></ul>
<form class="stack form" method="post" action="${`${pathOf(id)}/delete`}">${field(TYPED, refused)}${field(REASON, refused)}
<p class="row"><button class="btn danger">Delete target ${target.name}</button><a class="btn plain" href="${pathOf(id)}">Keep it</a></p></form>`,
  };
}

const TYPED: Field = {
  name: 'typed',
  label: 'Name of the target',
  required: true,
  hint: 'Enter the name to confirm.',
};

export const deleteTarget: Act = async ({ form, id, get, send, prove }) => {
  prove();
  const { body: target, etag } = await get<TargetJson>(`/targets/${id}`);
  if (form['typed'] !== target.name) throw invalidRequest([{ path: 'typed', message: `must be ${target.name}` }]);
  await send('DELETE', `/targets/${id}`, undefined, { ifMatch: etag, reason: form['reason'] });
  return '/console/targets?done=deleted';
};

const CREDENTIAL: readonly Field[] = [
  {
    name: 'subject_type',
    label: 'For',
    options: [
      ['default', 'everybody without a more specific one'],
      ['role', 'a role'],
      ['group', 'a group'],
      ['user', 'a user'],
    ],
  },
  {
    name: 'subject_value',
    label: 'Who',
    hint: 'The name of a role or group, or the e-mail or id of a user. Leave it empty for everybody.',
  },
  {
    name: 'type',
    label: 'Type',
    options: [
      ['bearer', 'Bearer token'],
      ['header', 'Header'],
      ['env', 'Environment variable'],
    ],
  },
  { name: 'key', path: 'name', label: 'Name of the header or variable', hint: 'Leave it empty for a bearer token.' },
  {
    name: 'value',
    label: 'Value',
    type: 'password',
    required: true,
    autocomplete: 'off',
    hint: 'It is stored encrypted, and never shown.',
  },
];

export async function credentialsPage(view: View): Promise<Shown> {
  requireMay(view, 'setDefaultCredential');
  const { get, id, refused, done } = view;
  const [{ body: target }, { body: all }] = await Promise.all([
    get<TargetJson>(`/targets/${id}`),
    get<CredentialJson[]>(`/targets/${id}/credentials`),
  ]);
  const { items: credentials, others } = partOf(all, view, `${pathOf(id)}/credentials`, 'credentials');
  const emails = await emailsOf(view, usersIn(credentials));
  const row = (
    each: CredentialJson,
  ): Markup => html`<tr><th scope="row">${forWhom(each, emails)}</th><td data-label="Type">${each.type}</td><td data-label="Name">${each.name}</td>
<td data-label="State">${each.usable ? 'usable' : html`<span class="tag find">set it again</span>`}</td>
<td class="end"><form method="post" action="${`${pathOf(id)}/credentials`}"><input type="hidden" name="subject_type" value="${each.subject_type}"><input type="hidden" name="subject_value" value="${each.subject_value ?? ''}"><input type="hidden" name="key" value="${each.name}">${act('delete', html`Delete<span class="hidden"> ${each.name} of ${each.subject_type} ${each.subject_value}</span>`, 'danger')}</form></td></tr>`;
  return {
    title: `Credentials of ${target.name}`,
    body: html`${heading(html`Credentials of ${target.name}`, 'With them the gateway calls the target. The most specific one wins: user, group, role, everybody.')}
${noteDone(CREDENTIAL_DONE, done)}${refusal(refused, CREDENTIAL)}
${credentials.length === 0 ? empty('The gateway has no credential for this target.') : table('Credentials', [column('For'), column('Type'), column('Name'), column('State'), html`<th scope="col"><span class="hidden">Action</span></th>`], await inSlices(view, credentials, row))}${others}
${
  proofFirst(view) ??
  html`<h2>Set a credential</h2><form class="stack form" method="post" action="${`${pathOf(id)}/credentials`}">${CREDENTIAL.map((each) => field(each, refused))}<p class="row">${act('set', 'Set the credential', 'cta')}</p></form>`
}
<p><a class="btn plain" href="${pathOf(id)}">Back to ${target.name}</a></p>`,
  };
}

const CREDENTIAL_DONE: Readonly<Record<string, string>> = {
  set: 'The credential is set. The gateway sends it from the next request on.',
  deleted: 'The credential is deleted.',
};

const forWhom = (
  { subject_type, subject_value }: Pick<CredentialJson, 'subject_type' | 'subject_value'>,
  emails: ReadonlyMap<string, string>,
): string => (subject_value === null ? 'everybody' : `${subject_type} ${emails.get(subject_value) ?? subject_value}`);

export const changeCredentials: Act = async (view) => {
  const { form, id, send, prove } = view;
  prove();
  const { subject_type = '', subject_value: named = '', type, key = '', value } = form;
  const subject_value = subject_type === 'user' && named !== '' ? await userIdOf(view, named, 'subject_value') : named;
  if (subject_value === null) throw invalidRequest([{ path: 'subject_value', message: 'is no e-mail or id of a user' }]);
  if (!['default', 'role', 'group', 'user'].includes(subject_type))
    throw invalidRequest([{ path: 'subject_type', message: 'must be one of those that the form offers' }]);
  if (subject_type !== 'default' && subject_value === '')
    throw invalidRequest([{ path: 'subject_value', message: 'is missing' }]);
  const path = `/targets/${id}/credentials/${subject_type === 'default' ? 'default' : `${subject_type}/${encodeURIComponent(subject_value)}`}`;
  const page = `${pathOf(id)}/credentials`;
  if (form['do'] === 'delete') {
    if (form['sure'] !== 'yes')
      return confirmation({
        title: `Delete the credential ${key}`,
        losses: [
          'The gateway no longer sends it to the target, from the next request on.',
          'Its value cannot be brought back. You can set it again.',
        ],
        ...{
          action: page,
          fields: { do: 'delete', subject_type, subject_value, key },
          button: `Delete credential ${key}`,
          back: page,
        },
      });
    await send('DELETE', `${path}?${new URLSearchParams({ name: key })}`, undefined, { reason: form['reason'] });
    return `${page}?done=deleted`;
  }
  await send('PUT', path, { type, ...(key === '' ? {} : { name: key }), value });
  return `${page}?done=set`;
};

const WHOM: readonly Field[] = [
  {
    name: 'choice',
    label: 'Allow',
    options: [
      ['read-only', 'the tools that the target says only read'],
      ['all', 'all tools of this list'],
    ],
  },
  {
    name: 'subject_type',
    label: 'For',
    options: [
      ['role', 'a role'],
      ['group', 'a group'],
      ['everyone', 'everyone'],
    ],
  },
  { name: 'subject_value', label: 'Role or group', hint: 'Not for everyone. The role of administrators is admin.' },
];

/** Tries a target and makes its first policies. Nothing is tried before somebody asks for it, because the target notices. */
export async function allowPage(view: View): Promise<Shown> {
  requireMay(view, 'checkTarget');
  const { get, id, refused, done } = view;
  const { body: target } = await get<TargetJson>(`/targets/${id}`);
  return {
    title: `Allow tools of ${target.name}`,
    body: html`${heading(html`Allow tools of ${target.name}`, 'The gateway opens a session with the target, reads the list of its tools, and ends the session. Then you choose what to allow.')}
${done === 'added' && note('done', 'The target is added. Nobody can use it yet.')}
${refusal(refused, WHOM)}
<form class="row" method="post" action="${`${pathOf(id)}/allow`}">${act('try', 'Try the target', 'cta')}<a class="btn plain" href="${pathOf(id)}">Back to ${target.name}</a></form>`,
  };
}

/** Tells apart two lists of tools, so that nobody allows a tool that was not on the page. */
const digestOf = ({ tools }: TargetCheck): string =>
  createHash('sha256').update(JSON.stringify(tools)).digest('base64url').slice(0, 22);

export const allowTools: Act = async (view) => {
  const { form, id, get, send, prove } = view;
  const { body: target } = await get<TargetJson>(`/targets/${id}`);
  const { body: check } = await send<TargetCheck>('POST', `/targets/${id}/check`);
  if (form['do'] === 'try' || check.fault !== null) return triedPage(view, target, check);
  const choice = CHOICES.find((each) => each === form['choice']) ?? 'none';
  if (form['digest'] !== digestOf(check))
    throw new AppError(
      'precondition_failed',
      'The target lists different tools now. Try it again, and choose from the new list.',
    );
  const { subject_type = '', subject_value = '' } = form;
  if (subject_type !== 'everyone' && subject_value === '')
    throw invalidRequest([{ path: 'subject_value', message: 'is missing' }]);
  const subject = subject_type === 'everyone' ? ({ subject_type } as Subject) : ({ subject_type, subject_value } as Subject);
  const policies = policiesFor(target.name, check.tools, choice as Choice, subject, 'the console');
  if (policies.length === 0) throw invalidRequest([{ path: 'choice', message: 'covers no tool' }]);
  prove(form);
  for (const policy of policies) await send('POST', '/policies', { ...policy, target_id: id });
  return `${pathOf(id)}?done=allowed`;
};

async function triedPage(view: View, { id, name }: TargetJson, check: TargetCheck): Promise<Shown> {
  const { fault, tools, more, server } = check;
  const action = `${pathOf(id)}/allow`;
  const row = (tool: TargetCheck['tools'][number]): Markup =>
    html`<tr><th scope="row"><code>${tool.name}</code><span class="sub">${described(tool.description ?? '')}</span></th><td data-label="Says">${tool.read_only ? 'only reads' : 'may change something'}${!isNameable(tool) && html` <span class="tag find">no policy can name it</span>`}</td></tr>`;
  const again = html`<form class="row" method="post" action="${action}">${act('try', 'Try again')}<a class="btn plain" href="${`${pathOf(id)}/edit`}">Edit the target</a></form>`;
  const body: Content =
    fault !== null
      ? html`${note('bad', html`<p>${fault.message}</p>${fault.stderr !== null && html`<code class="secret">${fault.stderr}</code>`}`)}${again}`
      : tools.length === 0
        ? html`${empty('The target works, and has no tools.')}${again}`
        : html`${table(`Tools of ${name}`, [column('Tool'), column('The target says that it')], await inSlices(view, tools, row))}
${more && html`<p class="muted">The target has more tools than these ${tools.length}. They stay closed.</p>`}
<form class="stack form" method="post" action="${action}"><input type="hidden" name="digest" value="${digestOf(check)}">
${WHOM.map((each) => field(each, null, each.name === 'choice' && chosen(tools, 'read-only').length === 0 ? 'all' : ''))}
<p class="sm muted">The policy names exactly the tools that you allow. Tools that the target gets later stay closed.</p>
<p class="row">${act('allow', 'Make the policy', 'cta')}<a class="btn plain" href="${pathOf(id)}">Allow nothing yet</a></p></form>`;
  return {
    title: `Allow tools of ${name}`,
    body: html`${heading(html`Allow tools of ${name}`, fault === null && server !== null ? html`The target works: it says that it is ${server.name} ${server.version}.` : 'The target does not work.')}${body}`,
  };
}

const DESCRIBED = 200;
const described = (text: string): string => (text.length > DESCRIBED ? `${text.slice(0, DESCRIBED).toWellFormed()}…` : text);
