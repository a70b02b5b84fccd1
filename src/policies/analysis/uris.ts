/**
 * The names that a request can have, as regular languages. A resource has a canonical URI, or is a URI template, which is listed and
 * completed by its text. src/mcp/uri.ts decides what is canonical.
 */
import { isCanonicalUri } from '../../mcp/uri.ts';
import type { ResourceType } from '../document.ts';
import { type Automaton, type Budget, shortestName, TooLarge, textsAutomaton } from './automaton.ts';
import { createLibrary, domainOf } from './names.ts';

const LABEL = '[a-z][a-z0-9]*(?:-[a-z0-9]+)*';
const HOST = `${LABEL}(?:[.]${LABEL})*`;
const WORD = '[A-Za-z0-9_-]+(?:[.][A-Za-z0-9_-]+)*';
const WORDS = `${WORD}(?:/${WORD})*`;
/** URIs that look familiar, all of them canonical: examples are taken from these where possible. */
export const URI_LIKE = `^(?:(?:file://|https?://${HOST})/(?:${WORDS})?|[a-egi-vx-z][a-z]+://${HOST}(?:/${WORDS})?)$`;

const ENCODED = '%(?:0[1-9A-F]|2[0-9A-C]|3[A-F]|40|5[BDE]|60|7[BCDF]|[189A-F][0-9A-F])';
const CHARACTER = `(?:[A-Za-z0-9_~:@!$&'()*+,;=-]|${ENCODED})`;
/** Neither empty nor made of one or two dots alone. */
const SEGMENT = `(?:[.]*${CHARACTER}(?:${CHARACTER}|[.])*|[.]{3,})`;
const PATH = `${SEGMENT}(?:/${SEGMENT})*/?`;
const ANY = "[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-F][0-9A-F]";
const PORT = '(?::[0-9]{1,5})?';
const ADDRESS = '\\[[0-9a-f:.]+\\]';
/** The parser of URLs knows these schemes, lowers the case of their hosts and gives each a path. */
const SPECIAL = `(?:https?|wss?|ftp)://(?:[a-z0-9._~!$&'()*+,;=-]+|${ADDRESS})${PORT}/(?:${PATH})?(?:[?](?:${ANY})+)?`;
const FILE = `file:///(?:${PATH})?`;
const OTHER = `${schemesBut(['file', 'ftp', 'http', 'https', 'ws', 'wss'])}:(?://(?:[A-Za-z0-9._~!$&'()*+,;=-]*|${ADDRESS})${PORT}(?:/(?:${PATH})?)?|/?(?:${PATH})?)(?:[?](?:${ANY})+)?`;
/** Fits every canonical URI, and few texts that are none. */
export const URIS = `^(?:${SPECIAL}|${FILE}|${OTHER})$`;

/** A pattern of the schemes that are none of these words. */
function schemesBut(words: readonly string[], atStart = true): string {
  const firsts = [...new Set(words.map((word) => word[0] ?? ''))].filter((first) => first !== '').sort();
  const others = characters((code) => !firsts.includes(code) && (!atStart || /[a-z]/.test(code)));
  const branches = firsts.map((first) => {
    const rest = words.filter((word) => word.startsWith(first)).map((word) => word.slice(1));
    return `${first}${schemesBut(rest, false)}`;
  });
  const end = atStart || words.includes('') ? [] : [''];
  return `(?:${[`${others}[a-z0-9+.-]*`, ...branches, ...end].join('|')})`;
}

function characters(isOne: (character: string) => boolean): string {
  return `[${[...'abcdefghijklmnopqrstuvwxyz0123456789+.-'].filter(isOne).join('')}]`;
}

const library = createLibrary();
const uriLike = library(URI_LIKE);
const uris = library(URIS);
export const templates = library('\\{');

/** The parser of URLs refuses a few texts of `URIS`: so many of them are passed by on the way to a canonical URI. */
const TRIES = 20;

/** A canonical URI that all of `include` accept and none of `exclude`; null: there is none. Throws `TooLarge`. */
export function* findUri(
  include: readonly Automaton[],
  exclude: readonly Automaton[],
  budget: Budget,
  begin = '',
): Generator<undefined, string | null> {
  const domain = domainOf('resource');
  const familiar = yield* shortestName([uriLike.automaton(), ...include], exclude, domain, budget, begin);
  if (familiar !== null && isCanonicalUri(familiar)) return familiar;
  const refused: string[] = [];
  while (refused.length < TRIES) {
    const others = refused.length === 0 ? exclude : [...exclude, textsAutomaton(refused)];
    const uri = yield* shortestName([uris.automaton(), ...include], others, domain, budget, begin);
    if (uri === null || isCanonicalUri(uri)) return uri;
    refused.push(uri);
  }
  throw new TooLarge();
}

/** A name that a request of this type can have, a canonical URI before a template. null: there is none. Throws `TooLarge`. */
export function* findAskable(
  type: ResourceType,
  include: readonly Automaton[],
  exclude: readonly Automaton[],
  budget: Budget,
): Generator<undefined, string | null> {
  if (type !== 'resource') return yield* shortestName(include, exclude, domainOf(type), budget);
  const uri = yield* findUri(include, exclude, budget);
  return uri ?? (yield* shortestName([templates.automaton(), ...include], exclude, domainOf(type), budget));
}
