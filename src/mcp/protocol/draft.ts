/** Collects edits of a result and applies them together. All other text of the result stays as it is. Pure. */
import type { JsonObject, JsonSpan, JsonValue } from '../../base/json/json.ts';

interface Edit {
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

export function applyEdits(draft: Draft): string {
  let text = '';
  let at = draft.span.start;
  // If several insertions share a position, the latest comes first (the sort is stable): only the first one lacks its comma.
  for (const edit of draft.edits.toReversed().sort((a, b) => a.start - b.start)) {
    text += draft.text.slice(at, edit.start) + edit.text;
    at = edit.end;
  }
  return text + draft.text.slice(at, draft.span.end);
}
