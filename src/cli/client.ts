/** The REST API of a gateway, for commands. */
import { clientConfigFromProcess } from '../config.ts';
import type { FieldError } from '../errors.ts';
import { CommandError, type Given, type Option, UsageError } from './command.ts';

export const CLIENT_OPTIONS = {
  server: { value: 'URL', help: 'the gateway; else PORTCULLIS_URL, else http://127.0.0.1:8080' },
  'allow-http': { help: 'sends the token over plain http to a gateway that is not on loopback' },
} as const satisfies Record<string, Option>;

export const CLIENT_NOTES = `PORTCULLIS_TOKEN must be an API token of an administrator. It goes to the gateway alone, and is never printed.
Exit code: 0 done, 1 not done, 2 called wrongly.`;

export interface Client {
  /** Throws CommandError with what the gateway says where it refuses, or why there was no answer. */
  call<T>(method: 'GET' | 'POST', path: string, body?: unknown): Promise<T>;
  /** A list, with all of its pages. */
  list<T>(path: string): Promise<T[]>;
  /** Of what is no JSON. Throws as `call` does. */
  download(path: string): Promise<{ readonly bytes: Buffer; readonly headers: Headers }>;
}

const PATIENCE_MS = 300_000;
const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/;

/** Throws UsageError or ConfigError where it is not said which gateway, or as whom. */
export function connect(given: Given): Client {
  const { url, token } = clientConfigFromProcess(given.text('server'));
  if (token === null) {
    throw new UsageError(
      'PORTCULLIS_TOKEN is not set: make an API token as an administrator (POST /api/auth/tokens), and export it',
    );
  }
  const { protocol, hostname } = new URL(url);
  if (protocol === 'http:' && !LOOPBACK.test(hostname) && !given.flag('allow-http')) {
    throw new UsageError(`${url} is plain http, where others could read the token: use https, or say --allow-http`);
  }

  const ask = (method: 'GET' | 'POST', path: string, body?: unknown): Promise<Received> =>
    send(url, path, {
      method,
      // Elsewhere the token has no business.
      redirect: 'error',
      signal: AbortSignal.timeout(PATIENCE_MS),
      headers: {
        authorization: `Bearer ${token}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
  const isDone = (status: number): boolean => status >= 200 && status <= 299;

  async function answerOf<T>(method: 'GET' | 'POST', path: string, body?: unknown): Promise<{ answer: T; headers: Headers }> {
    const { status, headers, bytes } = await ask(method, path, body);
    const answer = parsed(bytes.toString());
    if (isDone(status) && answer !== undefined) return { answer: answer as T, headers };
    throw refusal(url, status, answer);
  }

  return {
    call: async <T>(method: 'GET' | 'POST', path: string, body?: unknown) => (await answerOf<T>(method, path, body)).answer,
    async list<T>(path: string) {
      const all: T[] = [];
      for (let at: string | undefined = path; at !== undefined; ) {
        const { answer, headers }: { answer: T[]; headers: Headers } = await answerOf<T[]>('GET', at);
        for (const item of answer) all.push(item);
        at = NEXT.exec(headers.get('link') ?? '')?.[1];
      }
      return all;
    },
    async download(path) {
      const { status, headers, bytes } = await ask('GET', path);
      if (isDone(status)) return { bytes, headers };
      throw refusal(url, status, parsed(bytes.toString()));
    },
  };
}

/** The next page, at the same gateway. */
const NEXT = /^<(\/api\/[^>]+)>; rel="next"$/;

interface Received {
  readonly status: number;
  readonly headers: Headers;
  readonly bytes: Buffer;
}

async function send(url: string, path: string, init: RequestInit): Promise<Received> {
  try {
    const answer = await fetch(url + path, init);
    return { status: answer.status, headers: answer.headers, bytes: Buffer.from(await answer.arrayBuffer()) };
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error ? ((cause as NodeJS.ErrnoException).code ?? cause.message) : message;
    throw new CommandError(
      `no answer from ${url} (${reason}): PORTCULLIS_URL or --server must name a gateway that runs`,
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
  401: 'PORTCULLIS_TOKEN must be a token of this gateway that is not revoked.',
  403: 'PORTCULLIS_TOKEN must be of an administrator.',
};

function refusal(url: string, status: number, answer: unknown): CommandError {
  if (typeof answer !== 'object' || answer === null || !('code' in answer) || !('detail' in answer)) {
    return new CommandError(`${url} answered ${status}, and not as a gateway does: is it one?`, 'no_gateway');
  }
  const { code, detail, errors } = answer as { code: unknown; detail: unknown; errors?: readonly FieldError[] };
  const advice = WHAT_TO_DO[status];
  return new CommandError(advice === undefined ? String(detail) : `${detail} ${advice}`, String(code), errors ?? []);
}
