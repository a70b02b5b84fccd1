/** Remembers which arguments of a target's tools go into headers, for all sessions that reach the target in the same way. */

import type { JsonValue } from '../../../base/json/json.ts';
import { sourceAt } from '../connect.ts';
import { MAX_DECLARED, type ParamHeader } from '../param-headers.ts';
import { isFault } from '../upstream.ts';
import { type ClientTraits, type Declared, declaredIn, envelope, type Read } from './messages.ts';
import { askTarget, type BoundReach, type BridgeParts, resultOf } from './requests.ts';

export type KnownTools = ReturnType<ReturnType<typeof createKnownTools>>;

const MAX_TOOL_PAGES = 50;
/** The maximum of tools in one answer, and of tools that are remembered for a target. */
const MAX_TOOLS = 10_000;
/** The maximum of characters that are remembered for a target, and for all targets. */
const MAX_CHARACTERS = 512 * 1024;
const MAX_OF_ALL = 16 * 1024 * 1024;
/** What is remembered of a tool. Longer strings may be parts of the target's answer, which would stay in memory with them. */
const MAX_OF_TOOL = 2 * MAX_DECLARED;
/** What a target counts as, before its tools. A longer cursor is not remembered. */
const OWN_CHARACTERS = 1_024;

interface Known {
  /** The tools that declare headers. */
  readonly tools: Map<string, readonly ParamHeader[]>;
  characters: number;
  /** Whether every page has been seen. Then tools that are not in `tools` declare no headers. */
  hasAll: boolean;
  /** The cursor after the pages seen so far, counted from the first page. */
  next: string | undefined;
}

const lengthOf = (name: string, headers: readonly ParamHeader[]): number =>
  headers.reduce((sum, header) => sum + header.name.length + header.path.join().length, name.length);

export function createKnownTools(parts: BridgeParts) {
  /** Ordered by last use, oldest first. */
  const all = new Map<string, Known>();
  let characters = 0;

  /** Returns what is known. Changes must be made by `change`. */
  function knownAt(binding: string): Readonly<Known> | undefined {
    const known = all.get(binding);
    if (known !== undefined && all.delete(binding)) all.set(binding, known);
    return known;
  }

  function forget(binding: string): void {
    characters -= all.get(binding)?.characters ?? 0;
    all.delete(binding);
  }

  function change(binding: string, make: (known: Known) => void): void {
    const known = all.get(binding) ?? { tools: new Map(), characters: OWN_CHARACTERS, hasAll: false, next: undefined };
    forget(binding);
    make(known);
    all.set(binding, known);
    characters += known.characters;
    for (const oldest of all.keys()) {
      if (characters <= MAX_OF_ALL) return;
      forget(oldest);
    }
  }

  /** `binding`: the target, address and credentials. Sessions with the same ones share what is remembered. */
  return (binding: string, client: ClientTraits) => {
    /** Learns from the `tools/list` page that was requested with this cursor. */
    function learn(cursor: JsonValue | undefined, response: Read, declared: Declared): void {
      const result = resultOf(response);
      if (result === null) return;
      change(binding, (known) => {
        if (declared.length <= MAX_TOOLS) {
          for (const tool of declared) {
            if (tool !== null && tool.name !== null) remember(known, tool.name, tool.headers);
          }
        }
        if (cursor !== undefined && cursor !== known.next) return;
        const { nextCursor } = result;
        const isLast = typeof nextCursor !== 'string';
        known.next = isLast || nextCursor.length > OWN_CHARACTERS ? undefined : nextCursor;
        known.hasAll ||= isLast;
      });
    }

    return {
      learn,
      forget: (): void => forget(binding),
      /**
       * Returns the headers of a tool. If the tool was never listed, the target is asked: it refuses calls without the headers that
       * it declares.
       */
      async headersOf(at: BoundReach, name: JsonValue | undefined): Promise<readonly ParamHeader[]> {
        if (typeof name !== 'string') return [];
        let cursor: string | undefined;
        for (let page = 0; page < MAX_TOOL_PAGES; page++) {
          const known = knownAt(binding);
          if (known?.tools.has(name) || known?.hasAll) break;
          const params = { _meta: envelope(client, null), ...(cursor === undefined ? {} : { cursor }) };
          const asked = cursor;
          const found = await askTarget(parts, at, 'tools/list', params, parts.limits.answerBytes, async (list) =>
            learn(asked, list, await declaredIn(list, sourceAt(at))),
          );
          if (found === null || isFault(found)) break;
          const result = resultOf(found);
          cursor = typeof result?.['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
          // If the pages of a target do not end, they are not requested again with each call.
          if (page === MAX_TOOL_PAGES - 1) {
            change(binding, (seen) => {
              seen.hasAll = true;
            });
          }
        }
        return knownAt(binding)?.tools.get(name) ?? [];
      },
    };
  };
}

function remember(known: Known, name: string, headers: readonly ParamHeader[]): void {
  const before = known.tools.get(name);
  if (before !== undefined) known.characters -= lengthOf(name, before);
  known.tools.delete(name);
  const characters = lengthOf(name, headers);
  if (
    headers.length === 0 ||
    characters > MAX_OF_TOOL ||
    known.tools.size >= MAX_TOOLS ||
    known.characters + characters > MAX_CHARACTERS
  )
    return;
  known.tools.set(name, headers);
  known.characters += characters;
}
