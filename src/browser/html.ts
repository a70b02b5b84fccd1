/**
 * The only place that makes markup. `html` escapes every value, and throws if a value stands where escaping would not make it safe. Nothing
 * else can make `Markup`, and only `page.ts` sends it (the dependency rules check this).
 */

import { printable } from '../base/printable.ts';

/** Markup that needs no escaping. */
class SafeText {
  readonly #text: string;
  constructor(text: string) {
    this.#text = text;
  }
  toString(): string {
    return this.#text;
  }
}

export type Markup = SafeText;
/** null, undefined and booleans add nothing, so that `condition && html...` works. */
export type Content = Markup | string | number | boolean | null | undefined | readonly Content[];

const escaped = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => `&#${character.codePointAt(0)};`);
/**
 * Text between tags must not reverse what stands beside it. Fields and attributes keep the text as it is, because forms and links send it
 * back.
 */
const shown = (text: string): string => escaped(text.replaceAll('\r\n', '\n').split('\t').map(printable).join('\t'));

/**
 * The position of a value in a template. `text`: the text between tags. `field`: the text that a form sends. `attribute`: a quoted attribute.
 * `address`: a quoted attribute that holds an address. `flag`: an attribute that is written only if the value is true.
 */
type Place = 'text' | 'field' | 'attribute' | 'address' | 'flag';

const ADDRESSES = new Set(['href', 'src', 'action', 'formaction']);
/** Attributes whose values are programs, styles, documents, or several addresses. */
const REFUSED = /^(on.*|style|srcdoc|srcset|data|ping|background|content|http-equiv|target)$/;
/** Elements whose content browsers do not read as text with escapes. */
const RAW = /^(script|style|iframe|noscript|template|xmp|plaintext|noembed|noframes)$/;

const wrong = (what: string, strings: readonly string[]): Error => new Error(`${what}: ${strings.join('…')}`);

/** Reads a template as a browser does, and tells where its values stand. Throws if a value stands where no escaping helps. */
function placesOf(strings: readonly string[]): Place[] {
  const places: Place[] = [];
  let state: 'text' | 'tag' | 'value' = 'text';
  /** What the current tag has before the cursor. */
  let tag = '';
  /** The attribute that the cursor is in, and what its value has so far. */
  let attribute = '';
  let value = '';
  let element = '';
  for (const [at, string] of strings.entries()) {
    for (const character of string) {
      if (state === 'value') {
        if (character === '"') state = 'tag';
        else value += character;
      } else if (state === 'text') {
        if (character === '<') [state, tag] = ['tag', ''];
      } else if (character === '"') {
        attribute = /(?:^|\s)(\??[a-z-]+)=$/i.exec(tag)?.[1]?.toLowerCase() ?? '';
        if (attribute === '') throw wrong('Quotes belong around the value of an attribute', strings);
        [state, value, tag] = ['value', '', `${tag} `];
      } else if (character === '>') {
        element = /^[a-z][a-z0-9-]*/i.exec(tag)?.[0].toLowerCase() ?? '';
        state = 'text';
      } else if (character === "'" || character === '<' || character === '`') {
        throw wrong('Attributes have double quotes', strings);
      } else tag += character;
    }
    if (at === strings.length - 1) break;
    if (state === 'tag') throw wrong('A value must stand between tags or in a quoted attribute', strings);
    if (state === 'text') {
      if (RAW.test(element)) throw wrong(`A value must not stand in ${element}`, strings);
      places.push(element === 'textarea' ? 'field' : 'text');
      continue;
    }
    if (attribute.startsWith('?') && (value !== '' || !strings[at + 1]?.startsWith('"')))
      throw wrong('A flag has one value', strings);
    if (REFUSED.test(attribute.replace('?', ''))) throw wrong(`A value must not stand in the attribute ${attribute}`, strings);
    // Once the path has begun, a value cannot change the scheme or the host.
    const isBegun = /^\/[\w.-]/.test(value);
    if (ADDRESSES.has(attribute) && value !== '' && !isBegun)
      throw wrong('An address is one value, or begins with a path', strings);
    places.push(attribute.startsWith('?') ? 'flag' : ADDRESSES.has(attribute) && !isBegun ? 'address' : 'attribute');
    value += '?';
  }
  if (state !== 'text') throw wrong('A tag is not closed', strings);
  return places;
}

/** Paths of this gateway, and addresses on the web. A browser reads `//host` and `/\host` as other hosts, and drops tabs and line breaks. */
const ADDRESS = /^(\/(?![/\\])|#|\?|https?:\/\/)[^\s\p{Cc}\\]*$/u;

function addressOf(value: Content): string {
  if (typeof value !== 'string' || !(value === '/' || ADDRESS.test(value)))
    throw new Error('An address has a scheme that is not allowed');
  return escaped(value);
}

function written(value: Content, write = escaped): string {
  if (value === null || value === undefined || typeof value === 'boolean') return '';
  if (typeof value === 'string') return write(value);
  if (typeof value === 'number') return String(value);
  if (value instanceof SafeText) return value.toString();
  return value.map((each) => written(each, write)).join('');
}

function inAttribute(value: Content): string {
  if (value instanceof SafeText || Array.isArray(value)) throw new Error('An attribute must not contain markup');
  return written(value);
}

/** By the strings of a template, which are the same object on each evaluation. */
const known = new WeakMap<readonly string[], readonly Place[]>();

/**
 * Returns the template as markup, with its values escaped. A value may stand between tags or in an attribute in double quotes. In `href`,
 * `src`, `action` and `formaction` it must be a path of this gateway or an http(s) address. `?name="${condition}"` sets the attribute `name`
 * if the condition is true. Markup of other templates stays as it is.
 */
export function html(strings: TemplateStringsArray, ...values: readonly Content[]): Markup {
  let places = known.get(strings);
  if (places === undefined) {
    places = placesOf(strings);
    known.set(strings, places);
  }
  let text = strings[0] ?? '';
  for (const [at, value] of values.entries()) {
    let after = strings[at + 1] ?? '';
    switch (places[at]) {
      case 'flag':
        text = text.replace(/\?([a-zA-Z-]+)="$/, value ? '$1' : '');
        after = after.slice(1);
        break;
      case 'attribute':
        text += inAttribute(value);
        break;
      case 'address':
        text += addressOf(value);
        break;
      case 'field':
        text += written(value);
        break;
      default:
        text += written(value, shown);
    }
    text += after;
  }
  return new SafeText(text);
}

/** Sends the browser to a path of this gateway at once, in the head of a page. */
export function refreshTo(path: string): Markup {
  if (!path.startsWith('/')) throw new Error('A page sends the browser only to a path of this gateway');
  return new SafeText(`<meta http-equiv="refresh" content="0;url=${addressOf(path)}">`);
}

/** Lets the browser load the page again after so many seconds, in the head of the page. */
export function refreshIn(seconds: number): Markup {
  return new SafeText(`<meta http-equiv="refresh" content="${Math.ceil(seconds)}">`);
}
