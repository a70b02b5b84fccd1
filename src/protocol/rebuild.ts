/**
 * Builds the message that leaves the gateway from the members that were checked. Members that were read for the decision are
 * serialized from the decided values. Members that the gateway did not read keep their text. Pure.
 */
import { isObject, type JsonObject, type JsonSpan, type JsonValue } from '../base/json/json.ts';
import { MEMBERS, type RpcId, type RpcNotification, type RpcRequest } from './message.ts';
import { isRequestMethod } from './operation.ts';

/** A message and its position in the text from which it was read. Spans reach the members of `params`. */
export interface Located {
  readonly text: string;
  readonly span: JsonSpan;
}

/** Members whose content only client and target understand. They are forwarded verbatim, so that `1.0` stays `1.0`. */
export const OPAQUE: readonly string[] = ['arguments', 'inputResponses'];

export const MESSAGE_SPAN_DEPTH = 2;

/**
 * `replaced`: values that replace members of `params`; undefined removes a member.
 *
 * Members that the protocol does not have are left out. Some parsers read names that differ as the same: fastjson takes `_name` for `name`, and
 * json-iterator compares nothing but hashes. So a target could read a different name than the one that was decided. Only the target knows the
 * members of its extension methods.
 */
export function rebuildCall(
  message: RpcRequest | RpcNotification,
  located: Located,
  replaced: { readonly [name: string]: JsonObject[string] | undefined } = {},
): string {
  const anyMember = message.kind === 'request' && !isRequestMethod(message.method);
  const head = message.kind === 'request' ? `"id":${JSON.stringify(message.id)},` : '';
  const params = message.params === undefined ? '' : `,"params":${rebuildParams(message.params, located, replaced, anyMember)}`;
  return `{"jsonrpc":"2.0",${head}"method":${JSON.stringify(message.method)}${params}}`;
}

function rebuildParams(
  params: JsonObject,
  located: Located,
  replaced: { readonly [name: string]: JsonValue | undefined },
  anyMember: boolean,
): string {
  const spans = located.span.members?.get('params')?.members;
  const members: string[] = [];
  for (const name of Object.keys(params)) {
    if (!anyMember && !MEMBERS.params.includes(name)) continue;
    const given = Object.hasOwn(replaced, name) ? replaced[name] : params[name];
    const value = anyMember ? given : withKnown(given, MEMBERS.nested.get(name));
    if (value === undefined) continue;
    const span = OPAQUE.includes(name) && !Object.hasOwn(replaced, name) ? spans?.get(name) : undefined;
    const text = span === undefined ? JSON.stringify(value) : located.text.slice(span.start, span.end);
    members.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${members.join()}}`;
}

function withKnown(value: JsonValue | undefined, names: readonly string[] | undefined): JsonValue | undefined {
  if (names === undefined || !isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).filter(([name]) => names.includes(name)));
}

/** An answer to the target under the target's id, or an answer to the client under the client's id. */
export function rebuildResponse(id: RpcId, outcome: 'result' | 'error', located: Located, changed: MemberTexts = {}): string {
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"${outcome}":${memberText(located, outcome, changed)}}`;
}

/** A request of the target to the client, under an id that only this session can answer. `changed`: members of `params`. */
export function rebuildAsked(id: string, method: string, located: Located, changed: MemberTexts = {}): string {
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"method":${JSON.stringify(method)}${paramsText(located, changed)}}`;
}

export function rebuildNotification(method: string, located: Located, changed: MemberTexts): string {
  return `{"jsonrpc":"2.0","method":${JSON.stringify(method)}${paramsText(located, changed)}}`;
}

function paramsText(located: Located, changed: MemberTexts): string {
  return located.span.members?.has('params') ? `,"params":${memberText(located, 'params', changed)}` : '';
}

export function memberText({ text, span }: Located, name: string, changed: MemberTexts = {}): string {
  const at = span.members?.get(name);
  return at === undefined ? 'null' : withMembers(text, at, changed);
}

/** Texts that replace members; null removes a member. */
export type MemberTexts = Readonly<Record<string, string | null>>;

/** The object's own text, with some members changed. */
export function withMembers(text: string, span: JsonSpan, changed: MemberTexts): string {
  if (Object.keys(changed).length === 0) return text.slice(span.start, span.end);
  const members: string[] = [];
  for (const [name, at] of span.members ?? []) {
    const value = Object.hasOwn(changed, name) ? changed[name] : text.slice(at.start, at.end);
    if (typeof value === 'string') members.push(`${JSON.stringify(name)}:${value}`);
  }
  return `{${members.join()}}`;
}
