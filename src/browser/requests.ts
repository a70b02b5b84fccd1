/** What a page may be asked, and by whom: forms of this gateway's own pages, at the address that `PUBLIC_URL` names. */
import type { IncomingMessage } from 'node:http';
import { AppError, invalidRequest } from '../base/errors.ts';
import { readBytes } from '../http/body.ts';

const FORM_BYTES = 16 * 1024;
const FORM_TYPE = /^application\/x-www-form-urlencoded[\t ]*(;[\t ]*charset[\t ]*=[\t ]*"?utf-8"?[\t ]*)?$/i;

/** Returns the value of the cookie. null: there is none, or there are several, and one of them may be planted. */
export function cookieOf(req: IncomingMessage, name: string): string | null {
  const values = (req.headers.cookie ?? '').split(';').flatMap((pair) => {
    const at = pair.indexOf('=');
    return pair.slice(0, at).trim() === name ? [pair.slice(at + 1).trim()] : [];
  });
  const [value = null] = values;
  return values.length === 1 ? value : null;
}

/** Express changes `url` inside of a router, and keeps the original. */
export const urlOf = (req: IncomingMessage & { readonly originalUrl?: string }): string => req.originalUrl ?? req.url ?? '/';

/**
 * Refuses a request that changes something, unless a page of this gateway made it: a browser tells so by `Origin` and `Sec-Fetch-Site`.
 * Cookies do not tell: a browser also sends them to a page of a different port. Throws AppError `origin_not_allowed`.
 */
export function requireSameOrigin(req: IncomingMessage, publicUrl: string): void {
  const [origins, sites] = [req.headersDistinct['origin'] ?? [], req.headersDistinct['sec-fetch-site'] ?? []];
  if (origins.length === 1 && origins[0] === new URL(publicUrl).origin && sites.length === 1 && sites[0] === 'same-origin')
    return;
  throw new AppError(
    'origin_not_allowed',
    `The gateway takes forms from its own pages only. Open ${publicUrl} in a current browser, and try again there.`,
  );
}

/** Returns the fields of the form. Throws AppError `invalid_request`, `unsupported_media_type`, `too_large`. */
export async function readForm(req: IncomingMessage): Promise<Readonly<Record<string, string>>> {
  const types = req.headersDistinct['content-type'] ?? [];
  if (types.length !== 1 || !FORM_TYPE.test(types[0] ?? '') || req.headers['content-encoding'] !== undefined) {
    throw new AppError('unsupported_media_type', 'The body must be a form (application/x-www-form-urlencoded in UTF-8).');
  }
  const text = (await readBytes(req, FORM_BYTES)).toString('latin1');
  const fields: Record<string, string> = Object.create(null);
  for (const pair of text.split('&').filter((part) => part !== '')) {
    const [name, value] = pair.split(/=(.*)/s).map(decoded);
    if (name === undefined || name in fields) throw invalidRequest([{ path: name ?? '', message: 'may appear only once' }]);
    fields[name] = value ?? '';
  }
  return fields;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    throw invalidRequest([{ path: '', message: 'the form is not valid UTF-8' }]);
  }
}

/**
 * The paths to which the gateway may send the browser after a sign-in. A path with an escape, an empty segment or a dot segment does not
 * match, because browsers, proxies and the gateway could read it differently.
 */
const RETURN = /^\/(oauth|account|console)(\/(?!\.{1,2}(?:[/?]|$))[A-Za-z0-9._~:@!$&'()*+,;=-]+)*(\?[!$-;=?-[\]-~]*)?$/;
const RETURN_MAX = 8 * 1024;
export const HOME = '/account';
export const REGISTER = '/signin/register';

/** Returns the path of this gateway that `value` is. Anything else gives the account page. */
export function returnPath(value: unknown): string {
  return typeof value === 'string' && value.length <= RETURN_MAX && RETURN.test(value) ? value : HOME;
}

/** Returns the address of the sign-in page that leads back to `path`. `again`: also if the user is signed in. */
export const signInPath = (path: string, again = false): string =>
  `/signin?${new URLSearchParams({ return: returnPath(path), ...(again ? { again: 'yes' } : {}) })}`;

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/;

const isLoopbackName = (name: string): boolean => LOOPBACK.test(name);

/** What is wrong with the address at which the browser reached the page. `moved`: it is to go to `to`. */
export type Misplaced =
  | { readonly kind: 'moved'; readonly to: string }
  | { readonly kind: 'elsewhere' }
  | { readonly kind: 'plain-http' };

/**
 * Returns null if pages work at this address. Cookies and `Origin` belong to the one origin of `PUBLIC_URL`: `localhost` and `127.0.0.1`
 * are two. On plain HTTP, browsers keep the cookie only for addresses of the same machine.
 */
export function misplaced(req: IncomingMessage, publicUrl: string): Misplaced | null {
  const { host, hostname, port, protocol, origin } = new URL(publicUrl);
  if (protocol === 'http:' && !isLoopbackName(hostname)) return { kind: 'plain-http' };
  const asked = URL.canParse(`${protocol}//${req.headers.host}`) ? new URL(`${protocol}//${req.headers.host}`) : null;
  if (asked?.host === host) return null;
  // A proxy that sends its own name instead of the browser's would make a loop. It has a different port on the same machine.
  const isMovable = asked !== null && isLoopbackName(asked.hostname) && isLoopbackName(hostname) && asked.port === port;
  return isMovable && req.method === 'GET' ? { kind: 'moved', to: origin + urlOf(req) } : { kind: 'elsewhere' };
}
