/**
 * Checks which host names the gateway answers to and which web pages may call it. This protects every route from DNS rebinding.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { AppError } from '../base/errors.ts';
import { perObject } from '../base/kept.ts';
import type { Config } from '../config/config.ts';
import { bodyLength } from './body-length.ts';
import { type Head, headOf, valuesOf } from './head.ts';

type OriginRules = Pick<Config, 'allowedHosts' | 'allowedOrigins'>;

const HOST = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?$/i;

/** The host name that a request is addressed to, without its port; undefined: there is not one Host with a name. And the origins of its page. */
const addressedBy = perObject((head: Head) => {
  const hosts = valuesOf(head, 'host');
  const name = hosts.length === 1 ? HOST.exec(hosts[0] ?? '')?.[1]?.toLowerCase() : undefined;
  return { name, hasHost: hosts.length > 0, origins: valuesOf(head, 'origin') };
});

/**
 * Returns null if the request is addressed to this gateway (with `anyHost`: by any name) and comes from a program or from a page
 * of an allowed origin.
 */
export function checkOrigin(
  req: IncomingMessage,
  { allowedHosts, allowedOrigins }: OriginRules,
  anyHost = false,
): AppError | null {
  // A request target that is a complete URL would contain a second host name.
  if (!req.url?.startsWith('/')) return new AppError('invalid_request', 'The request target must be a path.');
  const { name, hasHost, origins } = addressedBy(headOf(req));
  if (!hasHost) return new AppError('invalid_request', 'The request has no Host header.');
  if (name === undefined || !(anyHost || allowedHosts.some((allowed) => allowed.toLowerCase() === name))) {
    return new AppError(
      'host_not_allowed',
      'The gateway does not answer to this Host. Add the name to ALLOWED_HOSTS to allow it.',
    );
  }
  if (origins.some((origin) => !allowedOrigins.includes(origin)) || origins.length > 1) {
    return new AppError(
      'origin_not_allowed',
      'Pages of this Origin may not call the gateway. Add the origin to ALLOWED_ORIGINS to allow it.',
    );
  }
  return null;
}

const METHODS = 'GET, POST, PUT, DELETE';
const REQUEST_HEADERS =
  'Authorization, Content-Type, Accept, If-Match, Last-Event-ID, Portcullis-Reason, Portcullis-Setup-Code, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name';
const RESPONSE_HEADERS =
  'ETag, Link, Location, Retry-After, WWW-Authenticate, X-Request-Id, Portcullis-Revision, Mcp-Session-Id, Mcp-Protocol-Version';

/** Lets a page of an allowed origin read the answer. Call it only after `checkOrigin`. */
export function allowOrigin(req: IncomingMessage, res: ServerResponse): void {
  res.setHeader('Vary', 'Origin');
  const { origin } = req.headers;
  if (origin === undefined) return;
  res.setHeader('Access-Control-Allow-Origin', origin);
  res.setHeader('Access-Control-Expose-Headers', RESPONSE_HEADERS);
}

/** Answers a CORS preflight, which has no body. False: the request is not a preflight. Call it only after `checkOrigin`. */
export function answerPreflight(req: IncomingMessage, res: ServerResponse): boolean {
  if (req.method !== 'OPTIONS' || req.headers.origin === undefined || bodyLength(req) !== 0) return false;
  if (req.headers['access-control-request-method'] === undefined) return false;
  allowOrigin(req, res);
  res.setHeader('Access-Control-Allow-Methods', METHODS);
  res.setHeader('Access-Control-Allow-Headers', REQUEST_HEADERS);
  res.setHeader('Access-Control-Max-Age', '600');
  res.statusCode = 204;
  res.end();
  return true;
}

/** Runs all of the above for a route outside of the app. `answered`: the request was a preflight. */
export function meetOrigin(req: IncomingMessage, res: ServerResponse, rules: OriginRules): AppError | 'answered' | null {
  const refusal = checkOrigin(req, rules);
  if (refusal) return refusal;
  if (answerPreflight(req, res)) return 'answered';
  allowOrigin(req, res);
  return null;
}
