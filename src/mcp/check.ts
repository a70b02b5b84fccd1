/** Tries a target for an administrator: opens a session, reads the list of its tools, and ends the session. Calls no tool. */

import { isUnread } from '../base/json/built.ts';
import { isObject, type JsonObject, type JsonValue } from '../base/json/json.ts';
import { VERSION } from '../base/version.ts';
import { isSessionRevision, SESSION_REVISIONS } from '../protocol/mode.ts';
import { isName } from '../protocol/operation.ts';
import type { Access, RoutedTarget } from '../targets/target.ts';
import type { RequestDeps } from './context/context.ts';
import { noteFailure, noteFault, noteRefusal } from './context/failure.ts';
import { OWN_ID, ownAnswer, request } from './context/upstream-opening.ts';
import type { LastFault } from './upstream/health.ts';
import { ownError } from './upstream/own-error.ts';
import { isFault, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from './upstream/upstream.ts';

export interface CheckedTool {
  readonly name: string;
  readonly title: string | null;
  readonly description: string | null;
  /** Whether the target says of the tool that it changes nothing. Nothing proves that. */
  readonly read_only: boolean;
}

export interface TargetCheck {
  /** null: the target works. */
  readonly fault: Omit<LastFault, 'at'> | null;
  readonly server: { readonly name: string; readonly version: string } | null;
  readonly protocol_version: string | null;
  readonly tools: readonly CheckedTool[];
  /** Whether the target has more tools than these. */
  readonly more: boolean;
  readonly has_resources: boolean;
  readonly has_prompts: boolean;
}

/** As long as a session may take to open at all: a process may first have to install its program. */
const CHECK_MS = 60_000;
const MAX_TOOLS = 1_000;
const MAX_PAGES = 50;
const MAX_TEXT = 1_000;

type CheckDeps = Pick<RequestDeps, 'catalogue' | 'health' | 'limits' | 'log' | 'upstream' | 'now'>;

const textOf = (value: JsonValue | undefined): string | null => (typeof value === 'string' ? value.slice(0, MAX_TEXT) : null);
const NOTHING = { server: null, protocol_version: null, tools: [], more: false, has_resources: false, has_prompts: false };

/** Returns what the target is and has, or why it cannot be used. Never rejects because of the target. */
export async function checkTarget(deps: CheckDeps, target: RoutedTarget, access: Access): Promise<TargetCheck> {
  const began = deps.now();
  const signal = AbortSignal.timeout(CHECK_MS);
  const context = { deps, target, access };
  const send = (more: Partial<UpstreamRequest>): ReturnType<typeof deps.upstream.send> =>
    deps.upstream.send({ method: 'POST', target, access, signal, ...more });

  /** `text` is for the case that the health of the target does not have this fault. */
  function failed(kind: LastFault['kind'], text: string): TargetCheck {
    const noted = deps.health.report(target).last_fault;
    const known = noted !== null && noted.kind === kind && noted.at >= began;
    return { ...NOTHING, fault: { kind, message: known ? noted.message : text, stderr: known ? noted.stderr : null } };
  }
  function faulty(fault: UpstreamFault, method: string): TargetCheck {
    const late: UpstreamFault = signal.aborted ? { fault: 'timeout', withinMs: CHECK_MS, cause: fault.cause } : fault;
    return failed(late.fault, noteFault(context, late, method));
  }
  const malformed = (what: string, method: string): TargetCheck => faulty({ fault: 'malformed', cause: new Error(what) }, method);
  /** Returns the result of this answer, or what the check says of a target that gave none. */
  async function read(answer: UpstreamAnswer, method: string): Promise<{ result: JsonObject } | { failure: TargetCheck }> {
    const refusal = (error: JsonObject) => ({ failure: failed('http', noteRefusal(context, method, error)) });
    if (answer.status !== 200 || answer.type === 'other') {
      const own = await ownError(answer, OWN_ID);
      answer.discard();
      if (own !== null) return refusal(own.error);
      return { failure: failed('http', await noteFailure(context, answer, method === 'initialize')) };
    }
    const found = await ownAnswer(answer, deps.limits.answerBytes, target.id);
    if (isFault(found)) return { failure: faulty(found, method) };
    return 'error' in found ? refusal(found.error) : found;
  }

  const params = {
    protocolVersion: SESSION_REVISIONS[0],
    capabilities: {},
    clientInfo: { name: 'portcullis', version: VERSION },
  };
  const opened = await send({ body: JSON.stringify(request('initialize', params)) });
  if (isFault(opened)) return faulty(opened, 'initialize');
  const hello = await read(opened, 'initialize');
  if ('failure' in hello) return hello.failure;
  const { protocolVersion: version, capabilities, serverInfo } = hello.result;
  if (!isSessionRevision(version) || !isObject(capabilities))
    return malformed('initialize was answered without a protocol version that the gateway knows', 'initialize');
  const session = { session: { upstreamId: opened.sessionId }, version };
  try {
    const ready = await send({ ...session, body: JSON.stringify({ jsonrpc: '2.0', method: 'notifications/initialized' }) });
    if (isFault(ready)) return faulty(ready, 'initialize');
    ready.discard();
    const tools: CheckedTool[] = [];
    let cursor: string | undefined;
    for (let pages = 0; capabilities.tools !== undefined && pages < MAX_PAGES && tools.length < MAX_TOOLS; pages++) {
      const listed = await send({
        ...session,
        body: JSON.stringify(request('tools/list', cursor === undefined ? {} : { cursor })),
      });
      if (isFault(listed)) return faulty(listed, 'tools/list');
      const page = await read(listed, 'tools/list');
      if ('failure' in page) return page.failure;
      const { result: list } = page;
      if (!Array.isArray(list.tools)) return malformed('tools/list was answered without a list', 'tools/list');
      // One more than is shown tells that there are more. As arguments, a whole list could overflow the stack.
      tools.push(...list.tools.flatMap(toolOf).slice(0, MAX_TOOLS + 1));
      cursor = typeof list.nextCursor === 'string' ? list.nextCursor : undefined;
      if (cursor === undefined) break;
    }
    deps.catalogue.note({ target, access }, 'tool', tools.map(({ name }) => name).filter(isName));
    const { name, version: itsVersion } = isObject(serverInfo) ? serverInfo : {};
    return {
      fault: null,
      server: { name: textOf(name) ?? '', version: textOf(itsVersion) ?? '' },
      protocol_version: version,
      tools: tools.slice(0, MAX_TOOLS),
      more: cursor !== undefined || tools.length > MAX_TOOLS,
      has_resources: capabilities.resources !== undefined,
      has_prompts: capabilities.prompts !== undefined,
    };
  } finally {
    const ended = await deps.upstream.send({
      method: 'DELETE',
      target,
      access,
      ...session,
      signal: AbortSignal.timeout(deps.limits.openMs),
    });
    if (!isFault(ended)) ended.discard();
  }
}

function toolOf(item: JsonValue): CheckedTool[] {
  if (!isObject(item) || isUnread(item) || typeof item.name !== 'string' || item.name.length > MAX_TEXT) return [];
  const { name, title, description, annotations } = item;
  const isReadOnly = isObject(annotations) && !isUnread(annotations) && annotations.readOnlyHint === true;
  return [{ name, title: textOf(title), description: textOf(description), read_only: isReadOnly }];
}
