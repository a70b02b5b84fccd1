/** What a session knows of its target's tools: which of their arguments go into headers. */
import type { JsonValue } from '../../../http/json.ts';
import type { ParamHeader } from '../param-headers.ts';
import { isFault, type Upstream, type UpstreamLimits } from '../upstream.ts';
import { type ClientTraits, type Declared, declaredIn, envelope, listedTools, type Read } from './messages.ts';
import { type BoundReach, responseFrom, resultOf, sendModern } from './requests.ts';

export interface KnownTools {
  /** From the answer to a request with this cursor. */
  learn(cursor: JsonValue | undefined, response: Read, declared: Declared): void;
  forget(): void;
  /** Of a tool that was never listed, the target is asked: it refuses calls whose headers are not as it declares them. */
  headersOf(at: BoundReach, name: JsonValue | undefined): Promise<readonly ParamHeader[]>;
}

export interface KnownToolsDeps {
  readonly http: Upstream;
  readonly limits: UpstreamLimits;
  readonly newId: () => string;
  readonly client: ClientTraits;
}

const MAX_TOOL_PAGES = 50;
/** Of one answer, and of those that a session remembers. */
const MAX_TOOLS = 10_000;

export function createKnownTools({ http, limits, newId, client }: KnownToolsDeps): KnownTools {
  /** Those that want any headers. */
  const known = new Map<string, readonly ParamHeader[]>();
  /** Every page has been seen: what is not among `known` wants no headers. */
  let hasAll = false;
  /** Where the pages go on that have been seen from the first on. */
  let next: string | undefined;

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
    forget() {
      known.clear();
      hasAll = false;
      next = undefined;
    },
    async headersOf(at, name) {
      if (typeof name !== 'string') return [];
      let cursor: string | undefined;
      for (let page = 0; page < MAX_TOOL_PAGES && !known.has(name) && !hasAll; page++) {
        const id = newId();
        const method = 'tools/list';
        const params = { _meta: envelope(client, null), ...(cursor === undefined ? {} : { cursor }) };
        const body = JSON.stringify({ jsonrpc: '2.0', id, method, params });
        const answer = await sendModern(http, at, { method, params: undefined }, body, []);
        const found = isFault(answer) ? null : await responseFrom(answer, id, limits.answerBytes, at.target.id);
        if (!isFault(answer)) answer.discard();
        if (found === null || isFault(found)) break;
        learn(cursor, found, await declaredIn(found, at.target.id));
        const result = resultOf(found);
        cursor = typeof result?.['nextCursor'] === 'string' ? result['nextCursor'] : undefined;
        // Of a target whose pages do not end, the others are not asked for again with each call.
        hasAll ||= page === MAX_TOOL_PAGES - 1;
      }
      return known.get(name) ?? [];
    },
  };
}
