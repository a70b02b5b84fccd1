/**
 * `/oauth/consent` and `/oauth/device`: what a person sees before an application gets access. The page names the application, where the
 * browser goes next, and what the application may do. Only a form of the page itself answers, and only once.
 */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import type Provider from 'oidc-provider';
import type { Client, InteractionResults } from 'oidc-provider';
import { AppError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { note, redirect, sendPage, timeOf } from '../browser/page.ts';
import type { PageMount } from '../browser/pages.ts';
import { readForm, requireSameOrigin, signInPath } from '../browser/requests.ts';
import type { BrowserSessions, SignedIn } from '../browser/sessions.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { labelOf } from '../users/user-store.ts';
import { type ClientFacts, destinationOf, factsOf, isDocument, isLoopback, sourceOf } from './client-rules.ts';
import type { ClientKind } from './client-store.ts';
import { type Approval, type Grants, MOST_GRANTS } from './grants.ts';
import { CONSENT_PATH, DEVICE_PATH, type Providers } from './provider.ts';
import type { Records } from './record-store.ts';
import { CLI_CLIENT, openidScopes, resourceOf } from './resources.ts';

export interface ConsentParts {
  readonly publicUrl: string;
  readonly providers: Providers;
  readonly sessions: BrowserSessions;
  readonly grants: Grants;
  readonly records: Records;
  readonly limits: RateLimits;
  readonly log: Log;
  readonly now: () => number;
}

type Interaction = Awaited<ReturnType<Provider['interactionDetails']>>;
type DeviceCode = InstanceType<Provider['DeviceCode']>;

/** What an application asks for. */
interface Wanted {
  readonly client: Client;
  readonly facts: ClientFacts;
  readonly params: Readonly<Record<string, unknown>>;
  /** Scopes by resource, as the application names it. */
  readonly resources: Readonly<Record<string, string>>;
  readonly redirectUri: string;
}

const kindOf = (clientId: string): ClientKind =>
  clientId === CLI_CLIENT ? 'built-in' : isDocument(clientId) ? 'document' : 'registered';

const isExpiry = (error: unknown): boolean => error instanceof Error && error.constructor.name === 'SessionNotFound';

const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');

export function createConsent(parts: ConsentParts): readonly PageMount[] {
  return [
    { path: CONSENT_PATH, router: consentRoutes(parts) },
    { path: DEVICE_PATH, router: deviceRoutes(parts) },
  ];
}

/** Returns what the application asks for. null: it asks for a resource that it cannot get. */
function wantedBy(client: Client, params: Readonly<Record<string, unknown>>, publicUrl: string): Wanted | null {
  const resources: Record<string, string> = {};
  for (const indicator of [params['resource']].flat()) {
    const resource = typeof indicator === 'string' ? resourceOf(indicator, client.clientId, publicUrl) : null;
    if (resource === null || typeof indicator !== 'string') return null;
    resources[indicator] = resource.scope;
  }
  const facts = factsOf(client.clientId, client.clientName);
  return { client, facts, params, resources, redirectUri: textOf(params['redirect_uri']) };
}

function approvalOf(
  { client, facts, params, resources, redirectUri }: Wanted,
  { admission }: SignedIn,
  question: Approval['question'],
): Approval {
  return {
    principal: admission.principal,
    question,
    clientId: client.clientId,
    clientKind: kindOf(client.clientId),
    clientName: facts.name,
    redirectUri,
    resources,
    openid: openidScopes(textOf(params['scope'])),
  };
}

/** What the application may do with what it asks for, in words. */
function permissions({ resources, client }: Wanted, publicUrl: string): Markup {
  const paths = Object.keys(resources).map((indicator) => resourceOf(indicator, client.clientId, publicUrl)?.path ?? '');
  return html`<ul>${paths.map((path) => html`<li>${permission(path)}</li>`)}
<li>stay connected until you end the access, for at most 180 days</li></ul>`;
}

function permission(path: string): Content {
  if (path === '/api') return html`use the REST API of this gateway with your rights, except making tokens`;
  if (path === '/mcp') return html`use every target that you may use, at <code>${path}</code>`;
  return html`use the target <code>${path.slice('/mcp/'.length)}</code> as far as you may use it`;
}

/**
 * Whether the application would get the REST API. The access outlives the session, so it needs a recent sign-in, like an API token:
 * otherwise a thief could turn a stolen session into lasting access.
 */
const isForApi = ({ resources, client }: Wanted, publicUrl: string): boolean =>
  Object.keys(resources).some((indicator) => resourceOf(indicator, client.clientId, publicUrl)?.path === '/api');

/** The application that asks. Its name alone proves nothing, because every application can call itself anything. */
function whoAsks({ facts, client }: Wanted): Markup {
  if (client.clientId === CLI_CLIENT)
    return html`<p class="sm muted">The program calls itself the command line of this gateway. The gateway cannot check that.</p>`;
  if (facts.document !== null) return html`<p>Its description is published by <strong>${facts.document}</strong>.</p>`;
  return html`<p class="sm muted">The application registered by itself. No administrator has checked its name.</p>`;
}

function consentRoutes(parts: ConsentParts): Router {
  const { publicUrl, providers, sessions, grants, records, log, now } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  const expired = (res: Response): void =>
    sendPage(res, 400, {
      title: 'This sign-in has expired',
      narrow: true,
      inPopUp: true,
      body: html`<div class="panel"><h1>This sign-in has expired</h1>
<p>It was answered already, it took too long, or this browser did not begin it. Go back to your application and connect again.</p></div>`,
    });

  /** Returns the sign-in that this browser began. null: a page says that there is none. */
  async function interactionOf(provider: Provider, req: Request, res: Response): Promise<Interaction | null> {
    try {
      const interaction = await provider.interactionDetails(req, res);
      if (interaction.uid === req.params['uid']) return interaction;
    } catch (error) {
      if (!isExpiry(error)) throw error;
    }
    expired(res);
    return null;
  }

  /** Returns the user at this browser. null: the browser was sent to the sign-in page. */
  async function userFor(interaction: Interaction, req: Request, res: Response): Promise<SignedIn | null> {
    const current = await sessions.currentUser(req, res);
    const { prompt, max_age: maxAge } = interaction.params as { prompt?: string; max_age?: string };
    // The age counts from the beginning, so that it does not run out while the person reads the page.
    const age = prompt?.split(' ').includes('login') ? 0 : Number(maxAge ?? Number.POSITIVE_INFINITY);
    if (current !== null && current.session.proved_at >= (interaction.iat - age) * 1_000) return current;
    redirect(res, signInPath(`${CONSENT_PATH}/${interaction.uid}`, current !== null));
    return null;
  }

  async function wanted(provider: Provider, { params }: Interaction): Promise<Wanted | null> {
    const client = await provider.Client.find(textOf(params['client_id']));
    return client === undefined ? null : wantedBy(client, params, publicUrl);
  }

  const questionOf = ({ uid }: Interaction) => ({ kind: 'Interaction', id: uid }) as const;

  /** Sends the browser back to the library, which sends it to the application. */
  async function goBack(provider: Provider, req: Request, res: Response, result: InteractionResults): Promise<void> {
    redirect(res, await provider.interactionResult(req, res, result, { mergeWithLastSubmission: false }));
  }

  async function allow(
    provider: Provider,
    req: Request,
    res: Response,
    interaction: Interaction,
    current: SignedIn,
    asked: Wanted,
    silent: boolean,
  ): Promise<void> {
    const { user, session } = current;
    const made = await grants.create(approvalOf(asked, current, questionOf(interaction)), silent);
    switch (made) {
      case 'ended':
        return redirect(res, signInPath(`${CONSENT_PATH}/${interaction.uid}`));
      case 'client':
        return disabled(res, asked);
      case 'answered':
        return expired(res);
      case 'full':
        return full(res);
      case 'ask':
        return consentPage(res, interaction.uid, current, asked, null, publicUrl);
    }
    const { grantId } = made;
    log.info({ user_id: user.id, client: asked.client.clientId, grant: grantId, silent }, 'grant made');
    const login = { accountId: user.id, ts: Math.floor(session.proved_at / 1_000), remember: false };
    await goBack(provider, req, res, { login, consent: { grantId } });
  }

  router.get('/:uid', async (req, res) => {
    const provider = await providers.current();
    const interaction = await interactionOf(provider, req, res);
    if (interaction === null) return;
    const current = await userFor(interaction, req, res);
    if (current === null) return;
    const asked = await wanted(provider, interaction);
    if (asked === null) return expired(res);
    if (isForApi(asked, publicUrl) && !current.isRecent)
      return redirect(res, signInPath(`${CONSENT_PATH}/${interaction.uid}`, true));
    if ((await grants.findClient(asked.client.clientId))?.enabled === false) return disabled(res, asked);
    const earlier = await grants.earlier(approvalOf(asked, current, questionOf(interaction)));
    const { prompt } = interaction.params as { prompt?: string };
    // Any program on the computer can pretend to be one that redirects there, so a person must answer each time (RFC 8252, 8.6).
    const isOwned = asked.redirectUri.startsWith('https:') && asked.client.applicationType === 'web';
    if (earlier?.suffices && isOwned && prompt === undefined) return allow(provider, req, res, interaction, current, asked, true);
    consentPage(res, interaction.uid, current, asked, earlier?.since ?? null, publicUrl);
  });

  router.post('/:uid', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    const form = await readForm(req);
    const provider = await providers.current();
    const interaction = await interactionOf(provider, req, res);
    if (interaction === null) return;
    const current = await userFor(interaction, req, res);
    if (current === null) return;
    // A different user may have signed in since the page was shown.
    if (form['user'] !== current.user.id) return redirect(res, `${CONSENT_PATH}/${interaction.uid}`);
    const asked = await wanted(provider, interaction);
    if (asked === null) return expired(res);
    if (isForApi(asked, publicUrl) && !current.isRecent)
      return redirect(res, signInPath(`${CONSENT_PATH}/${interaction.uid}`, true));
    switch (form['answer']) {
      case 'allow':
        return allow(provider, req, res, interaction, current, asked, false);
      case 'deny':
        if (!(await records.answer('Interaction', interaction.uid, now()))) return expired(res);
        return goBack(provider, req, res, { error: 'access_denied', error_description: 'The user refused the access.' });
      default:
        throw new AppError('invalid_request', 'answer: must be allow or deny');
    }
  });

  return router;
}

const full = (res: Response): void =>
  sendPage(res, 403, {
    title: 'You have allowed too many applications',
    narrow: true,
    inPopUp: true,
    body: html`<div class="panel"><h1>You have allowed too many applications</h1>
<p>At most ${String(MOST_GRANTS)} accesses of applications can be in force for one user. End some of them on <a href="/account">your account
page</a>, then connect again.</p></div>`,
  });

const disabled = (res: Response, { facts }: Pick<Wanted, 'facts'>): void =>
  sendPage(res, 403, {
    title: 'This application is not allowed',
    narrow: true,
    inPopUp: true,
    body: html`<div class="panel"><h1>This application is not allowed</h1>
<p>An administrator has disabled ${facts.name} at this gateway, or its registration has ended. Connect again, and ask your administrator if
that does not help.</p></div>`,
  });

function consentPage(
  res: Response,
  uid: string,
  { user }: SignedIn,
  asked: Wanted,
  earlier: number | null,
  publicUrl: string,
): void {
  const { facts, redirectUri } = asked;
  sendPage(res, 200, {
    title: `Allow ${facts.name}?`,
    narrow: true,
    user,
    formAction: [sourceOf(redirectUri)],
    inPopUp: true,
    body: html`<div class="panel"><h1>Allow ${facts.name} to act for you?</h1>
${whoAsks(asked)}
<p>If you allow it, the application can</p>
${permissions(asked, publicUrl)}
<p>Then your browser goes to <strong>${destinationOf(redirectUri)}</strong>.</p>
${isLoopback(redirectUri) && note('warn', 'Allow this only if you have just started this in a program on this computer.')}
<p class="xs muted"><code>${redirectUri}</code></p>
${earlier !== null && html`<p class="sm muted">You allowed the same on ${timeOf(earlier)}.</p>`}
<form class="stack" method="post" action="${`${CONSENT_PATH}/${uid}`}">
<input type="hidden" name="user" value="${user.id}">
<button class="btn cta wide" name="answer" value="allow">Allow</button>
<button class="btn wide" name="answer" value="deny">Refuse</button>
</form>
<p class="xs muted">You are signed in as ${labelOf(user)}. You can end the access at any time on <a href="/account">your account page</a>.</p></div>`,
  });
}

/** As the library writes codes: capital letters, without separators. */
const normalized = (code: string): string => code.toUpperCase().replaceAll(/[^A-Z0-9]/g, '');
const readable = (code: string): string => `${code.slice(0, 4)}-${code.slice(4)}`;

function deviceRoutes(parts: ConsentParts): Router {
  const { publicUrl, providers, sessions, grants, records, limits, log, now } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  const said = (res: Response, status: number, title: string, text: Content): void =>
    sendPage(res, status, { title, narrow: true, body: html`<div class="panel"><h1>${title}</h1><p>${text}</p></div>` });

  function ask(res: Response, status: number, { user }: SignedIn, code: string, problem: string | null): void {
    sendPage(res, status, {
      title: 'Connect a device',
      narrow: true,
      user,
      body: html`<div class="panel"><h1>Connect a device</h1>
${problem !== null && note('bad', problem)}
<form class="stack" method="post" action="${DEVICE_PATH}">
<div class="field"><label for="user_code">The code that the device shows</label>
<input class="in" id="user_code" name="user_code" autocomplete="off" autocapitalize="characters" spellcheck="false" required value="${code}"></div>
<button class="btn cta wide" name="answer" value="look">Continue</button>
</form>
<p class="xs muted">Enter only a code that you have asked for yourself. Somebody who sends you a code wants to act as you.</p></div>`,
    });
  }

  async function wanted(provider: Provider, device: DeviceCode): Promise<Wanted | null> {
    const client = await provider.Client.find(textOf(device.clientId));
    return client === undefined ? null : wantedBy(client, device.params ?? {}, publicUrl);
  }

  function confirm(res: Response, { user }: SignedIn, code: string, device: DeviceCode, asked: Wanted): void {
    const { address, startedAt } = (device.deviceInfo ?? {}) as { address?: string; startedAt?: number };
    sendPage(res, 200, {
      title: `Allow ${asked.facts.name}?`,
      narrow: true,
      user,
      body: html`<div class="panel"><h1>Allow ${asked.facts.name} to act for you?</h1>
${whoAsks(asked)}
<p>The device must show the code <strong><code>${readable(code)}</code></strong>. It asked${address !== undefined && html` from the address ${address}`}${
        startedAt !== undefined && html` at ${timeOf(startedAt)}`
      }.</p>
<p>If you allow it, the application can</p>
${permissions(asked, publicUrl)}
${note('warn', 'Allow this only if you have started it yourself, on a device that is in front of you.')}
<form class="stack" method="post" action="${DEVICE_PATH}">
<input type="hidden" name="user" value="${user.id}">
<input type="hidden" name="user_code" value="${code}">
<button class="btn cta wide" name="answer" value="allow">Allow</button>
<button class="btn wide" name="answer" value="deny">Refuse</button>
</form>
<p class="xs muted">You are signed in as ${labelOf(user)}.</p></div>`,
    });
  }

  /** Returns the device that shows this code, and what it asks for. null: the code is wrong, has expired, or was used. */
  async function waiting(provider: Provider, code: string): Promise<{ device: DeviceCode; asked: Wanted } | null> {
    const device = await provider.DeviceCode.findByUserCode(code);
    const isOpen = device !== undefined && !device.isExpired && device.error === undefined && device.accountId === undefined;
    const asked = isOpen ? await wanted(provider, device) : null;
    return isOpen && asked !== null ? { device, asked } : null;
  }

  const signedIn =
    (show: (req: Request, res: Response, current: SignedIn) => Promise<void> | void): RequestHandler =>
    async (req, res) => {
      const current = await sessions.currentUser(req, res);
      if (current !== null) return await show(req, res, current);
      const code = normalized(textOf(req.query['user_code'])).slice(0, 8);
      redirect(res, signInPath(code === '' ? DEVICE_PATH : `${DEVICE_PATH}?user_code=${code}`));
    };

  router.get(
    '/',
    signedIn(async (req, res, current) => {
      const code = normalized(textOf(req.query['user_code'])).slice(0, 8);
      const found = code !== '' && limits.linkedUserCode(current.user.id) ? await waiting(await providers.current(), code) : null;
      // A link must not lead an administrator to give their rights to the command line of an attacker. So this code has to be typed.
      const isFilled = found !== null && !isForApi(found.asked, publicUrl);
      ask(res, 200, current, isFilled ? readable(code) : '', null);
    }),
  );

  router.post('/', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    const form = await readForm(req);
    await signedIn(async (_req, _res, current) => {
      // Codes are short. Only signed-in users may try some, and not many.
      const refusal = limits.userCode(current.user.id);
      if (refusal) throw refusal;
      const code = normalized(form['user_code'] ?? '');
      const provider = await providers.current();
      const found = await waiting(provider, code);
      if (found === null) {
        return ask(
          res,
          400,
          current,
          form['user_code'] ?? '',
          'This code is wrong, has expired, or was used. Check it, or start again at the device.',
        );
      }
      const { device, asked } = found;
      if (isForApi(asked, publicUrl) && !current.isRecent) return redirect(res, signInPath(DEVICE_PATH, true));
      const answer = form['answer'];
      if (answer !== 'allow' && answer !== 'deny') return confirm(res, current, code, device, asked);
      // A different user may have signed in since the page was shown.
      if (form['user'] !== current.user.id) return confirm(res, current, code, device, asked);
      const answered = 'This code was answered already. Start again at the device.';
      if (answer === 'deny') {
        if (!(await records.answer('DeviceCode', device.jti, now()))) return ask(res, 400, current, '', answered);
        Object.assign(device, { error: 'access_denied', errorDescription: 'The user refused the access.' });
        await device.save();
        return said(
          res,
          200,
          'Refused',
          'The device gets no access. If you did not start this, somebody may have tried to trick you.',
        );
      }
      const approval = approvalOf(asked, current, { kind: 'DeviceCode', id: device.jti });
      const made = await grants.create(approval);
      switch (made) {
        case 'ended':
          return redirect(res, signInPath(DEVICE_PATH));
        case 'client':
          return disabled(res, asked);
        case 'full':
          return full(res);
        case 'answered':
        case 'ask':
          return ask(res, 400, current, '', answered);
      }
      const { grantId } = made;
      log.info({ user_id: current.user.id, client: asked.client.clientId, grant: grantId }, 'grant made for a device');
      const indicators = Object.keys(asked.resources);
      Object.assign(device, {
        accountId: current.user.id,
        authTime: Math.floor(current.session.proved_at / 1_000),
        grantId,
        scope: [...new Set([...Object.values(asked.resources), ...approval.openid.split(' ')])].filter(Boolean).join(' '),
        resource: indicators.length === 1 ? indicators[0] : indicators,
      });
      await device.save();
      said(res, 200, 'The device is connected', 'You can close this page and continue on the device.');
    })(req, res, () => undefined);
  });

  return router;
}
