/** Opens sessions of the bridge. That happens only if the target refuses a session of its own and speaks 2026-07-28. */
import { isObject, type JsonObject, type JsonValue, readJson } from '../../../base/json/json.ts';
import { keep } from '../../../base/kept.ts';
import { helloOf } from '../../../protocol/hello.ts';
import { CODES, type RpcRequest, resultMessage } from '../../../protocol/message.ts';
import { SESSION_REVISIONS } from '../../../protocol/mode.ts';
import { addressOf } from '../../../targets/target.ts';
import { jsonAnswer } from '../answers.ts';
import { readAll } from '../http.ts';
import { discoversStateless, PROBE_ANSWER_BYTES, type UpstreamModes } from '../modes.ts';
import { CHANGED, isFault, type Reach, type UpstreamAnswer, type UpstreamFault, type UpstreamRequest } from '../upstream.ts';
import { type ClientTraits, envelope, openingResult } from './messages.ts';
import { askTarget, type BoundReach, type BridgeParts, resultOf } from './requests.ts';
import type { BridgedSessions } from './sessions.ts';

/** How long no session is requested from a target that refused one. */
const REFUSING_MS = 10 * 60 * 1000;
const REFUSING_KEPT = 10_000;
const REFUSAL_BYTES = 64 * 1024;

export function createOpening(parts: BridgeParts, modes: UpstreamModes, sessions: BridgedSessions) {
  const { http, now } = parts;
  /**
   * Addresses of targets that refuse sessions and speak 2026-07-28, with the time until which that is assumed. By user: the fault may be in what the
   * client has sent.
   */
  const refusing = new Map<string, number>();
  const refusingKey = ({ target, access }: Reach): string => JSON.stringify([addressOf(target), access.user]);

  async function discover(at: BoundReach, client: ClientTraits): Promise<{ readonly result: JsonObject } | UpstreamFault | null> {
    const found = await askTarget(parts, at, 'server/discover', { _meta: envelope(client, null) }, PROBE_ANSWER_BYTES);
    if (found === null || isFault(found)) return found;
    const result = resultOf(found);
    return result !== null && discoversStateless(result) ? { result } : null;
  }

  return {
    /** Opens a session. `initialize` is the message in `request`. */
    async open(request: UpstreamRequest, { id, params }: RpcRequest): Promise<UpstreamAnswer | UpstreamFault> {
      const key = refusingKey(request);
      let refusal: UpstreamAnswer | null = null;
      if ((refusing.get(key) ?? 0) <= now()) {
        const answer = await http.send(request);
        if (isFault(answer) || ![400, 404, 405].includes(answer.status)) return answer;
        const kept = await keepBody(answer);
        if (isFault(kept)) return kept;
        if (kept.sessionsAreServed) return kept.answer;
        refusal = kept.answer;
      }
      const { clientInfo, capabilities } = helloOf(params ?? {});
      const client = { info: params?.clientInfo === undefined ? undefined : clientInfo, capabilities };
      const discovered = await discover(request, client);
      if (discovered === null || isFault(discovered)) {
        refusing.delete(key);
        // The refusal of the target would be the wrong reason.
        if (discovered?.fault !== CHANGED.fault) return refusal ?? (discovered === null ? http.send(request) : discovered);
        refusal?.discard();
        return discovered;
      }
      refusal?.discard();
      modes.learn(request, true, discovered.result);
      keep(refusing, key, now() + REFUSING_MS, REFUSING_KEPT);
      const result = openingResult(params, discovered.result, request.target.name);
      const session = sessions.keep(request, client, objectOf(result['capabilities']));
      const text = resultMessage(id, JSON.stringify(result));
      return jsonAnswer(200, text, session.id);
    },
    /** Forgets a target that has changed. The next session of this user finds out its mode. */
    forget(reach: Reach): void {
      modes.forget(reach);
      refusing.delete(refusingKey(reach));
    },
  };
}

/** Reads the body of a refusal and returns an answer that can still be passed on. */
async function keepBody(
  answer: UpstreamAnswer,
): Promise<{ readonly answer: UpstreamAnswer; readonly sessionsAreServed: boolean } | UpstreamFault> {
  if (answer.type !== 'json') return { answer, sessionsAreServed: false };
  const bytes = await readAll(answer, REFUSAL_BYTES);
  if (isFault(bytes)) return bytes;
  const reading = readJson(bytes, { exact: false });
  const error = reading.ok && isObject(reading.value) ? objectOf(reading.value.error) : {};
  const supported = error.code === CODES.unsupportedVersion ? objectOf(error.data)['supported'] : undefined;
  return {
    answer: { ...jsonAnswer(answer.status, bytes.toString('utf8')), retryAfter: answer.retryAfter },
    sessionsAreServed: Array.isArray(supported) && SESSION_REVISIONS.some((revision) => supported.includes(revision)),
  };
}

function objectOf(value: JsonValue | undefined): JsonObject {
  return isObject(value) ? value : {};
}
