/**
 * The names that a request can contain, as regular languages. A resource has a canonical URI, or it is a URI template, whose text
 * is listed and completed. src/protocol/uri.ts decides what is canonical.
 */
import type { ResourceType } from '../../engine/compile/policy.ts';
import { isCanonicalUri } from '../../protocol/uri.ts';
import { type Automaton, type Budget, shortestName, TooLarge, textsAutomaton } from './automaton.ts';
import { createLibrary, domainOf } from './names.ts';

const LABEL = '[a-z][a-z0-9]*(?:-[a-z0-9]+)*';
const HOST = `${LABEL}(?:[.]${LABEL})*`;
const WORD = '[A-Za-z0-9_-]+(?:[.][A-Za-z0-9_-]+)*';
const WORDS = `${WORD}(?:/${WORD})*`;
/** Canonical URIs that look familiar: examples use these if possible. */
export const URI_LIKE = `^(?:(?:file://|https?://${HOST})/(?:${WORDS})?|[a-egi-vx-z][a-z]+://${HOST}(?:/${WORDS})?)$`;

const ENCODED = '%(?:2[0-9A-C]|3[A-F]|40|5[BDE]|60|7[BCD]|[89A-F][0-9A-F])';
const CHARACTER = `(?:[A-Za-z0-9_~:@!$&'()*+,;=-]|${ENCODED})`;
/** A path segment: not empty, and not just one or two dots. */
const SEGMENT = `(?:[.]*${CHARACTER}(?:${CHARACTER}|[.])*|[.]{3,})`;
const PATH = `${SEGMENT}(?:/${SEGMENT})*/?`;
const ANY = "[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[2-9A-F][0-9A-F]";
const PORT = '(?::[0-9]{1,5})?';
const ADDRESS = '\\[[0-9a-f:.]+\\]';
/** The URL parser knows these schemes. It puts their hosts into lower case and gives each URL a path. */
const SPECIAL = `(?:https?|wss?|ftp)://(?:[a-z0-9._~!$&'()*+,;=-]+|${ADDRESS})${PORT}/(?:${PATH})?(?:[?](?:${ANY})+)?`;
const FILE = `file:///(?:${PATH})?`;
const OTHER = `${schemesBut(['file', 'ftp', 'http', 'https', 'ws', 'wss'])}:(?://(?:[A-Za-z0-9._~!$&'()*+,;=-]*|${ADDRESS})${PORT}(?:/(?:${PATH})?)?|/?(?:${PATH})?)(?:[?](?:${ANY})+)?`;
/** Matches every canonical URI, and few other texts. */
export const URIS = `^(?:${SPECIAL}|${FILE}|${OTHER})$`;

/** Returns a pattern that matches every scheme except these words. */
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

/** The URL parser refuses a few texts that match `URIS`. The search skips at most this many of them. */
const TRIES = 20;

/** Returns a canonical URI that each of `include` accepts and none of `exclude`; null: there is none. Throws `TooLarge`. */
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

/** Returns a name for a request of this type, preferring a URI to a template; null: there is none. Throws `TooLarge`. */
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
