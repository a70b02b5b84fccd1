/** The answer to a request, before it is written to the client. The request handler decides it, `reply.ts` writes it. */
import { AppError } from '../base/errors.ts';
import type { JsonObject, JsonValue } from '../base/json/json.ts';
import { CODES, errorMessage, type MessageText, type Rejection, type RpcId } from './message.ts';

/**
 * The items of a filtered list, changed as the request asked for: JSON texts of one or more items. So a merge of several lists need not read
 * the answers again. The list in the answer is empty, because each copy of a large one takes tens of MiB.
 */
export interface ListedItems {
  readonly items: readonly string[];
  /** The cursor that the target gave. */
  readonly nextCursor: JsonValue | undefined;
}

export interface OutEvent {
  /** Emptied after use, as that of an `SseEvent`. */
  data: MessageText;
  readonly id?: string | undefined;
  readonly retry?: number | undefined;
  /** The answer to the request that opened the stream; nothing follows. */
  readonly final?: boolean;
  /** The token of a progress notification. */
  readonly progressToken?: RpcId | undefined;
  /** As in MessageAnswer. */
  readonly result?: JsonObject | undefined;
  readonly listed?: ListedItems | undefined;
}

export interface MessageAnswer {
  readonly kind: 'message';
  readonly status: number;
  readonly text: MessageText;
  readonly headers?: Readonly<Record<string, string>>;
  /** The target's own result, if the gateway itself needs it. It has not been filtered. */
  readonly result?: JsonObject | undefined;
  /** For a request with `changeItem`, if all items could be changed. */
  readonly listed?: ListedItems | undefined;
}

export type Answer =
  | MessageAnswer
  | { readonly kind: 'empty'; readonly status: number }
  | { readonly kind: 'problem'; readonly error: AppError; readonly headers?: Readonly<Record<string, string>> }
  /** `drain`: keep reading when the client is gone, because a closed connection does not cancel the request. */
  | { readonly kind: 'stream'; readonly events: AsyncGenerator<OutEvent>; readonly drain: boolean };

export const ACCEPTED: Answer = { kind: 'empty', status: 202 };

/** The answer as one message; for a stream, its final event. null: there is no answer. */
export async function finalOf(answer: Answer): Promise<Pick<MessageAnswer, 'text' | 'result' | 'listed'> | null> {
  if (answer.kind === 'message') return answer;
  if (answer.kind !== 'stream') return null;
  for await (const event of answer.events) {
    if (event.final) return { text: event.data, result: event.result, listed: event.listed };
    event.data = '';
  }
  return null;
}

export function refuse(id: RpcId | null | undefined, rejection: Rejection): Answer {
  return { kind: 'message', status: rejection.status, text: errorMessage(id, rejection) };
}

export function rpcError(id: RpcId | null, code: number, message: string, data?: JsonValue): MessageAnswer {
  return {
    kind: 'message',
    status: 200,
    text: errorMessage(id, data === undefined ? { code, message } : { code, message, data }),
  };
}

/** The text is identical, byte for byte, whether the target does not exist or the caller may not use it. */
export function noTargetText(targetName: string): string {
  return `no target \`${targetName}\`, or no policy lets you use it`;
}

export function noTarget(id: RpcId | null, targetName: string): Answer {
  return rpcError(id, CODES.noTarget, noTargetText(targetName));
}

/** The answer is the same for a session that is unknown, has expired, has an edited id, or belongs to a different caller. */
export function noSession(id: RpcId | null): Answer {
  return { kind: 'message', status: 404, text: errorMessage(id, { code: CODES.sessionNotFound, message: 'Session not found' }) };
}

/** Refuses a request because the state cannot be read or the audit log cannot be written. Nothing may happen without them. */
export function unavailable(id: RpcId | null | undefined, retryAfter = 1): Answer {
  return {
    kind: 'message',
    status: 503,
    text: errorMessage(id, { code: CODES.internal, message: 'The gateway cannot decide at the moment; try again' }),
    headers: { 'retry-after': String(retryAfter) },
  };
}

/** Refuses a call before it is decided, so the audit log gets no row for it. */
export function tooManyCalls(id: RpcId | null): Answer {
  return {
    kind: 'message',
    status: 429,
    text: errorMessage(id, { code: CODES.internal, message: 'Too many of your calls are under way; wait for one to end' }),
    headers: { 'retry-after': '1' },
  };
}

export function problem(error: AppError, headers?: Readonly<Record<string, string>>): Answer {
  return headers === undefined ? { kind: 'problem', error } : { kind: 'problem', error, headers };
}

export function problemUnavailable(cause: unknown): Answer {
  const error =
    cause instanceof AppError
      ? cause
      : new AppError('unavailable', 'The gateway cannot decide at the moment.', { retryAfter: 1 });
  return problem(error);
}
