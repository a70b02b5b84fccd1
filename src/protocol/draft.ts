/** Collects edits of a result and applies them together. All other text of the result stays as it is. Pure. */
import type { JsonObject, JsonSpan, JsonValue } from '../base/json/json.ts';
import { atOnce } from '../base/turns/slices.ts';

export interface Edit {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

export interface Draft {
  readonly text: string;
  readonly span: JsonSpan;
  readonly value: JsonObject;
  readonly edits: Edit[];
}

export function setMember(draft: Draft, name: string, value: JsonValue): void {
  replaceMember(draft, name, JSON.stringify(value));
}

export function replaceMember(draft: Draft, name: string, text: string): void {
  const existing = draft.span.members?.get(name);
  if (existing !== undefined) {
    draft.edits.push({ start: existing.start, end: existing.end, text });
    return;
  }
  const at = draft.span.start + 1;
  const isFirst = (draft.span.members?.size ?? 0) === 0 && !draft.edits.some((edit) => edit.start === at);
  draft.edits.push({ start: at, end: at, text: `${JSON.stringify(name)}:${text}${isFirst ? '' : ','}` });
}

/** The text of the span, with the edits. If several insertions share a position, the latest comes first. */
export function applyEdits(draft: Omit<Draft, 'value'>): string {
  return atOnce(applyInSteps(draft));
}

const EDITS_AT_ONCE = 500;

/** The same. Pauses after some edits. */
export function* applyInSteps({ text, span, edits }: Omit<Draft, 'value'>): Generator<undefined, string> {
  let edited = '';
  let at = span.start;
  // The sort is stable: of several insertions, only the first one lacks its comma.
  for (const [index, edit] of edits
    .toReversed()
    .sort((a, b) => a.start - b.start)
    .entries()) {
    edited += text.slice(at, edit.start) + edit.text;
    at = edit.end;
    if (index % EDITS_AT_ONCE === EDITS_AT_ONCE - 1) yield;
  }
  return edited + text.slice(at, span.end);
}
