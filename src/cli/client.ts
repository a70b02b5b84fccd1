/** The client of a gateway's REST API, for commands. */
import { Readable } from 'node:stream';
import type { FieldError } from '../base/errors.ts';
import { clientConfigFromProcess } from '../config/config.ts';
import { CommandError, type Given, type Option, UsageError } from './command.ts';
import { linesOf } from './lines.ts';
import { CHECK_CHANGE, reach } from './reach.ts';
import { loginFile, readLogin, type StoredLogin, writeLogin } from './sign-in/logins.ts';
import { discover, OAuthError, refreshed } from './sign-in/oauth.ts';

export const CLIENT_OPTIONS = {
  server: { value: 'URL', help: 'the gateway (default: PORTCULLIS_URL, or http://127.0.0.1:8080)' },
  'allow-http': { help: 'allows plain http to a gateway that is not on loopback, which exposes the token' },
} as const satisfies Record<string, Option>;

export const CLIENT_NOTES = `Sign in as an administrator with portcullis login, or set PORTCULLIS_TOKEN to an API token, which then counts instead.
This command sends your token only to the gateway, and never prints it.
Exit code: 0 success, 1 failure, 2 wrong usage.`;

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

export interface Page<T> {
  readonly items: readonly T[];
  readonly hasNext: boolean;
  /** When the gateway answered, by its own clock, in milliseconds. */
  readonly at: number;
}

export type Client = ReturnType<typeof connect>;

export interface Progress {
  readonly done: number;
  readonly total: number;
}
export type Say = (progress: string) => void;

const SAY_EVERY_MS = 2_000;

/** Returns a function that reports the progress of the gateway, at most once every 2 seconds. */
export function progressOf(say: Say): (progress: Progress) => void {
  let said = Date.now();
  return ({ done, total }) => {
    if (done >= total || Date.now() - said < SAY_EVERY_MS) return;
    said = Date.now();
    say(`${done} of ${total} policies`);
  };
}

const ANSWER_TIMEOUT_MS = 300_000;
const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** Returns the gateway, the token of `PORTCULLIS_TOKEN`, and the file of the login there. Throws UsageError or ConfigError. */
export function serverOf(given: Given): { readonly url: string; readonly token: string | null; readonly file: string } {
  const server = given.text('server');
  if (server?.trim() === '') throw new UsageError('--server must not be empty: give the URL of the gateway');
  const { url, token, logins } = clientConfigFromProcess(server);
  const { protocol, hostname } = new URL(url);
  if (protocol === 'http:' && !LOOPBACK.test(hostname) && !given.flag('allow-http')) {
    throw new UsageError(`${url} is plain http, so others on the network could read the token: use https, or pass --allow-http`);
  }
  return { url, token, file: loginFile(logins, url) };
}

/** An access token is renewed this long before it expires, so that a request with it arrives in time. */
const SPARE_MS = 30_000;

/** Returns a function that gives the access token of the login, and renews it when needed. */
function renewing(url: string, file: string, stored: StoredLogin): () => Promise<string> {
  let login = stored;
  let renewal: Promise<StoredLogin> | null = null;

  async function renew(): Promise<StoredLogin> {
    try {
      const next = await refreshed(await discover(url), login.refresh_token);
      writeLogin(file, next);
      return next;
    } catch (error) {
      if (!(error instanceof OAuthError) || error.code !== 'invalid_grant') throw error;
      // A different command may have renewed the login meanwhile.
      const found = readLogin(file);
      if (found !== null && found.refresh_token !== login.refresh_token) return found;
      throw new CommandError(`your login at ${url} has ended: run portcullis login`, 'invalid_grant');
    }
  }

  return async () => {
    if (login.expires_at - Date.now() < SPARE_MS) {
      renewal ??= renew().finally(() => {
        renewal = null;
      });
      login = await renewal;
    }
    return login.access_token;
  };
}

/** Throws UsageError or ConfigError if the URL of the gateway or the token is missing or not allowed. */
export function connect(given: Given) {
  const { url, token, file } = serverOf(given);
  const stored = token === null ? readLogin(file) : null;
  if (token === null && stored === null) {
    throw new UsageError(
      `PORTCULLIS_TOKEN is not set, and you are not signed in at ${url}: run portcullis login, or export an API token (POST /api/auth/tokens)`,
    );
  }
  return stored === null ? clientOf(url, async () => token ?? '', WITH_TOKEN) : clientOfLogin(url, file, stored);
}

/** Returns the client for a login, even if `PORTCULLIS_TOKEN` is set. */
export const clientOfLogin = (url: string, file: string, login: StoredLogin) =>
  clientOf(url, renewing(url, file, login), WITH_LOGIN);

/** Returns a client without a token, for what everybody may do. */
export const openClient = (url: string) => clientOf(url, async () => null, {});

/** `bearer` returns the token, or null for none. `advice`: what to do, by the status of a refusal. */
function clientOf(url: string, bearer: () => Promise<string | null>, advice: Readonly<Record<number, string>>) {
  const refusal = (status: number, answer: unknown): CommandError => refusalOf(url, status, answer, advice[status]);

  const ask = async (method: Method, path: string, body?: unknown, more: RequestInit = {}): Promise<Response> => {
    const token = await bearer();
    const response = await send(url, path, {
      method,
      // Refuse redirects: the token must not go to a different server.
      redirect: 'error',
      headers: {
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...more.headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(more.signal === undefined ? {} : { signal: more.signal }),
    });
    // Every answer of a gateway has an id. The JSON of a different server could look like an answer.
    if (response.ok && !response.headers.has('x-request-id')) throw refusal(response.status, undefined);
    return response;
  };
  const askInTime = (method: Method, path: string, body?: unknown, headers = {}): Promise<Response> =>
    ask(method, path, body, { headers, signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) });

  async function answerOf<T>(method: Method, path: string, body?: unknown, more = {}): Promise<{ answer: T; headers: Headers }> {
    const response = await askInTime(method, path, body, more);
    const text = await reach(url, () => response.text());
    const answer = response.status === 204 ? null : parsed(text);
    if (response.ok && (response.status === 204 || isObject(answer))) return { answer: answer as T, headers: response.headers };
    throw refusal(response.status, answer);
  }

  async function itemsOf<T>(path: string): Promise<{ answer: T[]; headers: Headers }> {
    const { answer, headers } = await answerOf<T[]>('GET', path);
    if (Array.isArray(answer) && answer.every(isObject)) return { answer, headers };
    throw refusal(200, undefined);
  }

  /** Yields the pages of a list. */
  async function* pages<T>(path: string): AsyncGenerator<Page<T>> {
    for (let at: string | undefined = path; at !== undefined; ) {
      const { answer, headers }: { answer: T[]; headers: Headers } = await itemsOf<T>(at);
      at = NEXT.exec(headers.get('link') ?? '')?.[1];
      yield { items: answer, hasNext: at !== undefined, at: Date.parse(headers.get('date') ?? '') };
    }
  }

  return {
    url,
    /** Throws CommandError with the message of the gateway if it refuses, or with the reason why no answer came. */
    call: async <T>(method: Method, path: string, body?: unknown, headers: Readonly<Record<string, string>> = {}): Promise<T> =>
      (await answerOf<T>(method, path, body, headers)).answer,
    /** Like `call`, for an answer with this object, which the JSON of a different server lacks. */
    async having<T extends object>(member: keyof T, method: Method, path: string, body?: unknown, headers = {}): Promise<T> {
      const { answer } = await answerOf<T | null>(method, path, body, headers);
      if (answer === null || !isObject(answer[member])) throw refusal(200, undefined);
      return answer;
    },
    /** Like `call`, but for the ETag, too. */
    async read<T>(path: string): Promise<{ readonly answer: T; readonly etag: string }> {
      const { answer, headers } = await answerOf<T>('GET', path);
      return { answer, etag: headers.get('etag') ?? '*' };
    },
    pages,
    /** Returns the items of one page. */
    items: async <T>(path: string): Promise<T[]> => (await itemsOf<T>(path)).answer,
    /** Returns every item of a list, from all its pages. */
    async list<T>(path: string): Promise<T[]> {
      const all: T[] = [];
      for await (const { items } of pages<T>(path)) for (const item of items) all.push(item);
      return all;
    },
    /** For an answer in lines, which the gateway writes while it works. Calls `said` with each progress. Throws like `call`. */
    async follow<T, P>(method: Method, path: string, body: unknown, said: (progress: P) => void): Promise<T> {
      const response = await ask(method, path, body, { headers: { accept: 'application/x-ndjson' } });
      if (!response.ok || response.body === null) throw refusal(response.status, parsed(await reach(url, () => response.text())));
      const lines = linesOf(response.body);
      for (;;) {
        const { value, done } = await lines.next().catch(() => ({ value: undefined, done: true }));
        const line = done ? undefined : parsed(value ?? '');
        if (typeof line !== 'object' || line === null) break;
        if ('result' in line) return line.result as T;
        if ('progress' in line) said(line.progress as P);
        if ('error' in line) throw refusal(200, line.error);
      }
      throw new CommandError(
        `${url} closed the connection before it sent a result: try again, and look at the log of the gateway`,
        'no_answer',
      );
    },
    /** For a long answer that is not JSON. Throws like `call`. */
    async stream(path: string): Promise<Readable> {
      const response = await ask('GET', path);
      if (response.ok && response.body !== null && !isWebPage(response)) return Readable.fromWeb(response.body);
      throw refusal(response.status, parsed(await reach(url, () => response.text())));
    },
    /** For an answer that is not JSON. Throws like `call`. */
    async download(path: string): Promise<{ readonly bytes: Buffer; readonly headers: Headers }> {
      const response = await askInTime('GET', path);
      const bytes = Buffer.from(await reach(url, () => response.arrayBuffer()));
      if (response.ok && !isWebPage(response)) return { bytes, headers: response.headers };
      throw refusal(response.status, parsed(bytes.toString()));
    },
  };
}

/** The link to the next page, at the same gateway. */
const NEXT = /^<(\/api\/[^>]+)>; rel="next"$/;

const send = (url: string, path: string, init: RequestInit): Promise<Response> => reach(url, () => fetch(url + path, init));

/** The sign-in page of a proxy, for example. No download of the gateway is one. */
const isWebPage = ({ headers }: Response): boolean => /^text\/html/i.test(headers.get('content-type') ?? '');

const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null;

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const WITH_TOKEN: Readonly<Record<number, string>> = {
  401: 'PORTCULLIS_TOKEN must be a token of this gateway, and neither revoked nor expired.',
  403: 'The user of PORTCULLIS_TOKEN must be allowed to do this, and the limits of the token must not leave it out.',
};
const WITH_LOGIN: Readonly<Record<number, string>> = {
  401: 'Your login may have ended: run portcullis login.',
  403: 'You are signed in with portcullis login as a user without this right.',
};

/** With these a proxy says that it got no answer. The last ones are Cloudflare's. */
const NO_ANSWER = new Set([502, 503, 504, 520, 521, 522, 523, 524]);

function refusalOf(url: string, status: number, answer: unknown, advice: string | undefined): CommandError {
  if (typeof answer !== 'object' || answer === null || !('code' in answer) || !('detail' in answer)) {
    if (status === 413)
      return new CommandError(
        `a proxy at ${url} answered 413, because the request is too large for it: allow bodies of 4 MiB there`,
        'too_large_for_proxy',
      );
    if (NO_ANSWER.has(status))
      return new CommandError(`a proxy at ${url} answered ${status}, because it got no answer. ${CHECK_CHANGE}`, 'no_answer');
    return new CommandError(`${url} answered ${status}, but not as a Portcullis gateway does: check the URL`, 'no_gateway');
  }
  const { code, detail, errors } = answer as { code: unknown; detail: unknown; errors?: readonly FieldError[] };
  return new CommandError(advice === undefined ? String(detail) : `${detail} ${advice}`, String(code), errors ?? []);
}
