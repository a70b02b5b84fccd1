/** Checks and normalizes the metadata of a client, which come from its registration or from its document. Pure. */

/** Metadata as the client sent it: anything. */
export type Metadata = Record<string, unknown>;

const MAX_REDIRECTS = 10;
const MAX_URI = 1_024;
const MAX_NAME = 200;
const MAX_MEMBERS = 40;
/** As JSON, in bytes. It is less than the longest redirect addresses would take, and far more than published clients send. */
const MAX_METADATA = 8 * 1024;
const LOOPBACK = new Set(['localhost', '127.0.0.1', '[::1]']);
/** Schemes that belong to no application that could have registered: a browser or the system opens them itself. */
const FORBIDDEN = new Set(
  [
    // Programs, documents and pages of browsers.
    ...['javascript', 'vbscript', 'data', 'blob', 'file', 'filesystem', 'about', 'view-source', 'jar', 'cid', 'mid', 'mhtml'],
    ...['chrome', 'edge', 'brave', 'opera', 'vivaldi', 'resource', 'intent', 'android-app', 'feed', 'res', 'its', 'mk'],
    ...['chrome-extension', 'moz-extension', 'safari-web-extension', 'chrome-search', 'chrome-untrusted', 'devtools'],
    // Other protocols.
    ...['ws', 'wss', 'ftp', 'ftps', 'sftp', 'ssh', 'telnet', 'ldap', 'ldaps', 'smb', 'nfs', 'afp', 'dav', 'davs', 'rdp', 'vnc'],
    ...['irc', 'ircs', 'news', 'nntp', 'gopher', 'rtsp', 'magnet', 'webcal', 'git', 'svn', 'urn', 'content', 'read'],
    // Messages, calls, shops and settings.
    ...['mailto', 'tel', 'sms', 'mms', 'smsto', 'callto', 'facetime', 'facetime-audio', 'sip', 'sips', 'skype', 'geo', 'maps'],
    ...[
      'market',
      'itms',
      'itms-apps',
      'itms-appss',
      'itms-services',
      'prefs',
      'app-prefs',
      'shortcuts',
      'shell',
      'search',
      'hcp',
    ],
    ...['search-ms', 'help', 'x-apple.systempreferences', 'x-apple-helpbasic', 'applescript', 'onenote'],
  ].map((scheme) => `${scheme}:`),
);
/**
 * Schemes with which Windows opens its own programs, such as `ms-settings:`, and those that open a web page in a particular browser, such as
 * `microsoft-edge:` and `googlechrome:`. The code would go to that page.
 */
const FORBIDDEN_FAMILY =
  /^(ms-|microsoft-|google-?chrome|firefox|x-safari-|com-apple-|opera-|touch-|brave-|ddg|web\+|https?[+.-])/;
/** A program that gets a web address may open it. */
const WEB_ADDRESS = /https?(:|%3a)/i;
/** RFC 8252: a scheme of the application's own. The form is what a content security policy can name. */
const OWN_SCHEME = /^[a-z][a-z0-9+.-]*:$/;
/** An address that every program reads alike: URL parsers drop tabs and line breaks, and read a backslash as a slash. */
const PLAIN = /^[!-[\]-~]+$/;
/** The part between the slashes and the path. */
const AUTHORITY = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i;
/** A name or an IPv4 address. Others can mean different hosts to different programs, and a content security policy cannot name them. */
const HOST = /^[a-z0-9_-]+(\.[a-z0-9_-]+)*(:\d{1,5})?$/;
/** Characters that a page does not show, or that change how it shows the others. */
const MISLEADING = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/u;

export const isLoopback = (uri: string): boolean => {
  const { protocol, hostname } = new URL(uri);
  return protocol === 'http:' && LOOPBACK.has(hostname);
};

/** Returns why the gateway does not redirect to this address; null: it does. */
function redirectProblem(uri: unknown): string | null {
  if (typeof uri !== 'string' || uri.length > MAX_URI || !PLAIN.test(uri) || !URL.canParse(uri)) {
    return `redirect_uris must be addresses with at most ${MAX_URI} characters of ASCII, without spaces and backslashes`;
  }
  const { protocol, username, password } = new URL(uri);
  if (username !== '' || password !== '') return 'redirect_uris must not contain a user name or password';
  if (FORBIDDEN.has(protocol) || FORBIDDEN_FAMILY.test(protocol) || !OWN_SCHEME.test(protocol))
    return `redirect_uris must not use the scheme ${protocol}`;
  if (protocol === 'http:' && !isLoopback(uri)) {
    return 'redirect_uris must use https, or http with a loopback address (127.0.0.1, [::1] or localhost)';
  }
  if (!/^https?:$/.test(protocol) && WEB_ADDRESS.test(uri.slice(protocol.length)))
    return 'redirect_uris of an application must not contain a web address';
  if (!isPlainHost(uri)) return 'redirect_uris must write the host as a plain name, such as client.example.com';
  return null;
}

function isPlainHost(uri: string): boolean {
  const { protocol, host } = new URL(uri);
  const authority = AUTHORITY.exec(uri)?.[1]?.toLowerCase() ?? '';
  if (protocol === 'http:' || protocol === 'https:') {
    const written = authority.replace(protocol === 'https:' ? /:443$/ : /:80$/, '');
    // The parser writes what it understood. A different text had a second meaning.
    return written === host && (HOST.test(written) || isLoopback(uri));
  }
  // The applications of private schemes often leave the host empty.
  return authority === '' || HOST.test(authority);
}

/** Changes the metadata to what the gateway supports. Returns why it cannot; null: it did. */
export function normalize(metadata: Metadata): string | null {
  if (Object.keys(metadata).length > MAX_MEMBERS) return `a client may have at most ${MAX_MEMBERS} members`;
  if (Buffer.byteLength(JSON.stringify(metadata)) > MAX_METADATA)
    return `a client may have at most ${MAX_METADATA} bytes of metadata`;
  const { redirect_uris: redirects, client_name: name } = metadata;
  if (name !== undefined && (typeof name !== 'string' || [...name].length > MAX_NAME || MISLEADING.test(name))) {
    return `client_name must be a text of at most ${MAX_NAME} characters without control characters, line breaks and marks of direction`;
  }
  if (redirects !== undefined) {
    if (!Array.isArray(redirects) || redirects.length > MAX_REDIRECTS)
      return `redirect_uris must be a list of at most ${MAX_REDIRECTS}`;
    for (const uri of redirects) {
      const problem = redirectProblem(uri);
      if (problem !== null) return problem;
    }
    // A native client may use any port of the loopback address, which it does not know when it registers (RFC 8252).
    const isNative = redirects.some((uri) => new URL(uri).protocol !== 'https:');
    metadata['application_type'] = isNative ? 'native' : 'web';
  }
  // All SDKs send the scopes that they will ask for. Consent decides about scopes, not registration.
  delete metadata['scope'];
  // The answer of other modes is a page with a script in it.
  metadata['response_modes'] = ['query'];
  return null;
}

/** How a client is shown to a person. The name comes from the client itself, so it is never shown alone. */
export interface ClientFacts {
  readonly name: string;
  /** The host that vouches for the client's document; null: the client has no document. */
  readonly document: string | null;
}

export const isDocument = (clientId: string): boolean => /^https:\/\//i.test(clientId);

export function factsOf(clientId: string, name: string | undefined): ClientFacts {
  const document = isDocument(clientId) ? new URL(clientId).host : null;
  return { name: name?.trim() || document || 'An application without a name', document };
}

/** What a person recognizes of a redirect address: the host, or the application that owns the scheme. */
export function destinationOf(uri: string): string {
  const { protocol, host } = new URL(uri);
  if (protocol === 'https:') return host;
  return isLoopback(uri) ? 'a program on this computer' : `the application that opens ${protocol}// addresses on this computer`;
}

/** The source for `form-action` that lets the answer of a form redirect there. */
export function sourceOf(uri: string): string {
  const { protocol, origin, hostname } = new URL(uri);
  // A content security policy cannot name an IPv6 address.
  return /^https?:$/.test(protocol) && !hostname.startsWith('[') ? origin : protocol;
}
