/** Requests to a gateway that may not answer. */
import { CommandError } from './command.ts';

/** The connection broke off or timed out: the gateway may have made the change. */
const LOST =
  /^(UND_ERR_(SOCKET|ABORTED|HEADERS_TIMEOUT|BODY_TIMEOUT|RES_CONTENT_LENGTH_MISMATCH)|ECONNRESET|EPIPE|ETIMEDOUT|HPE_.*)$|terminated|aborted/;
/** What to do if the gateway may have made the change. */
export const CHECK_CHANGE =
  'If the command makes a change, check whether it was made before you repeat it (policies history, or the console)';

/** Returns what `work` returns. Throws CommandError if the gateway cannot be reached or closes the connection. */
export async function reach<T>(url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error ? ((cause as NodeJS.ErrnoException).code ?? cause.message) : message;
    const advice = LOST.test(reason)
      ? `the connection broke off or timed out. Check that PORTCULLIS_URL or --server names a running gateway. ${CHECK_CHANGE}`
      : 'PORTCULLIS_URL or --server must name a running gateway';
    throw new CommandError(`no answer from ${url} (${reason}): ${advice}`, 'no_answer');
  }
}
