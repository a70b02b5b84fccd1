/** Remembers for a session which arguments of the target's tools go into headers. */
import type { JsonValue } from '../../../base/json/json.ts';
import type { ParamHeader } from '../param-headers.ts';
import { isFault } from '../upstream.ts';
import { type ClientTraits, type Declared, declaredIn, envelope, listedTools, type Read } from './messages.ts';
import { askTarget, type BoundReach, type BridgeParts, resultOf } from './requests.ts';

export type KnownTools = ReturnType<typeof createKnownTools>;

const MAX_TOOL_PAGES = 50;
/** The maximum of tools in one answer, and of tools that a session remembers. */
const MAX_TOOLS = 10_000;

export function createKnownTools(parts: BridgeParts, client: ClientTraits) {
  /** The tools that declare headers. */
  const known = new Map<string, readonly ParamHeader[]>();
  /** Whether every page has been seen. Then tools that are not in `known` declare no headers. */
  let hasAll = false;
  /** The cursor after the pages seen so far, counted from the first page. */
  let next: string | undefined;

  /** Learns from the `tools/list` page that was requested with this cursor. */
  function learn(cursor: JsonValue | undefined, response: Read, declared: Declared): void {
    const result = resultOf(response);
    if (result === null) return;
    if (declared.length <= MAX_TOOLS) {
      for (const [name, headers] of listedTools(response, declared)) {
        if (headers.length === 0) known.delete(name);
        else if (known.size < MAX_TOOLS || known.has(name)) known.set(name, headers);
      }
    }
    if (cursor !== undefined && cursor !== next) return;
    next = typeof result['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
    hasAll ||= next === undefined;
  }

  return {
    learn,
    forget(): void {
      known.clear();
      hasAll = false;
      next = undefined;
    },
    /**
     * Returns the headers of a tool. If the tool was never listed, the target is asked: it refuses calls without the headers that
     * it declares.
     */
    async headersOf(at: BoundReach, name: JsonValue | undefined): Promise<readonly ParamHeader[]> {
      if (typeof name !== 'string') return [];
      let cursor: string | undefined;
      for (let page = 0; page < MAX_TOOL_PAGES && !known.has(name) && !hasAll; page++) {
        const params = { _meta: envelope(client, null), ...(cursor === undefined ? {} : { cursor }) };
        const found = await askTarget(parts, at, 'tools/list', params);
        if (found === null || isFault(found)) break;
        learn(cursor, found, await declaredIn(found, at.target.id));
        const result = resultOf(found);
        cursor = typeof result?.['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
        // If the pages of a target do not end, they are not requested again with each call.
        hasAll ||= page === MAX_TOOL_PAGES - 1;
      }
      return known.get(name) ?? [];
    },
  };
}
