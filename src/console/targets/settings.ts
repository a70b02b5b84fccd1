/** The page with the settings of a target that most targets do not need. */
import { invalidRequest } from '../../base/errors.ts';
import { type Content, html, type Markup } from '../../browser/html.ts';
import { note } from '../../browser/page.ts';
import { ASKABLE, type Askable } from '../../protocol/capabilities.ts';
import type { TargetJson } from '../../targets/document.ts';
import { box, type Field, type Form, field, REASON, refusal } from '../form.ts';
import { heading } from '../marks.ts';
import { type Act, requireMay, type Shown, type View } from '../view.ts';

const TIMEOUT: Field = {
  name: 'timeout_ms',
  label: 'Timeout',
  hint: 'How many milliseconds the target may be silent during a request. Empty: the value of UPSTREAM_TIMEOUT_MS.',
};
const DENIALS: Field = {
  name: 'denials',
  label: 'A refused call is answered',
  options: [
    ['shown', 'with the reason: policy refuses it'],
    ['hidden', 'like an unknown name'],
  ],
};
const MAY_ASK: Field = { name: 'may_ask', label: 'What the target may request from its clients' };
const CAPTURE: Field = {
  name: 'capture_mask',
  path: 'capture_arguments',
  label: 'Members that are never recorded',
  isLong: true,
  hint: 'One name per line. The values of members with these names are left out of the audit log.',
};
const KEYS: Field = {
  name: 'user_credentials',
  label: 'Credentials that users may supply',
  isLong: true,
  hint: 'One per line: bearer, header <name>, or env <name>.',
};
const METHODS: Field = {
  name: 'extension_methods',
  label: 'Methods that are not in the protocol',
  isLong: true,
  hint: 'One per line: the method; tool, resource or prompt; and the parameter with the name. For example: acme/run tool name.',
};
const COMMON = [TIMEOUT, DENIALS, MAY_ASK, CAPTURE, KEYS, METHODS];

const ISSUER: Field = {
  name: 'issuer',
  path: 'own_accounts.issuer',
  label: 'Authorization server',
  type: 'url',
  hint: 'Its issuer. Empty: the one that the target names.',
};
const CLIENT: Field = {
  name: 'client_id',
  path: 'own_accounts.client_id',
  label: 'Client of the gateway there',
  hint: 'Empty: the gateway registers itself.',
};
const SCOPES: Field = {
  name: 'scopes',
  path: 'own_accounts.scopes',
  label: 'Scopes',
  hint: 'Separated by spaces. Empty: those that the target names.',
};
/** Errors about all of it, such as a client without its server. */
const OWN: Field = { name: 'own', path: 'own_accounts', label: 'Own accounts' };
const OWN_FIELDS = [ISSUER, CLIENT, SCOPES, OWN];

const CWD: Field = { name: 'cwd', label: 'Working folder', hint: 'An absolute path. Empty: a new folder for each process.' };
const ENVIRONMENT: Field = {
  name: 'env',
  label: 'Environment',
  isLong: true,
  hint: 'One NAME=value per line. Administrators can read it, so do not put secrets here. A change disables the credentials until they are set again.',
};
const ISOLATION: Field = {
  name: 'isolation',
  label: 'A process is shared by',
  options: [
    ['per_user', 'nobody: each session has its own'],
    ['per_group', 'users with the same groups'],
    ['per_role', 'users with the same role'],
    ['shared', 'all users'],
  ],
};
const PROCESS_FIELDS = [CWD, ENVIRONMENT, ISOLATION];

const ASKED: Readonly<Record<Askable, string>> = {
  sampling: 'text from the model of the client (sampling)',
  elicitation: 'questions to the user (elicitation)',
  elicitation_url: 'pages that the user opens (elicitation by URL)',
  roots: 'the folders of the client (roots)',
};

/** The text or the boxes of the form, from the target. A checked box is `yes`, as browsers send it. */
function formOf(target: TargetJson): Form {
  const { timeout_ms, denials, may_ask, capture_arguments: capture, user_credentials, extension_methods, own_accounts } = target;
  return {
    ...{ timeout_ms: timeout_ms === null ? '' : String(timeout_ms), denials },
    ...Object.fromEntries(may_ask.map((one) => [`ask-${one}`, 'yes'])),
    ...(capture === null ? {} : { capture: 'yes', capture_mask: capture.mask.join('\n') }),
    user_credentials: user_credentials.map(({ type, name }) => (type === 'bearer' ? type : `${type} ${name}`)).join('\n'),
    extension_methods: extension_methods
      .map(({ method, resource_type, param }) => `${method} ${resource_type} ${param}`)
      .join('\n'),
    ...(own_accounts === null ? { resource: 'yes' } : { own: 'yes', ...(own_accounts.send_resource ? { resource: 'yes' } : {}) }),
    ...{
      issuer: own_accounts?.issuer ?? '',
      client_id: own_accounts?.client_id ?? '',
      scopes: own_accounts?.scopes.join(' ') ?? '',
    },
    ...(target.transport === 'stdio'
      ? { cwd: target.cwd ?? '', env: environmentText(target.env), isolation: target.isolation }
      : {}),
  };
}

const environmentText = (env: Readonly<Record<string, string>>): string =>
  Object.entries(env)
    .map(([name, value]) => `${name}=${value}`)
    .join('\n');

const linesOf = (text = ''): string[] => text.split(/\r?\n/).filter((line) => line !== '');
const orNull = (text = ''): string | null => (text === '' ? null : text);

/** What the operation takes. Throws AppError `invalid_request` for lines that are not in the form that the page names. */
function settingsIn(form: Form, { transport }: TargetJson): object {
  const { timeout_ms = '', denials, capture_mask, user_credentials, extension_methods, issuer, client_id, scopes = '' } = form;
  const own = { issuer: orNull(issuer), client_id: orNull(client_id), scopes: scopes.split(' ').filter((one) => one !== '') };
  const common = {
    ...{ timeout_ms: timeout_ms === '' ? null : /^[0-9]{1,9}$/.test(timeout_ms) ? Number(timeout_ms) : timeout_ms, denials },
    may_ask: ASKABLE.filter((one) => form[`ask-${one}`] === 'yes'),
    capture_arguments: form['capture'] === 'yes' ? { mask: linesOf(capture_mask) } : null,
    user_credentials: linesOf(user_credentials).map((line) => {
      const [type, name, ...rest] = line.split(' ');
      if (rest.length > 0)
        throw invalidRequest([
          { path: 'user_credentials', message: `must have at most two words on each line, unlike "${line}"` },
        ]);
      return { type, ...(name === undefined ? {} : { name }) };
    }),
    extension_methods: linesOf(extension_methods).map((line) => {
      const [method, resource_type, param, ...rest] = line.split(' ');
      if (param === undefined || rest.length > 0)
        throw invalidRequest([{ path: 'extension_methods', message: `must have three words on each line, unlike "${line}"` }]);
      return { method, resource_type, param };
    }),
  };
  if (transport !== 'stdio')
    return { ...common, own_accounts: form['own'] === 'yes' ? { ...own, send_resource: form['resource'] === 'yes' } : null };
  return { ...common, cwd: orNull(form['cwd']), env: environmentIn(form['env']), isolation: form['isolation'] };
}

function environmentIn(text: string | undefined): Record<string, string> {
  const entries = linesOf(text).map((line): [string, string] => {
    const at = line.indexOf('=');
    // The message does not repeat the line, which may have a secret.
    if (at < 1) throw invalidRequest([{ path: 'env', message: 'must have NAME=value on each line' }]);
    return [line.slice(0, at), line.slice(at + 1)];
  });
  if (new Set(entries.map(([name]) => name)).size < entries.length)
    throw invalidRequest([{ path: 'env', message: 'must have each name only once' }]);
  return Object.fromEntries(entries);
}

/** Values with line breaks do not fit the form, which has one variable per line. */
const fitsForm = (target: TargetJson): boolean =>
  target.transport !== 'stdio' || Object.values(target.env).every((value) => !/[\r\n]/.test(value));

export async function settingsPage(view: View): Promise<Shown> {
  requireMay(view, 'createTarget');
  const { get, id, refused } = view;
  const { body: target, etag = '' } = await get<TargetJson>(`/targets/${id}`);
  const [path, given] = [`/console/targets/${id}`, refused?.form ?? formOf(target)];
  const isProcess = target.transport === 'stdio';
  const one = (each: Field): Markup => field(each, refused, given[each.name]);
  const check = (name: string, label: Content): Markup => box(name, label, given[name] === 'yes');
  const fields = [...COMMON, ...(isProcess ? PROCESS_FIELDS : OWN_FIELDS), REASON];
  const ofTransport = isProcess
    ? PROCESS_FIELDS.map(one)
    : html`<fieldset class="stack"><legend>Own accounts</legend>${check('own', 'Each user calls the target with their own account there, and no other credential is used')}
${[ISSUER, CLIENT, SCOPES].map(one)}${check('resource', 'Name the target in requests to the authorization server (RFC 8707)')}</fieldset>`;
  return {
    title: `Settings of ${target.name}`,
    body: html`${heading(html`Settings of ${target.name}`, 'Most targets need none of these.')}
${refusal(refused, fields)}
${refused?.error.code === 'precondition_failed' && note('warn', html`The target was changed meanwhile. <a href="${`${path}/settings`}">Load it again</a> to see how.`)}
${
  fitsForm(target)
    ? html`<form class="stack form" method="post" action="${`${path}/settings`}"><input type="hidden" name="etag" value="${given['etag'] ?? etag}">
${one(TIMEOUT)}${one(DENIALS)}
<fieldset><legend id="f-may_ask">${MAY_ASK.label}</legend>${ASKABLE.map((each) => check(`ask-${each}`, ASKED[each]))}</fieldset>
<fieldset class="stack"><legend>Arguments of calls</legend>${check('capture', 'Record them in the audit log')}${one(CAPTURE)}</fieldset>
${ofTransport}${one(KEYS)}${one(METHODS)}${one(REASON)}
<p class="row"><button class="btn cta">Save</button><a class="btn plain" href="${path}">Cancel</a></p></form>`
    : note(
        'warn',
        html`A variable of the environment has several lines, which this form cannot hold. Use <code>portcullis target update</code>.`,
      )
}`,
  };
}

export const changeSettings: Act = async ({ form, id, get, send, prove }) => {
  prove(form);
  const { body: target } = await get<TargetJson>(`/targets/${id}`);
  await send('PUT', `/targets/${id}`, settingsIn(form, target), { ifMatch: form['etag'], reason: form['reason'] });
  return `/console/targets/${id}?done=saved`;
};
