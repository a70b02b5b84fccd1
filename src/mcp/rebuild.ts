/**
 * The message that leaves the gateway, built anew from the members that were checked. What was read for the decision is
 * serialized from the values that were decided on; what nobody looked into is carried on as the text it was. Pure.
 */
import type { JsonObject, JsonSpan } from '../http/json.ts';
import type { RpcId, RpcNotification, RpcRequest } from './message.ts';

/** A message with its place in the text that it was read from; spans reach the members of `params`. */
export interface Located {
  readonly text: string;
  readonly span: JsonSpan;
}

/** Members whose content is between client and target: carried on verbatim, so that `1.0` stays `1.0`. */
export const OPAQUE: readonly string[] = ['arguments', 'inputResponses'];

export const MESSAGE_SPAN_DEPTH = 2;

/** `replaced`: values that stand in for those of `params`; undefined removes one. */
export function rebuildCall(
  message: RpcRequest | RpcNotification,
  located: Located,
  replaced: { readonly [name: string]: JsonObject[string] | undefined } = {},
): string {
  const head = message.kind === 'request' ? `"id":${JSON.stringify(message.id)},` : '';
  const params = message.params === undefined ? '' : `,"params":${rebuildParams(message.params, located, replaced)}`;
  return `{"jsonrpc":"2.0",${head}"method":${JSON.stringify(message.method)}${params}}`;
}

function rebuildParams(params: JsonObject, located: Located, replaced: { readonly [name: string]: unknown }): string {
  const spans = located.span.members?.get('params')?.members;
  const members: string[] = [];
  for (const name of Object.keys(params)) {
    const value = Object.hasOwn(replaced, name) ? replaced[name] : params[name];
    if (value === undefined) continue;
    const span = OPAQUE.includes(name) ? spans?.get(name) : undefined;
    const text = span === undefined ? JSON.stringify(value) : located.text.slice(span.start, span.end);
    members.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${members.join()}}`;
}

/** An answer to the target under the id that the target knows, or an answer to the client under the client's. */
export function rebuildResponse(id: RpcId, outcome: 'result' | 'error', located: Located, changed: MemberTexts = {}): string {
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"${outcome}":${memberText(located, outcome, changed)}}`;
}

/** A request of the target for the client, under an id that only this session can answer. `changed`: members of `params`. */
export function rebuildAsked(id: string, method: string, located: Located, changed: MemberTexts = {}): string {
  return `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"method":${JSON.stringify(method)}${paramsText(located, changed)}}`;
}

export function rebuildNotification(method: string, located: Located, changed: MemberTexts = {}): string {
  return `{"jsonrpc":"2.0","method":${JSON.stringify(method)}${paramsText(located, changed)}}`;
}

function paramsText(located: Located, changed: MemberTexts): string {
  return located.span.members?.has('params') ? `,"params":${memberText(located, 'params', changed)}` : '';
}

export function memberText({ text, span }: Located, name: string, changed: MemberTexts = {}): string {
  const at = span.members?.get(name);
  return at === undefined ? 'null' : withMembers(text, at, changed);
}

/** Texts that stand in for those of members; null leaves one out. */
export type MemberTexts = Readonly<Record<string, string | null>>;

/** An object as it was written, but for some of its members. */
export function withMembers(text: string, span: JsonSpan, changed: MemberTexts): string {
  if (Object.keys(changed).length === 0) return text.slice(span.start, span.end);
  const members: string[] = [];
  for (const [name, at] of span.members ?? []) {
    const value = Object.hasOwn(changed, name) ? changed[name] : text.slice(at.start, at.end);
    if (typeof value === 'string') members.push(`${JSON.stringify(name)}:${value}`);
  }
  return `{${members.join()}}`;
}
