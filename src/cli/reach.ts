/** Requests to a gateway that may not answer. */
import { CommandError } from './command.ts';

/** Returns what `work` returns. Throws CommandError if the gateway cannot be reached or closes the connection. */
export async function reach<T>(url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error ? ((cause as NodeJS.ErrnoException).code ?? cause.message) : message;
    throw new CommandError(
      `no answer from ${url} (${reason}): PORTCULLIS_URL or --server must name a running gateway`,
      'no_answer',
    );
  }
}
