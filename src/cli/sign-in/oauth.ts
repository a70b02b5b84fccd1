/** The command line as an OAuth client of the gateway: authorization code with PKCE (RFC 8252), device flow (RFC 8628), refresh, revocation. */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { CommandError } from '../command.ts';
import { reach } from '../reach.ts';
import type { StoredLogin } from './logins.ts';

const CLIENT_ID = 'portcullis-cli';
const METADATA_PATH = '/.well-known/oauth-authorization-server';
/** How long a person may take to sign in. */
const SIGN_IN_MS = 10 * 60_000;
const ANSWER_TIMEOUT_MS = 30_000;

export interface Endpoints {
  readonly authorization: string;
  readonly token: string;
  readonly device: string;
  readonly revocation: string;
}

/** A refusal of the authorization server. */
export class OAuthError extends CommandError {}

type Fields = Readonly<Record<string, string>>;

async function ask(
  url: string,
  init: RequestInit,
): Promise<{ readonly ok: boolean; readonly status: number; readonly body: Record<string, unknown> }> {
  const { response, text } = await reach(url, async () => {
    // Refuse redirects: codes and tokens must not go to a different server.
    const answer = await fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) });
    return { response: answer, text: await answer.text() };
  });
  let body: unknown;
  try {
    body = text === '' ? {} : JSON.parse(text);
  } catch {
    body = null;
  }
  if (typeof body !== 'object' || body === null)
    throw new CommandError(
      `${url} answered ${response.status}, but not as a Portcullis gateway does: check the URL`,
      'no_gateway',
    );
  return { ok: response.ok, status: response.status, body: body as Record<string, unknown> };
}

/** Throws OAuthError with the code of the server. */
async function post(url: string, fields: Fields): Promise<Record<string, unknown>> {
  const { ok, status, body } = await ask(url, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded', accept: 'application/json' },
    body: new URLSearchParams({ ...fields, client_id: CLIENT_ID }).toString(),
  });
  if (ok) return body;
  // The limits of the gateway answer with a problem document.
  const { error, error_description, code, detail } = body;
  throw new OAuthError(
    String(error_description ?? detail ?? error ?? `the gateway answered ${status}`),
    String(error ?? code ?? 'failed'),
  );
}

/** Finds the endpoints of the gateway. All of them must be at the gateway itself. */
export async function discover(url: string): Promise<Endpoints> {
  const { ok, body } = await ask(url + METADATA_PATH, { headers: { accept: 'application/json' } });
  const { issuer } = body;
  if (!ok || typeof issuer !== 'string')
    throw new CommandError(`${url} has no authorization server: check the URL`, 'no_gateway');
  if (issuer !== url)
    throw new CommandError(
      `the gateway at ${url} calls itself ${issuer}: name that address with --server or PORTCULLIS_URL`,
      'wrong_issuer',
    );
  const endpoint = (name: string): string => {
    const value = body[`${name}_endpoint`];
    if (typeof value === 'string' && URL.canParse(value) && new URL(value).origin === url) return value;
    throw new CommandError(`the metadata of ${url} names no ${name} endpoint at that address`, 'no_gateway');
  };
  return {
    authorization: endpoint('authorization'),
    token: endpoint('token'),
    device: endpoint('device_authorization'),
    revocation: endpoint('revocation'),
  };
}

function loginOf(
  { access_token, expires_in, refresh_token, token_type }: Record<string, unknown>,
  before: string | null,
): StoredLogin {
  const refresh = refresh_token ?? before;
  if (
    typeof access_token !== 'string' ||
    typeof expires_in !== 'number' ||
    typeof refresh !== 'string' ||
    !/^bearer$/i.test(String(token_type))
  )
    throw new CommandError('the gateway sent no tokens that this command understands', 'no_gateway');
  return { access_token, expires_at: Date.now() + expires_in * 1_000, refresh_token: refresh };
}

export const refreshed = async (endpoints: Endpoints, refresh_token: string): Promise<StoredLogin> =>
  loginOf(await post(endpoints.token, { grant_type: 'refresh_token', refresh_token }), refresh_token);

/** Ends the login at the gateway: its tokens are refused from then on. */
export async function revoke(endpoints: Endpoints, refresh_token: string): Promise<void> {
  await post(endpoints.revocation, { token: refresh_token, token_type_hint: 'refresh_token' });
}

const wanted = (url: string): Fields => ({ scope: 'api', resource: `${url}/api` });

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

/**
 * Signs in with a browser on this machine, which comes back to a port of the loopback address. `open` gets the address to which a person
 * must go; if it rejects, the sign-in ends with its error. Throws CommandError if the person refuses, or takes too long.
 */
export async function signInWithBrowser(
  url: string,
  endpoints: Endpoints,
  open: (address: string) => void | Promise<void>,
): Promise<StoredLogin> {
  const [state, verifier] = [randomBytes(32).toString('base64url'), randomBytes(32).toString('base64url')];
  let settle: (outcome: { readonly login: StoredLogin } | { readonly error: unknown }) => void = () => undefined;
  const outcome = new Promise<{ readonly login: StoredLogin } | { readonly error: unknown }>((resolve) => {
    settle = resolve;
  });
  let redirectUri = '';
  let isAnswered = false;

  async function receive(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(`http://127.0.0.1${req.url ?? '/'}`);
    const one = (name: string): string => (searchParams.getAll(name).length === 1 ? (searchParams.get(name) ?? '') : '');
    res.setHeader('Connection', 'close');
    res.setHeader('Cache-Control', 'no-store');
    res.setHeader('Content-Type', 'text/plain; charset=utf-8');
    // Any page and program can call this port. Only the gateway has the state, and it uses it once.
    if (req.method !== 'GET' || pathname !== '/callback' || isAnswered || !timingSafeEqual(digest(one('state')), digest(state))) {
      res.writeHead(404).end('This is not the sign-in that the command line has begun.\n');
      return;
    }
    isAnswered = true;
    try {
      if (one('iss') !== url)
        throw new CommandError('the answer is from a different authorization server: nothing was done', 'wrong_issuer');
      const error = searchParams.get('error');
      if (error !== null) throw new OAuthError(searchParams.get('error_description') ?? error, error);
      const fields = { grant_type: 'authorization_code', code: one('code'), redirect_uri: redirectUri, code_verifier: verifier };
      const login = loginOf(await post(endpoints.token, { ...fields, resource: `${url}/api` }), null);
      res.writeHead(303, { Location: `${url}/account?done=command-line` }).end();
      settle({ login });
    } catch (error) {
      res.writeHead(400).end('The sign-in failed. The command line says why.\n');
      settle({ error });
    }
  }

  const server = createServer((req, res) => void receive(req, res).catch(() => res.destroy()));
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(0, '127.0.0.1', resolve));
  const timer = setTimeout(
    () =>
      settle({
        error: new CommandError('the sign-in in the browser took longer than 10 minutes: run portcullis login again', 'timeout'),
      }),
    SIGN_IN_MS,
  );
  try {
    redirectUri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/callback`;
    const challenge = digest(verifier).toString('base64url');
    const query = new URLSearchParams({
      ...{ response_type: 'code', client_id: CLIENT_ID, redirect_uri: redirectUri, state, ...wanted(url) },
      ...{ code_challenge: challenge, code_challenge_method: 'S256' },
    });
    void Promise.resolve(open(`${endpoints.authorization}?${query}`)).catch((error: unknown) => settle({ error }));
    const settled = await outcome;
    if ('error' in settled) throw settled.error;
    return settled.login;
  } finally {
    clearTimeout(timer);
    // The browser still reads its answer. Other connections need none.
    server.close();
    server.closeIdleConnections();
  }
}

/** What a person needs to sign in with a browser on a different machine. */
export interface DevicePrompt {
  readonly code: string;
  readonly address: string;
  /** The address with the code in it; null: the gateway gives none. */
  readonly complete: string | null;
}

/** Signs in with a browser anywhere. `show` tells the person what to do there. Throws like `signInWithBrowser`. */
export async function signInWithDevice(
  url: string,
  endpoints: Endpoints,
  show: (prompt: DevicePrompt) => void,
): Promise<StoredLogin> {
  const begun = await post(endpoints.device, wanted(url));
  const { device_code, user_code, verification_uri, verification_uri_complete, expires_in, interval = 5 } = begun;
  if (
    typeof device_code !== 'string' ||
    typeof user_code !== 'string' ||
    typeof verification_uri !== 'string' ||
    typeof interval !== 'number'
  )
    throw new CommandError('the gateway sent no code that this command understands', 'no_gateway');
  show({
    code: user_code,
    address: verification_uri,
    complete: typeof verification_uri_complete === 'string' ? verification_uri_complete : null,
  });
  const deadline = Date.now() + (typeof expires_in === 'number' ? expires_in * 1_000 : SIGN_IN_MS);
  for (let wait = interval * 1_000; ; ) {
    await sleep(wait);
    try {
      const fields = { grant_type: 'urn:ietf:params:oauth:grant-type:device_code', device_code };
      return loginOf(await post(endpoints.token, fields), null);
    } catch (error) {
      if (!(error instanceof CommandError) || Date.now() > deadline) throw error;
      switch (error.code) {
        case 'authorization_pending':
          break;
        // RFC 8628: a lost answer also means to ask less often.
        case 'slow_down':
        case 'no_answer':
        case 'too_many_requests':
          wait += 5_000;
          break;
        case 'expired_token':
          throw new CommandError('the code was not entered in time: run portcullis login --device again', 'expired_token');
        default:
          throw error;
      }
    }
  }
}
