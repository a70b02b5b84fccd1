/** Whether a resource URI has only one reading. Pure. */
import type { NamedObject } from '../engine/decision.ts';

export const MAX_URI_BYTES = 2048;

export const resourceOf = (uri: string): NamedObject => ({ resource_type: 'resource', resource_name: uri });

/** RFC 3986: unreserved, reserved without `#`, and percent-encodings in upper-case hexadecimal (6.2.2.1). */
const CHARACTERS = /^(?:[A-Za-z0-9\-._~:/?[\]@!$&'()*+,;=]|%[0-9A-F]{2})+$/;
const PARTS = /^([a-z][a-z0-9+.-]*):(\/\/[^/?]*)?([^?]*)(\?.*)?$/;
/** RFC 3986 6.2.2.2: an encoded unreserved character equals the plain one, so only the plain form is canonical. */
const ENCODED_UNRESERVED = /%(?:2D|2E|5F|7E|3[0-9]|4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A])/;
const ENCODED = /%[0-9A-Fa-f]{2}/;
/** Targets that decode a URI before they take it apart lose these characters: URL parsers remove them. */
const CONTROL = /\p{Cc}/u;
const SPACE_AT_END = /%20$/;
const EMPTY_SEGMENT = /\/\//;
const ENCODED_SLASH = /%(?:2F|5C)/;
/**
 * In a decoded path: segments that some servers resolve to nothing or to dots, because they remove parameters (`..;x`, `;x`), white space or
 * invisible characters before that, or end the path at a decoded `?` or `#`. A first segment without a slash before it may have no name, as in `data:;base64,`.
 */
const VANISHING = /(?:^|\/)[\s\p{DI}]*\.[\s\p{DI}]*(?:\.[\s\p{DI}]*)?(?:[?#;/]|$)|\/(?:[\s\p{DI}]*;|[\s\p{DI}]+(?:\/|$))/u;

/**
 * Whether no other text means the same URI. Policies match the text of a URI, but targets open what it means. The two agree only
 * if the URI is canonical. Other URIs are refused, never repaired, because the decided text is the text that is forwarded.
 */
export function isCanonicalUri(uri: string): boolean {
  if (Buffer.byteLength(uri) > MAX_URI_BYTES || !CHARACTERS.test(uri) || ENCODED_UNRESERVED.test(uri)) return false;
  const parts = PARTS.exec(uri);
  if (parts === null) return false;
  const [, scheme, authority, path = '', query] = parts;
  if (authority?.includes('@') || authority?.includes('%')) return false;
  if (scheme === 'file' && (authority !== '//' || query !== undefined)) return false;
  if (/[[\]]/.test(path) || /[[\]]/.test(query ?? '')) return false;
  if (!segmentsAreCanonical(path) || decoded(query ?? '') === null || SPACE_AT_END.test(path)) return false;
  // An empty query means the same as no query, and a host with a final dot means the same as the host without it.
  if (query === '?' || authority?.replace(/:[0-9]*$/, '').endsWith('.')) return false;
  return URL.canParse(uri) && new URL(uri).href === uri;
}

/**
 * Whether each segment means itself to every server. Whether a server may resolve one to nothing or to dots is asked of the decoded path,
 * in one expression, because a path can have a thousand segments.
 */
function segmentsAreCanonical(path: string): boolean {
  if (EMPTY_SEGMENT.test(path) || ENCODED_SLASH.test(path)) return false;
  const text = decoded(path);
  return text !== null && !VANISHING.test(text);
}

/**
 * The text without its percent-encoding. null: the bytes are not UTF-8, which targets interpret differently; or the result has control
 * characters; or it is encoded again, as that of `%2573`: targets decode once, twice or not at all.
 */
function decoded(text: string): string | null {
  try {
    const once = decodeURIComponent(text);
    return ENCODED.test(once) || CONTROL.test(once) ? null : once;
  } catch {
    return null;
  }
}

/** Whether the text is a URI template. No canonical URI has a brace. */
export const isTemplateText = (text: string): boolean => text.includes('{');

/** Whether policies can decide a resource of this name. A template is decided by its text when it is listed or completed. */
export const isDecidableResource = (name: string): boolean => isTemplateText(name) || isCanonicalUri(name);
