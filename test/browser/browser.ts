/** A browser without a screen: it keeps the cookie, and sends what browsers send with a form. */

import { COOKIE } from '../../src/browser/sessions.ts';
import type { TestGateway } from '../support/gateway.ts';
import { send } from '../support/rest.ts';

export type Page = Awaited<ReturnType<typeof send>>;

export const FORM = 'application/x-www-form-urlencoded';

export function browse(gateway: Pick<TestGateway, 'url'>, publicUrl: string = gateway.url) {
  const port = Number(new URL(gateway.url).port);
  const { host } = new URL(publicUrl);
  let value: string | null = null;

  async function ask(method: string, path: string, headers: Record<string, string | string[]>, body?: string): Promise<Page> {
    const cookie: Record<string, string> = value === null ? {} : { cookie: `${COOKIE}=${value}` };
    const page = await send(port, method, path, {
      headers: { host, ...cookie, ...headers },
      ...(body === undefined ? {} : { body }),
    });
    for (const line of page.headers['set-cookie'] ?? []) {
      const [, set = ''] = /^__Host-portcullis=([^;]*)/.exec(line) ?? [];
      value = set === '' ? null : set;
    }
    return page;
  }

  return {
    cookie: () => value,
    setCookie: (set: string | null) => {
      value = set;
    },
    ask,
    get: (path: string, headers: Record<string, string> = {}) => ask('GET', path, headers),
    /** Sends a form from a page of the gateway. `headers` replace those of the browser; an empty list leaves one out. */
    post: (path: string, fields: Record<string, string> = {}, headers: Record<string, string | string[]> = {}) =>
      ask(
        'POST',
        path,
        { 'content-type': FORM, origin: publicUrl, 'sec-fetch-site': 'same-origin', ...headers },
        new URLSearchParams(fields).toString(),
      ),
  };
}

export type Browser = ReturnType<typeof browse>;

export async function signIn(
  browser: Browser,
  who: { readonly email: string; readonly password: string },
  returnTo = '/account',
): Promise<Page> {
  const page = await browser.post('/signin', { email: who.email, password: who.password, return: returnTo });
  if (browser.cookie() === null) throw new Error(`not signed in: ${page.status} ${page.text}`);
  return page;
}
