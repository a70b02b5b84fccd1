/** The client of a gateway's REST API, for commands. */
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import type { FieldError } from '../base/errors.ts';
import { clientConfigFromProcess } from '../config/config.ts';
import { CommandError, type Given, type Option, UsageError } from './command.ts';

export const CLIENT_OPTIONS = {
  server: { value: 'URL', help: 'the gateway (default: PORTCULLIS_URL, or http://127.0.0.1:8080)' },
  'allow-http': { help: 'allows plain http to a gateway that is not on loopback, which exposes the token' },
} as const satisfies Record<string, Option>;

export const CLIENT_NOTES = `PORTCULLIS_TOKEN must be an API token of an administrator. This command sends it only to the gateway, and never prints it.
Exit code: 0 success, 1 failure, 2 wrong usage.`;

type Method = 'GET' | 'POST' | 'PUT' | 'DELETE';

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

/** Throws UsageError or ConfigError if the URL of the gateway or the token is missing or not allowed. */
export function connect(given: Given) {
  const { url, token } = clientConfigFromProcess(given.text('server'));
  if (token === null) {
    throw new UsageError(
      'PORTCULLIS_TOKEN is not set: create an API token as an administrator (POST /api/auth/tokens), and export it',
    );
  }
  const { protocol, hostname } = new URL(url);
  if (protocol === 'http:' && !LOOPBACK.test(hostname) && !given.flag('allow-http')) {
    throw new UsageError(`${url} is plain http, so others on the network could read the token: use https, or pass --allow-http`);
  }

  const ask = (method: Method, path: string, body?: unknown, more: RequestInit = {}): Promise<Response> =>
    send(url, path, {
      method,
      // Refuse redirects: the token must not go to a different server.
      redirect: 'error',
      headers: {
        authorization: `Bearer ${token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...more.headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(more.signal === undefined ? {} : { signal: more.signal }),
    });
  const askInTime = (method: Method, path: string, body?: unknown, headers = {}): Promise<Response> =>
    ask(method, path, body, { headers, signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) });

  async function answerOf<T>(method: Method, path: string, body?: unknown, more = {}): Promise<{ answer: T; headers: Headers }> {
    const response = await askInTime(method, path, body, more);
    const text = await read(url, () => response.text());
    const answer = response.status === 204 ? null : parsed(text);
    if (response.ok && answer !== undefined) return { answer: answer as T, headers: response.headers };
    throw refusal(url, response.status, answer);
  }

  return {
    /** Throws CommandError with the message of the gateway if it refuses, or with the reason why no answer came. */
    call: async <T>(method: Method, path: string, body?: unknown, headers: Readonly<Record<string, string>> = {}): Promise<T> =>
      (await answerOf<T>(method, path, body, headers)).answer,
    /** Returns every item of a list, from all its pages. */
    async list<T>(path: string): Promise<T[]> {
      const all: T[] = [];
      for (let at: string | undefined = path; at !== undefined; ) {
        const { answer, headers }: { answer: T[]; headers: Headers } = await answerOf<T[]>('GET', at);
        for (const item of answer) all.push(item);
        at = NEXT.exec(headers.get('link') ?? '')?.[1];
      }
      return all;
    },
    /** For an answer in lines, which the gateway writes while it works. Calls `said` with each progress. Throws like `call`. */
    async follow<T, P>(method: Method, path: string, body: unknown, said: (progress: P) => void): Promise<T> {
      const response = await ask(method, path, body, { headers: { accept: 'application/x-ndjson' } });
      if (!response.ok || response.body === null)
        throw refusal(url, response.status, parsed(await read(url, () => response.text())));
      const lines = createInterface({ input: Readable.fromWeb(response.body) })[Symbol.asyncIterator]();
      for (;;) {
        const { value, done } = await lines.next().catch(() => ({ value: '', done: true }));
        const line = done ? undefined : parsed(value);
        if (typeof line !== 'object' || line === null) break;
        if ('result' in line) return line.result as T;
        if ('progress' in line) said(line.progress as P);
        if ('error' in line) throw refusal(url, 200, line.error);
      }
      throw new CommandError(
        `${url} closed the connection before it sent a result: try again, and look at the log of the gateway`,
        'no_answer',
      );
    },
    /** For an answer that is not JSON. Throws like `call`. */
    async download(path: string): Promise<{ readonly bytes: Buffer; readonly headers: Headers }> {
      const response = await askInTime('GET', path);
      const bytes = Buffer.from(await read(url, () => response.arrayBuffer()));
      if (response.ok) return { bytes, headers: response.headers };
      throw refusal(url, response.status, parsed(bytes.toString()));
    },
  };
}

/** The link to the next page, at the same gateway. */
const NEXT = /^<(\/api\/[^>]+)>; rel="next"$/;

const send = (url: string, path: string, init: RequestInit): Promise<Response> => read(url, () => fetch(url + path, init));

/** Throws CommandError if the gateway cannot be reached or closes the connection. */
async function read<T>(url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error ? ((cause as NodeJS.ErrnoException).code ?? cause.message) : message;
    throw new CommandError(
      `no answer from ${url} (${reason}): PORTCULLIS_URL or --server must name a running gateway`,
      'no_answer',
    );
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const WHAT_TO_DO: Readonly<Record<number, string>> = {
  401: 'PORTCULLIS_TOKEN must be a token of this gateway, and not revoked.',
  403: 'PORTCULLIS_TOKEN must belong to an administrator.',
};

function refusal(url: string, status: number, answer: unknown): CommandError {
  if (typeof answer !== 'object' || answer === null || !('code' in answer) || !('detail' in answer)) {
    return new CommandError(`${url} answered ${status}, but not as a Portcullis gateway does: check the URL`, 'no_gateway');
  }
  const { code, detail, errors } = answer as { code: unknown; detail: unknown; errors?: readonly FieldError[] };
  const advice = WHAT_TO_DO[status];
  return new CommandError(advice === undefined ? String(detail) : `${detail} ${advice}`, String(code), errors ?? []);
}
