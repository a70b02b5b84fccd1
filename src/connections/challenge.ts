/** Reads the challenge of a target: `WWW-Authenticate: Bearer error="...", scope="...", resource_metadata="..."` (RFC 6750, RFC 9728). Pure. */

export interface Challenge {
  readonly error?: string;
  readonly scope?: string;
  readonly resource_metadata?: string;
}

const MAX_LENGTH = 8 * 1024;
/** A parameter with a quoted value or a token. */
const PARAMETER = /([a-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)/iy;

/** null: there is no Bearer challenge. Of several values for one parameter, the first counts. */
export function readChallenge(header: string | null | undefined): Challenge | null {
  if (!header || header.length > MAX_LENGTH) return null;
  const begins = /(?:^|,)\s*bearer(?:\s+|$)/i.exec(header);
  if (begins === null) return null;
  const read: { [name: string]: string } = Object.create(null);
  let at = begins.index + begins[0].length;
  for (;;) {
    while (header[at] === ' ') at++;
    PARAMETER.lastIndex = at;
    const found = PARAMETER.exec(header);
    if (found === null) break;
    at = PARAMETER.lastIndex;
    const [, name = '', quoted, token] = found;
    read[name.toLowerCase()] ??= quoted === undefined ? (token ?? '') : quoted.replace(/\\(.)/g, '$1');
  }
  const { error, scope, resource_metadata } = read;
  return {
    ...(error === undefined ? {} : { error }),
    ...(scope === undefined ? {} : { scope }),
    ...(resource_metadata === undefined ? {} : { resource_metadata }),
  };
}

const SCOPES = /^[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*$/;
const MAX_SCOPES = 64;
const MAX_SCOPE_LENGTH = 2048;

/** Returns the scopes of a list separated by spaces; none if it does not have the format of RFC 6749, or is too long. */
export function scopesOf(scope: string | null | undefined): string[] {
  if (!scope || scope.length > MAX_SCOPE_LENGTH || !SCOPES.test(scope)) return [];
  const scopes = [...new Set(scope.split(' '))];
  return scopes.length > MAX_SCOPES ? [] : scopes;
}
