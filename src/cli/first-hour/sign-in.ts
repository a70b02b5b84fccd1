/** Signs in with a password, through the same pages and with the same grant as a person with a browser. */
import { CommandError } from '../command.ts';
import { reach } from '../reach.ts';
import type { StoredLogin } from '../sign-in/logins.ts';
import { discover, signInWithBrowser } from '../sign-in/oauth.ts';

export interface Account {
  /** The id of the user. */
  readonly id: string;
  readonly email: string;
  readonly password: string;
}

const ANSWER_TIMEOUT_MS = 30_000;
const MAX_REDIRECTS = 10;

/** Throws CommandError if the gateway refuses, or if its pages do not work at this address. */
export async function signInWithPassword(url: string, account: Account): Promise<StoredLogin> {
  return signInWithBrowser(url, await discover(url), (address) => browse(url, address, account));
}

/** Opens the address as a browser, signs in, and allows the command line to act for the user. */
async function browse(url: string, address: string, { id, email, password }: Account): Promise<void> {
  const cookies = new Map<string, string>();

  async function ask(to: string, fields?: Readonly<Record<string, string>>): Promise<Response> {
    const isAtGateway = to.startsWith(`${url}/`);
    const answer = await reach(url, () =>
      fetch(to, {
        method: fields === undefined ? 'GET' : 'POST',
        redirect: 'manual',
        signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
        headers: {
          // The cookies are for the gateway alone, not for the port to which the sign-in comes back.
          ...(isAtGateway ? { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') } : {}),
          ...(fields === undefined ? {} : { origin: url, 'sec-fetch-site': 'same-origin' }),
        },
        ...(fields === undefined ? {} : { body: new URLSearchParams(fields) }),
      }),
    );
    await answer.body?.cancel();
    for (const line of isAtGateway ? answer.headers.getSetCookie() : []) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (value === '') cookies.delete(name);
      else cookies.set(name, value);
    }
    return answer;
  }
  /** Follows redirects within the gateway. Returns the address of the page at their end, or the first one elsewhere. */
  async function follow(from: string, fields?: Readonly<Record<string, string>>): Promise<string> {
    let at = from;
    let answer = await ask(at, fields);
    for (let steps = 0; steps < MAX_REDIRECTS; steps++) {
      const location = answer.headers.get('location');
      if (location === null) {
        if (answer.ok) return at;
        throw new CommandError(`the gateway answered ${answer.status} at ${new URL(at).pathname}`, 'sign_in_failed');
      }
      at = new URL(location, at).href;
      if (!at.startsWith(`${url}/`)) return at;
      answer = await ask(at);
    }
    throw new CommandError('the gateway redirects in a circle', 'sign_in_failed');
  }

  const question = new URL(await follow(address)).searchParams.get('return') ?? '';
  await follow(`${url}/signin`, { email, password, return: question });
  const consent = await follow(new URL(question, url).href);
  const back = await follow(consent, { user: id, answer: 'allow' });
  await ask(back);
  // The grant stays. The browser session has done its work.
  await ask(`${url}/account/sign-out`, {});
}
