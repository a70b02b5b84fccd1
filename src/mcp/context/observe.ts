/** Measurements of calls, and of the targets that answer them. */
import type { Outcome } from '../../audit/records/records.ts';
import { isFault, type Upstream } from '../upstream/upstream.ts';

export interface Observe {
  readonly ended: (call: EndedCall) => void;
  readonly sessionEnded: (lastedMs: number) => void;
  /** A target could not be used, or answered with a failure. */
  readonly failed: (targetName: string, failure: string) => void;
}

export interface EndedCall {
  readonly method: string;
  readonly targetName: string;
  readonly outcome: Outcome;
  /** From the last byte of the request to the last byte of its answer. */
  readonly tookMs: number;
  /** From the last byte of the request until it was forwarded to the target; null: it was not forwarded. */
  readonly addedMs: number | null;
}

/** Wraps `upstream` so that failures of targets are counted. */
export function observed(upstream: Upstream, failed: Observe['failed']): Upstream {
  return {
    send: (request) =>
      upstream.send(request).then((answer) => {
        const failure = isFault(answer) ? answer.fault : failureOf(answer.status);
        // A request that the gateway or its client cancelled, or that was not sent, is not a failure of the target.
        if (failure !== null && failure !== 'aborted' && failure !== 'changed') failed(request.target.name, failure);
        return answer;
      }),
    close: () => upstream.close(),
  };
}

/** null: not a failure. With 400, 404 and 405, targets say in normal operation what they do not know. */
function failureOf(status: number): string | null {
  if (status >= 500) return 'http_5xx';
  if (status === 401 || status === 403) return 'refused_credential';
  if (status === 429) return 'rate_limited';
  return status >= 300 && status < 400 ? 'redirect' : null;
}
